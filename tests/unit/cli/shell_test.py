#!/usr/bin/env python3
"""Help, completions and manual page, all from one table of commands: held against each other and
against real shells. A shell that is not installed is skipped; bash is always there.

    shell_test.py PROGRAM
"""
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))
ROOT = pathlib.Path(__file__).resolve().parents[3]


def oomcast(*words, **options):
    return subprocess.run([PROGRAM, *words], capture_output=True, check=False, text=True, **options)


def command_names():
    return re.findall(r"^  oomcast (\w+)", oomcast("help").stdout, re.MULTILINE)


def option_names(command):
    """Of a command, as its help lists them."""
    return set(re.findall(r"^  (?:-\w \[ )?(--[\w-]+)", oomcast("help", command).stdout,
                          re.MULTILINE))


class Typed:
    """An interactive shell on a terminal in which `oomcast` prints the words it was given."""

    def __init__(self, argv, setup, cwd):
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            os.chdir(cwd)
            os.environ.update(TERM="dumb", LC_ALL="C.UTF-8", PATH="/usr/bin:/bin")
            os.execvp(argv[0], argv)
        self.send(setup + "\necho rea''dy\n", "ready\r")

    def send(self, text, until):
        os.write(self.terminal, text.encode())
        seen = ""
        deadline = time.monotonic() + 120
        while until not in seen:
            if not select.select([self.terminal], [], [], max(0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"no {until!r} in {seen!r}")
            seen += os.read(self.terminal, 4096).decode(errors="replace")
        return seen

    def words_after_tab(self, text):
        seen = self.send(text + "\t", "")
        time.sleep(0.5)
        seen = self.send("\n", "]]")
        return re.findall(r"\[\[(.*?)\]\]", seen)[-1]

    def close(self):
        os.close(self.terminal)
        os.waitpid(self.child, 0)


class Shell(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        self.scripts = {}
        for shell in ("bash", "zsh", "fish"):
            self.scripts[shell] = self.root / f"completions.{shell}"
            self.scripts[shell].write_text(oomcast("completions", shell).stdout)
        (self.root / "trace one.csv").touch()
        (self.root / "runs").mkdir()

    def tearDown(self):
        self.folder.cleanup()

    def bash(self, *words):
        """What bash would offer for the last of the words."""
        script = (f"source {self.scripts['bash']}\n"
                  'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))\n'
                  '_oomcast; for reply in "${COMPREPLY[@]}"; do echo "$reply"; done')
        done = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True,
                              check=True, text=True, cwd=self.root)
        self.assertEqual(done.stderr, "")
        return done.stdout.splitlines()

    def test_bash_offers_commands_options_and_values(self):
        self.assertEqual(set(self.bash("oomcast", "")),
                         set(command_names()) | {"--help", "--version"})
        self.assertEqual(self.bash("oomcast", "repl"), ["replay"])
        for command in command_names():
            self.assertEqual(set(self.bash("oomcast", command, "-")), option_names(command))
        self.assertEqual(self.bash("oomcast", "plan", "--gpu", "GB1"), ["GB10"])
        self.assertEqual(self.bash("oomcast", "plan", "--gpu", "=", "GB1"), ["GB10"])
        self.assertIn("H200", self.bash("oomcast", "explain", "x.log", "--gpu", ""))
        self.assertEqual(self.bash("oomcast", "replay", "--trace-format", "az"), ["azure"])
        self.assertEqual(self.bash("oomcast", "replay", "--detail", "="), ["classes", "allocator"])
        self.assertEqual(self.bash("oomcast", "list", "g"), ["gpus"])
        self.assertEqual(self.bash("oomcast", "help", "ca"), ["calibrate"])
        self.assertEqual(self.bash("oomcast", "plan", "--seed", ""), [])
        self.assertEqual(self.bash("oomcast", "no-such-command", ""), [])

    def test_bash_offers_files_where_files_belong(self):
        self.assertEqual(self.bash("oomcast", "replay", "--trace", "tr"), ["trace one.csv"])
        self.assertEqual(self.bash("oomcast", "replay", "tr"), ["trace one.csv"])
        self.assertEqual(self.bash("oomcast", "replay", "--out", ""), ["runs"])
        self.assertEqual(self.bash("oomcast", "calibrate", "--from-log", "a.log", "tr"),
                         ["trace one.csv"])
        self.assertEqual(self.bash("oomcast", "plan", "tr"), [])

    def typed(self, argv, setup):
        shell = Typed(argv, setup, self.root)
        try:
            self.assertEqual(shell.words_after_tab("oomcast pl"), "plan")
            self.assertEqual(shell.words_after_tab("oomcast plan --gpu GB1"), "plan|--gpu|GB10")
            self.assertEqual(shell.words_after_tab("oomcast replay --trace tra"),
                             "replay|--trace|trace one.csv")
            self.assertEqual(shell.words_after_tab("oomcast list mod"), "list|models")
            self.assertEqual(shell.words_after_tab("oomcast plan --explain-p"),
                             "plan|--explain-peak")
        finally:
            shell.close()

    def test_typed_into_bash(self):
        self.typed(["bash", "--norc", "-i"],
                   f"source {self.scripts['bash']}; "
                   'oomcast() { local IFS="|"; echo "[""[$*]""]"; }')

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_typed_into_zsh(self):
        self.typed(["zsh", "-f", "-i"],
                   "autoload -Uz compinit; compinit -u -D; unsetopt ZLE_BRACKETED_PASTE; "
                   f"source {self.scripts['zsh']}; "
                   'oomcast() { local IFS="|"; print -r -- "[""[$*]""]"; }')

    @unittest.skipUnless(shutil.which("fish"), "fish is not installed")
    def test_fish(self):
        def offers(line):
            script = f"source {self.scripts['fish']}; complete -C '{line}'"
            done = subprocess.run(["fish", "--no-config", "-c", script], capture_output=True,
                                  check=True, text=True, cwd=self.root,
                                  env={"PATH": "/usr/bin:/bin", "HOME": str(self.root)})
            return [line.split("\t")[0] for line in done.stdout.splitlines()]
        self.assertEqual(set(offers("oomcast ")), set(command_names()))
        self.assertEqual(offers("oomcast plan --gpu GB1"), ["GB10"])
        self.assertEqual(offers("oomcast list mod"), ["models"])
        self.assertEqual(offers("oomcast replay --trace tra"), ["trace one.csv"])
        self.assertEqual(set(offers("oomcast plan --")), option_names("plan"))

    def test_manual_page(self):
        page = self.root / "oomcast.1"
        page.write_text(oomcast("man").stdout)
        text = page.read_text().replace("\\-", "-")
        for command in command_names():
            self.assertIn(f".SS {command}\n", text)
            for option in option_names(command):
                self.assertIn(f"\\fB{option}\\fR", text)
        for tool in (["man", "--warnings", "-l"], ["groff", "-man", "-Tutf8", "-ww"],
                     ["mandoc", "-Tlint", "-Wwarning"]):
            if shutil.which(tool[0]):
                done = subprocess.run([*tool, page], capture_output=True, check=False, text=True,
                                      env={**os.environ, "LC_ALL": "C.UTF-8"})
                self.assertEqual((done.returncode, done.stderr), (0, ""), tool[0])

    def test_help_is_the_same_by_three_names(self):
        for command in command_names():
            told = oomcast("help", command)
            self.assertEqual(told.returncode, 0)
            self.assertEqual(told.stdout, oomcast(command, "--help").stdout)
            self.assertEqual(told.stdout, oomcast(command, "-h").stdout)
            self.assertTrue(told.stdout.startswith(f"oomcast {command}"))

    def test_examples_of_help_run(self):
        sample = ROOT / "workloads" / "samples" / "azure_conv_500.csv"
        subprocess.run(f"head -n 20 {sample} | tee trace.csv | gzip > trace.csv.gz", shell=True, check=True,
                       cwd=self.root)
        logs = ROOT / "tests" / "data" / "logs"
        for name, source in EXAMPLE_LOGS.items():
            (self.root / name).write_bytes((logs / source).read_bytes())
        samples = ROOT / "validation" / "samples" / "h100_synthetic_1.json"
        (self.root / "samples.json").write_bytes(samples.read_bytes())
        bin_folder = self.root / "bin"
        bin_folder.mkdir()
        (self.root / ".config/fish/completions").mkdir(parents=True)
        (bin_folder / "oomcast").symlink_to(PROGRAM)
        for run in ("results/a", "results/b", "results/RUN", "results/A", "results/B"):
            oomcast("replay", "trace.csv", "--launch", "vllm serve Qwen/Qwen3-8B", "--gpu", "H100",
                    "--out", run, cwd=self.root)
        for command in command_names():
            for line in re.findall(r":\n  ([^-\s].*oomcast .*|oomcast .*)$", oomcast("help", command).stdout,
                                   re.MULTILINE):
                with self.subTest(line):
                    done = subprocess.run(
                        ["bash", "-o", "pipefail", "-c", line.replace("~", str(self.root))],
                        cwd=self.root, capture_output=True, check=False, text=True,
                        env={**os.environ, "PATH": f"{bin_folder}:/usr/bin:/bin", "PAGER": "cat"})
                    self.assertIn(done.returncode, (0, 3), done.stderr)
                    self.assertNotIn("oomcast:", done.stderr)


# The logs that examples name.
EXAMPLE_LOGS = {"vllm.log": "llama_h100.log", "a.log": "llama_h100.log", "b.log": "llama_h100.log"}


if __name__ == "__main__":
    unittest.main()
