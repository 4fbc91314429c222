#!/usr/bin/env python3
"""Calibrations from probes as a user meets them: recorded samples, a program of probes, bad files.

    calibrate_test.py PROGRAM
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))
ROOT = pathlib.Path(__file__).resolve().parents[3]
SAMPLES = sorted((ROOT / "validation" / "samples").glob("*.json"))
LINE = "vllm serve Qwen/Qwen2.5-7B-Instruct"
NAME = "calibration-NVIDIA-H100-80GB-HBM3.json"


def ends(pid, patience_s=60):
    """Whether a process that is not our child ends; one that nobody has reaped has ended."""
    for _ in range(patience_s * 100):
        try:
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


class Calibrate(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def run_oomcast(self, *words):
        return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, check=False,
                              cwd=self.root, text=True)

    def works(self, *words):
        done = self.run_oomcast(*words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def refuses(self, *words, mentions=()):
        """Exit 2, every word of `mentions` on stderr, nothing on stdout, nothing left behind."""
        before = sorted(self.root.rglob("*"))
        done = self.run_oomcast(*words)
        self.assertEqual(done.returncode, 2, done)
        for word in mentions:
            self.assertIn(word, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(sorted(self.root.rglob("*")), before)
        return done.stderr

    def calibrated(self, folder, *samples):
        self.works("calibrate", "--from-probes", "--replay-samples", *samples, "--out", folder)
        return self.root / folder / NAME

    def program(self, text):
        """A program that stands for the probes."""
        path = self.root / "probes"
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return path

    def test_the_same_bytes_each_time(self):
        first = self.calibrated("a", *SAMPLES).read_bytes()
        self.assertEqual(self.calibrated("b", *SAMPLES).read_bytes(), first)
        self.assertEqual(self.calibrated("c", *reversed(SAMPLES)).read_bytes(), first)

    def test_a_plan_shows_what_changes_by_class(self):
        path = self.calibrated("a", *SAMPLES)
        text = self.works("plan", "--launch", LINE, "--gpu", "H100", "--calibration", path)
        section = text[text.index("Changes by"):]
        for word in ("system.context", "graph.pool", "kv.pool", "KV tokens"):
            self.assertIn(word, section)
        plan = json.loads(self.works("plan", "--launch", LINE, "--gpu", "H100", "--json",
                                     "--calibration", path))
        presets = json.loads(self.works("plan", "--launch", LINE, "--gpu", "H100", "--json"))
        for name, (before, after) in plan["calibration"]["classes"].items():
            self.assertEqual(before, presets["ranks"][0]["classes"][name])
            self.assertEqual(after, plan["ranks"][0]["classes"][name])
        self.assertTrue(any("made-up device" in warning for warning in plan["warnings"]))
        self.assertNotIn("calibration", presets)

    def test_plan_launch_shows_the_same(self):
        text = self.works("calibrate", "--from-probes", "--replay-samples", *SAMPLES,
                          "--plan-launch", LINE, "trtllm-serve Qwen/Qwen3-8B")
        self.assertEqual(text.count("Changes by"), 2)
        self.refuses("calibrate", "--from-probes", "--replay-samples", *SAMPLES, "--out", "new",
                     "--plan-launch", "vllm serve no/such-model", mentions=["no/such-model"])

    def test_logs_are_fitted_around_probes(self):
        log = ROOT / "tests" / "data" / "logs" / "llama_h100.log"
        self.works("calibrate", "--from-log", log, "--from-probes", "--replay-samples", *SAMPLES)
        both = json.loads((self.root / "calibration-NVIDIA-H100-80GB-HBM3-vllm-0.19.0.json")
                          .read_text())
        probes = json.loads(self.calibrated("a", *SAMPLES).read_text())
        for name in ("device_total_mib", "context_mib", "graph_node_kib"):
            self.assertEqual(both["memory"][name], probes["memory"][name])
        self.assertIn("load_residual_mib", both["memory"])
        names = [row["name"] for row in both["coefficients"]]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(both["rates"], probes["rates"])
        self.works("plan", "--launch", LINE, "--gpu", "H100", "--engine-version", "0.19.0",
                   "--calibration", "calibration-NVIDIA-H100-80GB-HBM3-vllm-0.19.0.json")

    def test_without_a_gpu(self):
        if any(os.path.exists(path) for path in ("/dev/nvidiactl", "/proc/driver/nvidia/version",
                                                 "/dev/dxg")):
            self.skipTest("this machine has a GPU")
        message = self.refuses("calibrate", "--from-probes", mentions=["no NVIDIA driver"])
        self.assertEqual(message.count("\n"), 1)

    def test_a_program_of_probes(self):
        program = self.program(f"echo 'progress 1 2 card' >&2\ncat '{SAMPLES[0]}'\n")
        self.works("calibrate", "--from-probes", "--probes", program, "--out", "new")
        kept = sorted(path.name for path in (self.root / "new").iterdir())
        self.assertEqual(kept[0], NAME)
        self.assertTrue(kept[1].startswith("samples-NVIDIA-H100-80GB-HBM3-2026"), kept)
        self.assertEqual((self.root / "new" / kept[1]).read_bytes(), SAMPLES[0].read_bytes())
        # Arguments reach it; what it complains of reaches the user in one line.
        program = self.program("echo \"got $*\" >&2\nexit 2\n")
        message = self.refuses("calibrate", "--from-probes", "--probes", program, "--allow-shared",
                               "--time-limit", 7, mentions=["exit code 2", "--seconds 7",
                                                            "--allow-shared"])
        self.assertEqual(message.count("\n"), 1)
        self.refuses("calibrate", "--from-probes", "--probes", self.program("kill -9 $$\n"),
                     mentions=["signal 9"])
        self.refuses("calibrate", "--from-probes", "--probes", self.program("echo '{'\n"),
                     mentions=["valid JSON"])
        self.refuses("calibrate", "--from-probes", "--probes", "./none", mentions=["./none"])

    def test_programs_that_do_not_end_well(self):
        # Its end is the end, whatever still holds its outputs, and its outputs are not its end.
        program = self.program(f"cat '{SAMPLES[0]}'\nsleep 1000 &\necho $! > left\n")
        self.works("calibrate", "--from-probes", "--probes", program, "--out", "held")
        os.kill(int((self.root / "left").read_text()), signal.SIGKILL)
        program = self.program("exec >&- 2>&-\nsleep 1\nexit 4\n")
        self.refuses("calibrate", "--from-probes", "--probes", program, mentions=["exit code 4"])
        # What it says last need not end in a newline, nor command the terminal.
        program = self.program("printf 'no \\033[2Jcard' >&2\nexit 3\n")
        message = self.refuses("calibrate", "--from-probes", "--probes", program, "--out", "new/er",
                               mentions=["no \\x1b[2Jcard"])
        self.assertNotIn("\x1b", message)
        program = self.program("exec yes\n")
        self.refuses("calibrate", "--from-probes", "--probes", program, mentions=["more samples"])

    def test_a_signal_ends_the_probes_too(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            # As early as can be: by the program itself, as the first thing it does.
            program = self.program(f"echo $$ > pid\nkill -{int(number)} $PPID\n"
                                   "exec sleep 1000\n")
            done = self.run_oomcast("calibrate", "--from-probes", "--probes", program,
                                    "--out", "new")
            self.assertEqual(done.returncode, -number, done)
            self.assertTrue(ends(int((self.root / "pid").read_text())))
            self.assertFalse((self.root / "new").exists())

    def test_nothing_is_measured_in_vain(self):
        program = self.program("touch measured\nexit 3\n")
        (self.root / "file").write_text("")
        for words in (["--out", "/proc/none"], ["--out", "file"], ["--from-log", "none.log"],
                      ["--plan-launch", "vllm serve no/such-model"],
                      ["--plan-launch", "vllm serve Qwen/Qwen3-8B --max-model-len 0"]):
            self.refuses("calibrate", "--from-probes", "--probes", program, *words)

    def test_damaged_samples_and_calibrations(self):
        good = SAMPLES[0].read_text()
        for name, text in {"edited": good.replace('"status": "done"', '"status": "failed"', 1),
                           "truncated": good[:len(good) // 2], "empty": "",
                           "other": '{"schema": "oomcast.calibration/1"}'}.items():
            (self.root / "bad.json").write_text(text)
            with self.subTest(name):
                self.refuses("calibrate", "--from-probes", "--replay-samples", SAMPLES[1],
                             "bad.json", mentions=["bad.json"])
        path = self.calibrated("a", *SAMPLES)
        good = path.read_text()
        for text in (good.replace('"context_mib": 5', '"context_mib": 6'), good[:-40]):
            path.write_text(text)
            self.refuses("plan", "--launch", LINE, "--gpu", "H100", "--calibration", path,
                         mentions=[NAME])

    def test_other_cards(self):
        path = self.calibrated("a", *SAMPLES)
        self.refuses("plan", "--launch", LINE, "--gpu", "A100-80GB", "--calibration", path,
                     mentions=["NVIDIA H100 80GB HBM3"])
        plan = json.loads(self.works("plan", "--launch", LINE, "--gpu", "H200", "--json",
                                     "--calibration", path))
        self.assertTrue(any("which is like" in warning for warning in plan["warnings"]))

    def test_choices_that_do_not_go_together(self):
        self.refuses("calibrate", mentions=["--from-log"])
        self.refuses("calibrate", "--from-log", "x", "--replay-samples", "y",
                     mentions=["--from-probes"])
        self.refuses("calibrate", "--from-probes", "--time-limit", 0, mentions=["--time-limit"])


if __name__ == "__main__":
    unittest.main()
