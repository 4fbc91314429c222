#!/usr/bin/env python3
"""The program as a user meets it: exit codes, files, one clear message for bad input.

    cli_test.py PROGRAM
"""
import csv
import gzip
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))
ROOT = pathlib.Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "workloads" / "samples" / "azure_conv_500.csv"
LLAMA = ["--launch", "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 16384",
         "--gpu", "H100-80GB", "--engine-version", "0.19.0"]
LEAVES = 20
PREFILL = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --disaggregation-mode prefill"
DECODE = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --disaggregation-mode decode"


def read_csv(path):
    return list(csv.DictReader(path.read_text().splitlines()))


class Cli(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def run_oomcast(self, *words, stdin=None):
        return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, check=False,
                              cwd=self.root, stdin=stdin)

    def refuses(self, *words, mentions=(), stdin=None):
        """Exit 2, every word of `mentions` on stderr, nothing on stdout, nothing left behind."""
        before = sorted(self.root.rglob("*"))
        done = self.run_oomcast(*words, stdin=stdin)
        self.assertEqual(done.returncode, 2, done)
        message = done.stderr.decode(errors="replace")
        for word in mentions:
            self.assertIn(word, message)
        self.assertEqual(done.stdout, b"")
        self.assertEqual(sorted(self.root.rglob("*")), before)
        return message

    def replay(self, name, *words):
        out = self.root / name
        done = self.run_oomcast("replay", *LLAMA, "--out", out, *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return out

    # ---- what works -----------------------------------------------------------------------------

    def test_plan_json_follows_the_contract(self):
        done = self.run_oomcast("plan", *LLAMA, "--json")
        self.assertEqual(done.returncode, 0)
        plan = json.loads(done.stdout)
        self.assertEqual(plan["schema"], "oomcast.plan/1")
        rank = plan["ranks"][0]
        self.assertEqual(len(rank["classes"]), LEAVES)
        self.assertEqual([p["phase"] for p in rank["phases"]],
                         ["context", "communicators", "load", "profile", "kv", "capture", "warmup",
                          "ready"])
        self.assertEqual(plan["outcome"]["kind"], "served")
        self.assertAlmostEqual(plan["engine_report"]["weights_gib"], 14.99, delta=0.02)

    def test_replay_writes_its_files_and_conserves_bytes(self):
        out = self.replay("run", "--trace", SAMPLE)
        rows = read_csv(out / "timeline.csv")
        leaves = [name for name in rows[0] if "." in name]
        self.assertEqual(len(leaves), LEAVES)
        for row in rows:
            self.assertEqual(sum(int(row[name]) for name in leaves), int(row["device_used_bytes"]))
        requests = read_csv(out / "requests.csv")
        self.assertEqual(len(requests), 500)
        record = json.loads((out / "record.json").read_text())
        self.assertEqual(record["totals"]["finished"], 500)
        workload = record["workload"][0]
        self.assertEqual(workload["read"],
                         workload["kept"] + sum(d["count"] for d in workload["dropped"].values()))

    def test_same_input_same_bytes_and_step_by_step_too(self):
        runs = [self.replay("a", "--trace", SAMPLE), self.replay("b", "--trace", SAMPLE),
                self.replay("c", "--trace", SAMPLE, "--step-by-step")]
        for name in ("timeline.csv", "requests.csv", "config.resolved.json"):
            self.assertEqual(len({(run / name).read_bytes() for run in runs}), 1, name)
        records = [json.loads((run / "record.json").read_text()) for run in runs]
        for record in records:
            del record["meta"]
        self.assertEqual(records[0], records[1])
        self.assertEqual(records[0], records[2])

    def test_a_pipe_and_gzip_read_alike(self):
        packed = self.root / "t.csv.gz"
        packed.write_bytes(gzip.compress(SAMPLE.read_bytes()))
        a = self.replay("a", "--trace", packed)
        with open(SAMPLE, "rb") as pipe:
            done = self.run_oomcast("replay", *LLAMA, "--out", "b", "--trace", "-", stdin=pipe)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((a / "requests.csv").read_bytes(),
                         (self.root / "b" / "requests.csv").read_bytes())

    def test_a_pipe_as_a_word(self):
        with open(SAMPLE, "rb") as pipe:
            done = self.run_oomcast("replay", "-", *LLAMA, "--out", "a", stdin=pipe)
        self.assertEqual(done.returncode, 0, done.stderr)
        by_name = self.replay("b", "--trace", SAMPLE)
        self.assertEqual((self.root / "a" / "requests.csv").read_bytes(),
                         (by_name / "requests.csv").read_bytes())

    def test_broken_pipes(self):
        packed = gzip.compress(SAMPLE.read_bytes())
        damaged = packed[:2000] + bytes([packed[2000] ^ 255]) + packed[2001:]
        for name, content, mention in (("empty", b"", "at least one row"),
                                       ("cut", packed[:3000], "ends in the middle"),
                                       ("damaged", damaged, "damaged")):
            path = self.root / name
            path.write_bytes(content)
            with self.subTest(name), open(path, "rb") as pipe:
                self.refuses("replay", "-", *LLAMA, "--out", "out", stdin=pipe,
                             mentions=["standard input", mention])
        closed = subprocess.run(["bash", "-c", '"$@" <&-', "bash", PROGRAM, "replay", "-", *LLAMA],
                                cwd=self.root, capture_output=True, check=False)
        self.assertEqual((closed.returncode, closed.stdout), (2, b""))
        self.assertIn(b"standard input", closed.stderr)
        self.refuses("replay", "-", "--trace", "-", *LLAMA, mentions=["at most once"])

    def read_snapshot(self, path, record):
        """The pickle, its sums held against the rank's own statistics."""
        with open(path, "rb") as file:
            snapshot = pickle.load(file)
        self.assertEqual(sorted(snapshot), ["allocator_settings", "device_traces", "segments"])
        segments = snapshot["segments"]
        allocator = record["allocator"]
        self.assertEqual(sum(s["total_size"] for s in segments), allocator["reserved_bytes"])
        self.assertEqual(sum(s["allocated_size"] for s in segments), allocator["allocated_bytes"])
        for segment in segments:
            self.assertEqual(sum(b["size"] for b in segment["blocks"]), segment["total_size"])
            for block in segment["blocks"]:
                self.assertEqual(bool(block["frames"]), block["state"] != "inactive")
        self.assertEqual(len(snapshot["device_traces"]), record["rank"] + 1)
        return snapshot

    def test_allocator_detail(self):
        runs = [self.replay("a", "--trace", SAMPLE, "--detail", "allocator"),
                self.replay("b", "--trace", SAMPLE, "--detail", "allocator", "--step-by-step")]
        for name in ("timeline.csv", "requests.csv", "snapshot.pickle"):
            self.assertEqual(*((run / name).read_bytes() for run in runs), name)
        classes = self.replay("c", "--trace", SAMPLE)
        self.assertEqual((classes / "requests.csv").read_bytes(),
                         (runs[0] / "requests.csv").read_bytes())
        self.assertFalse((classes / "snapshot.pickle").exists())
        rows = read_csv(runs[0] / "timeline.csv")
        self.assertEqual(list(rows[0])[-2:], ["torch_inactive_split_bytes", "torch_segments"])
        self.assertEqual(list(rows[0])[:-2], list(read_csv(classes / "timeline.csv")[0]))
        leaves = [name for name in rows[0] if "." in name]
        for row in rows:
            self.assertEqual(sum(int(row[name]) for name in leaves), int(row["device_used_bytes"]))
            self.assertLessEqual(int(row["torch_allocated_bytes"]), int(row["torch_reserved_bytes"]))
        record = json.loads((runs[0] / "record.json").read_text())["ranks"][0]
        self.assertEqual(record["allocator"]["ooms"], 0)
        trace = self.read_snapshot(runs[0] / "snapshot.pickle", record)["device_traces"][0]
        names = {frame["name"] for entry in trace for frame in entry["frames"]}
        self.assertTrue({"load", "kv", "kv.pool", "lm_head", "softmax"} <= names, names)
        self.assertTrue(any(name.startswith("step of ") for name in names))

    def test_allocator_detail_of_several_ranks(self):
        out = self.root / "two"
        done = self.run_oomcast("replay", "--launch", "vllm serve Qwen/Qwen3-8B -tp 2 -pp 2",
                                "--gpu", "H100-80GB", "--trace", SAMPLE, "--requests", "20",
                                "--detail", "allocator", "--json", "--out", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        ranks = json.loads(done.stdout)["ranks"]
        self.assertEqual([rank["rank"] for rank in ranks], [0, 2])
        self.read_snapshot(out / "snapshot.pickle", ranks[0])
        self.read_snapshot(out / "snapshot-rank2.pickle", ranks[1])

    def test_allocator_detail_of_memory_in_pieces(self):
        out = self.root / "pieces"
        done = self.run_oomcast(
            "replay", "--launch", "vllm serve meta-llama/Llama-3.1-8B-Instruct --enforce-eager "
            "--max-model-len 16384 --max-num-batched-tokens 16384 --max-num-seqs 16 "
            "--kv-cache-memory-bytes 65712999628", "--gpu", "H100-80GB", "--engine-version",
            "0.19.0", "--synthetic",
            "poisson:rate=20,requests=200,input=uniform(100,16000),output=uniform(2,50)",
            "--detail", "allocator", "--out", out)
        self.assertEqual(done.returncode, 3, done.stderr)
        record = json.loads((out / "record.json").read_text())
        outcome = record["outcome"]
        self.assertEqual(outcome["kind"], "runtime_oom")
        self.assertIn("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                      [fix["change"] for fix in outcome["fixes"]])
        failure = record["ranks"][0]["allocator"]["out_of_memory"]
        self.assertTrue(failure["fragmented"])
        self.assertEqual(failure["class"], outcome["class"])
        snapshot = self.read_snapshot(out / "snapshot.pickle", record["ranks"][0])
        last = snapshot["device_traces"][0][-1]
        self.assertEqual(last["action"], "oom")
        self.assertEqual(last["device_free"], failure["device_free_bytes"])
        self.assertIn(failure["tensor"], last["frames"][0]["name"])

    # ---- reports --------------------------------------------------------------------------------

    def test_a_report_made_later_equals_the_one_made_at_once(self):
        out = self.replay("run", "--trace", SAMPLE)
        for name, words in (("report.html", []), ("trace.pftrace", ["--format", "perfetto"])):
            for record in (out, out / "record.json"):
                later = self.root / f"later-{name}"
                done = self.run_oomcast("report", record, *words, "--out", later)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(later.read_bytes(), (out / name).read_bytes())
                later.unlink()

    def test_report_as_tables(self):
        out = self.replay("run", "--trace", SAMPLE)
        done = self.run_oomcast("report", out, "--format", "csv", "--out", "tables")
        self.assertEqual(done.returncode, 0, done.stderr)
        tables = self.root / "tables"
        for name in ("timeline.csv", "requests.csv"):
            self.assertEqual((tables / name).read_bytes(), (out / name).read_bytes())
        plan = json.loads((out / "record.json").read_text())["plan"]
        self.assertEqual([(row["phase"], int(row["device_used_bytes"])) for row in read_csv(tables / "startup.csv")],
                         [(phase["phase"], phase["device_used_bytes"]) for phase in plan["ranks"][0]["phases"]])
        for row in read_csv(tables / "peaks.csv"):
            leaves = {name: int(row[name]) for name in row if "." in name}
            self.assertEqual(int(row["bytes"]), leaves.get(row["of"], sum(leaves.values())))

    def test_report_never_writes_over_a_file_unasked(self):
        out = self.replay("run", "--trace", SAMPLE)
        (self.root / "page.html").write_text("mine")
        self.refuses("report", out, "--out", "page.html", mentions=["page.html", "--replace"])
        self.refuses("report", out, "--out", out, mentions=["report.html", "--replace"])
        self.assertEqual((self.root / "page.html").read_text(), "mine")
        self.assertEqual(self.run_oomcast("report", out, "--out", "page.html", "--replace").returncode, 0)
        self.assertIn(b"<!doctype html>", (self.root / "page.html").read_bytes())
        self.refuses("report", out, "--format", "csv", "--out", out, mentions=["not empty"])

    def test_report_of_the_allocators_history(self):
        out = self.replay("run", "--trace", SAMPLE, "--requests", "20", "--detail", "allocator")
        done = self.run_oomcast("report", out, "--format", "memory_viz", "--out", "copy.pickle")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.root / "copy.pickle").read_bytes(), (out / "snapshot.pickle").read_bytes())
        plain = self.replay("plain", "--trace", SAMPLE, "--requests", "20")
        self.refuses("report", plain, "--format", "memory_viz", mentions=["--detail allocator"])

    def test_comparison(self):
        before = self.replay("before", "--trace", SAMPLE, "--requests", "50")
        after = self.replay("after", "--trace", SAMPLE, "--requests", "60")
        done = self.run_oomcast("report", before, "--compare", after, "--out", "both.html")
        self.assertEqual(done.returncode, 0, done.stderr)
        page = (self.root / "both.html").read_text()
        for record in (before, after):
            self.assertIn(json.loads((record / "record.json").read_text())["digest"], page)

    def test_report_of_what_is_none(self):
        out = self.replay("run", "--trace", SAMPLE, "--requests", "20")
        self.refuses("report", mentions=["RECORD"])
        self.refuses("report", "nowhere", mentions=["nowhere", "folder of a replay"])
        self.refuses("report", out, "--format", "htm", "--compare", "nowhere", mentions=["--format", "html"])
        self.refuses("report", SAMPLE, mentions=["valid JSON"])
        whole = (out / "timeline.csv").read_text()
        (out / "timeline.csv").write_text(whole[:len(whole) // 2])
        self.refuses("report", out, "--out", "x.html", mentions=["timeline.csv", "line"])
        (out / "timeline.csv").unlink()
        self.refuses("report", out, "--out", "x.html", mentions=["timeline.csv"])

    def test_unknown_detail(self):
        self.refuses("replay", *LLAMA, "--trace", SAMPLE, "--detail", "alocator",
                     mentions=["--detail", "classes, allocator", "alocator"])

    def test_exit_3_when_it_does_not_fit(self):
        words = ["--launch", "vllm serve Qwen/Qwen3-14B", "--gpu", "RTX4090"]
        self.assertEqual(self.run_oomcast("plan", *words).returncode, 3)
        done = self.run_oomcast("replay", *words, "--trace", SAMPLE, "--out", "r")
        self.assertEqual(done.returncode, 3, done.stderr)
        record = json.loads((self.root / "r" / "record.json").read_text())
        self.assertFalse(record["outcome"]["fits"])

    def test_brief(self):
        def brief(*words, github=None):
            env = {k: v for k, v in os.environ.items() if k != "GITHUB_ACTIONS"}
            env.update({"GITHUB_ACTIONS": github} if github else {})
            done = subprocess.run([PROGRAM, *map(str, words), "--brief"], capture_output=True,
                                  check=False, cwd=self.root, env=env, text=True)
            return done.returncode, done.stdout
        plan = json.loads(self.run_oomcast("plan", *LLAMA, "--json").stdout)
        tokens = plan["engine_report"]["kv_tokens"]
        rank = plan["ranks"][0]
        free = (rank["total_bytes"] - sum(rank["at_ready"].values())) / 2**30
        fits = f"fits: {tokens:,} KV tokens, {free:.2f} GiB free\n"
        self.assertEqual(brief("plan", *LLAMA), (0, fits))
        self.assertEqual(brief("plan", *LLAMA, github="true"), (0, fits))

        small = ["plan", "--launch", "vllm serve Qwen/Qwen3-14B", "--gpu", "RTX4090"]
        outcome = json.loads(self.run_oomcast(*small, "--json").stdout)["outcome"]
        code, line = brief(*small)
        self.assertEqual((code, line.count("\n")), (3, 1))
        for word in ("does not fit: ", outcome["kind"], outcome["phase"], outcome["class"]):
            self.assertIn(word, line)
        for fix in outcome["fixes"][:1]:
            self.assertTrue(line.endswith(f"; try {fix['change']}\n"))
        self.assertEqual(brief(*small, github="true"),
                         (3, f"{line}::error title=oomcast::{line}"))
        self.assertEqual(brief(*small, github="false"), (3, line))

        code, line = brief("replay", *LLAMA, SAMPLE, "--requests", "20", "--out", "r")
        self.assertEqual(code, 0)
        self.assertTrue(line.startswith("fits: 20 of 20 requests served, KV peak "), line)
        self.assertEqual(line.count("\n"), 1)
        self.refuses("plan", *LLAMA, "--json", "--brief", mentions=["--brief", "--json"])

    def test_summary_shows_the_run_over_time(self):
        """Each strip against timeline.csv: the most of its slice, a full bar the most of all."""
        out = self.replay("run", "--trace", SAMPLE, "--rate-scale", "20")
        lines = (out / "summary.txt").read_text().splitlines()
        self.assertLess(len(lines), 60)
        rows = read_csv(out / "timeline.csv")
        end = max(float(row["time_s"]) for row in rows) + 1e-9
        for name, column in (("KV in use", "kv_used_bytes"), ("running", "running"),
                             ("waiting", "waiting"), ("step tokens", "step_tokens")):
            most = [0] * 64
            for row in rows:
                slice_ = min(int(float(row["time_s"]) / end * 64), 63)
                most[slice_] = max(most[slice_], int(row[column]))
            peak = max(most)
            self.assertGreater(peak, 0, name)
            bars = "".join(" ▁▂▃▄▅▆▇█"[-(-value * 8 // peak)] for value in most)
            line = next(line for line in lines if line.startswith(f"  {name} "))
            self.assertEqual(line[14:78], bars, name)
            if column != "kv_used_bytes":
                self.assertEqual(line[80:], f"{peak:,}")

    def test_prefill_and_decode_servers(self):
        words = [SAMPLE, "--requests", 60, "--prefill", PREFILL + " --tp 2", "--decode",
                 DECODE + " --tp 2", "--gpu", "H100-80GB", "--prefill-replicas", 2, "--inject", "kill prefill 0 at 5s"]
        runs = []
        for name, more in (("jumps", []), ("steps", ["--step-by-step"])):
            done = self.run_oomcast("replay", *words, "--out", self.root / name, *more)
            self.assertEqual(done.returncode, 0, done.stderr)
            runs.append({file.name: file.read_bytes() for file in (self.root / name).iterdir()
                         if file.suffix == ".csv"})
        self.assertEqual(runs[0], runs[1])
        config = json.loads((self.root / "jumps" / "config.resolved.json").read_text())
        modes = [side["launch"]["flags"]["disaggregation-mode"]["value"]
                 for side in (config, config["decode"])]
        self.assertEqual(modes, ["prefill", "decode"])
        rows = read_csv(self.root / "jumps" / "timeline.csv")
        self.assertEqual({row["rank"] for row in rows}, {"0", "2", "4"})
        leaves = [name for name in rows[0] if "." in name]
        for row in rows:
            self.assertEqual(sum(int(row[leaf]) for leaf in leaves), int(row["device_used_bytes"]))
        requests = read_csv(self.root / "jumps" / "requests.csv")
        self.assertEqual({row["outcome"] for row in requests}, {"finished"})
        summary = (self.root / "jumps" / "summary.txt").read_text()
        for word in ("prefill", "decode", "Transfers over ib-ndr", "injected: kill prefill 0"):
            self.assertIn(word, summary)

    def test_lists(self):
        for kind in ("models", "gpus", "links", "engines", "formats"):
            done = self.run_oomcast("list", kind, "--json")
            self.assertEqual(done.returncode, 0)
            self.assertGreater(len(json.loads(done.stdout)), 0)
        engines = json.loads(self.run_oomcast("list", "engines", "--json").stdout)
        self.assertEqual([row["name"] for row in engines], ["vllm", "sglang", "trtllm"])

    # ---- what is refused ------------------------------------------------------------------------

    def test_unknown_names_offer_the_nearest(self):
        self.refuses("plna", mentions=["plan"])
        self.refuses("plan", "--lunch", "x", mentions=["--launch"])
        self.refuses("plan", *LLAMA[:2], "--gpu", "H10-80GB", mentions=["H100-80GB"])
        self.refuses("plan", "--gpu", "H100", "--launch",
                     "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seq-s 4",
                     mentions=["max-num-seqs"])
        self.refuses("plan", "--gpu", "H100", "--launch", "vllm serve meta-llama/Lama-3.1-8B-Instruct",
                     mentions=["meta-llama/Llama-3.1-8B-Instruct", "--model-config"])
        self.refuses("list", "modles", mentions=["models"])

    def test_numbers_of_clients_that_nothing_follows(self):
        launch = ("--launch", "vllm serve Qwen/Qwen3-8B", "--gpu", "L40S")
        self.refuses("limit", *launch, "--worst-case", "--find", "concurrency",
                     mentions=["concurrency", "worst case"])
        self.refuses("replay", *launch, "--closed-loop", "4", "--synthetic",
                     "closed:clients=3,requests=20,input=10,output=5", mentions=["clients=N"])

    def test_options_without_a_value_or_with_a_wrong_one(self):
        self.refuses("plan", *LLAMA, "--seed", "x", mentions=["--seed: ", "one value, N", "'x'"])
        self.refuses("plan", "--launch", mentions=["--launch: ", "one value, LINE"])
        self.refuses("plan", *LLAMA, "--gpu", "H200", mentions=["--gpu: ", "one value, GPU"])
        self.refuses("plan", *LLAMA, "--json=yes", mentions=["--json: ", "no value"])
        self.refuses("replay", *LLAMA, SAMPLE, "--trace-format", "azur", mentions=["azure"])

    def test_all_problems_at_once(self):
        message = self.refuses("plan", "--gpu", "nothing", "--launch",
                               "vllm serve Qwen/Qwen3-8B --max-num-seqs x --block-size 9999999999999",
                               "--assume", "what=1")
        self.assertGreaterEqual(len(message.splitlines()), 4)

    def test_pairs_that_cannot_work(self):
        def refuses(*words, mentions, prefill=PREFILL, decode=DECODE):
            self.refuses("replay", SAMPLE, "--prefill", prefill, "--decode", decode, "--gpu",
                         "H100-80GB", *words, mentions=mentions)
        self.refuses("replay", SAMPLE, "--prefill", PREFILL, "--gpu", "H100", mentions=["--decode"])
        self.refuses("replay", SAMPLE, "--launch", PREFILL, "--gpu", "H100",
                     mentions=["--prefill LINE --decode LINE"])
        refuses("--launch", PREFILL, mentions=["either --launch"])
        refuses(prefill=DECODE, mentions=["--disaggregation-mode prefill"])
        refuses(decode=DECODE.replace("Qwen3-8B", "Qwen3-4B"), mentions=["Qwen/Qwen3-8B"])
        refuses(decode=DECODE + " --kv-cache-dtype fp8_e4m3", mentions=["--kv-cache-dtype"])
        refuses(decode=DECODE + " --page-size 32", mentions=["Page size mismatch"])
        refuses(decode="vllm serve Qwen/Qwen3-8B", mentions=["vllm", "sglang"])
        refuses("--prefill-replicas", 0, mentions=["from 1 to"])
        refuses("--interconnect", "ib-nrd", mentions=["ib-ndr"])
        refuses("--interconnect", "nvlink", "--prefill-replicas", 8, mentions=["ib-ndr", "node"])
        refuses("--inject", "kill prefill 3 at 1s", mentions=["a prefill server from 0 to 0"])
        refuses("--inject", "kill it", "--inject", "drop decode 0 at 1",
                mentions=["kill it", "drop decode 0 at 1"])
        refuses("--inject", "slow prefill 0 to 1e-9% at 1s", mentions=["from 0.01 to 100"])
        refuses("--detail", "allocator", mentions=["classes"])
        refuses(prefill="", mentions=["--prefill: expected a line"])
        refuses(decode=DECODE + " --dp 2", mentions=["--decode: --data-parallel-size"])
        refuses(decode=DECODE + " --disaggregation-transfer-backend carrier-pigeon",
                mentions=["carrier-pigeon", "mooncake"])
        refuses("--decode-gpu", "H10", mentions=["--decode-gpu: found `H10`"])
        nixl = ("vllm serve Qwen/Qwen3-8B --kv-transfer-config "
                '\'{"kv_connector":"NixlConnector","kv_role":"kv_%s"}\'')
        refuses(prefill=nixl % "consumer", decode=nixl % "consumer", mentions=["kv_producer"])
        refuses(prefill=nixl % "producer", decode=nixl % "consumer" + " -tp 3",
                mentions=["--decode: --tensor-parallel"])
        refuses(prefill=nixl % "producer", decode=nixl.replace("Nixl", "Mooncake") % "consumer",
                mentions=["NixlConnector"])

    def test_what_both_servers_share_is_refused_once(self):
        message = self.refuses("replay", SAMPLE, "--prefill", PREFILL, "--decode", DECODE, "--gpu",
                               "H10", mentions=["--gpu: found `H10`"])
        self.assertEqual(message.count("found `H10`"), 1)

    def test_one_server_has_no_use_for_options_of_a_pair(self):
        for words in (["--decode-replicas", 2], ["--inject", "kill decode 0 at 1s"],
                      ["--interconnect", "nvlink"], ["--decode-gpu", "H200"],
                      ["--router", "round-robin"], ["--nics-per-node", 1]):
            self.refuses("replay", SAMPLE, *LLAMA, *words,
                         mentions=[words[0], "--prefill LINE and --decode LINE"])

    def test_other_engines_are_planned_and_replayed(self):
        for line in ("python -m sglang.launch_server --model-path Qwen/Qwen3-8B",
                     "trtllm-serve Qwen/Qwen3-8B"):
            with self.subTest(line=line):
                done = self.run_oomcast("plan", "--gpu", "H100", "--launch", line, "--json")
                self.assertEqual(done.returncode, 0, done)
                self.assertGreater(json.loads(done.stdout)["engine_report"]["kv_tokens"], 100000)
                done = self.run_oomcast("replay", "--gpu", "H100", "--launch", line, SAMPLE,
                                        "--requests", "20", "--json")
                self.assertEqual(done.returncode, 0, done)
                self.assertEqual(json.loads(done.stdout)["totals"]["finished"], 20)

    def test_bad_traces(self):
        good = SAMPLE.read_bytes()
        traces = {
            "empty": b"",
            "junk": bytes(range(256)) * 64,
            "columns": b"a,b,c\n1,2,3\n",
            "truncated.gz": gzip.compress(good)[:2000],
            "nan": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,nan,5\n",
            "negative": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,-3,5\n",
            "huge": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,"
                    b"99999999999999999999,5\n",
            "cells": b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + b"x" * 100_000 + b",1,1\n",
        }
        for name, content in traces.items():
            path = self.root / name
            path.write_bytes(content)
            with self.subTest(name):
                message = self.refuses("replay", *LLAMA, "--trace", path, "--out", "out",
                                       mentions=[name])
                self.assertLess(len(message), 2000)
        self.refuses("replay", *LLAMA, "--trace", "no-such-file", "--out", "out",
                     mentions=["no-such-file"])

    def test_a_workload_behind_a_warm_up_is_counted_although_it_never_came(self):
        out = self.root / "late"
        warm_up = self.root / "warm.csv"
        warm_up.write_text("arrival_s,input_tokens,output_tokens\n0,100,5\n")
        done = self.run_oomcast("replay", *LLAMA, "--assume", "available_kv_gib=0.5", "--out", out,
                                "--synthetic", "batch:requests=7,input=10,output=10",
                                "--warm-up", warm_up)
        self.assertEqual(done.returncode, 3, done)
        totals = json.loads((out / "record.json").read_text())["totals"]
        self.assertEqual((totals["requests"], totals["unfinished"]), (7, 7))
        self.assertEqual(len(read_csv(out / "requests.csv")), 7)

    def test_workload_options_without_a_workload(self):
        self.refuses("sweep", *LLAMA, "--vary", "max-num-seqs=1,2", "--timeout", "2",
                     mentions=["--timeout", "--trace or --synthetic"])
        self.refuses("limit", *LLAMA, "--find", "max-num-seqs", "--worst-case", "--prompt-scale",
                     "2", mentions=["--prompt-scale"])
        self.refuses("limit", *LLAMA, "--find", "prompt-scale", "--worst-case",
                     mentions=["--find", "prompt-scale"])

    def test_bad_configs(self):
        configs = {
            "deep.json": "[" * 10_000 + "]" * 10_000,
            "other.json": json.dumps({"train_batch_size": 8, "optimizer": "adam"}),
            "keys.json": json.dumps({"architectures": ["LlamaForCausalLM"], "hidden_size": 4096}),
            "text.json": "not json",
            "huge.json": json.dumps({"architectures": ["LlamaForCausalLM"], "hidden_size": 10**18,
                                     "num_hidden_layers": 10**9, "num_attention_heads": 32,
                                     "intermediate_size": 1, "vocab_size": 32000}),
        }
        for name, content in configs.items():
            path = self.root / name
            path.write_text(content)
            with self.subTest(name):
                self.refuses("plan", *LLAMA, "--model-config", path, mentions=[name])

    def test_outputs_that_cannot_be_written(self):
        (self.root / "full").mkdir()
        (self.root / "full" / "kept").write_text("mine")
        self.refuses("replay", *LLAMA, "--trace", SAMPLE, "--out", "full", mentions=["full"])
        self.refuses("replay", *LLAMA, "--trace", SAMPLE, "--out", "/proc/nowhere/x",
                     mentions=["/proc/nowhere/x"])
        if os.path.exists("/dev/full"):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([PROGRAM, "plan", *LLAMA], stdout=full, check=False,
                                      stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 2)

    def test_a_kill_leaves_nothing(self):
        before = sorted(self.root.rglob("*"))
        running = subprocess.Popen(
            [PROGRAM, "replay", *LLAMA, "--out", "r", "--synthetic",
             "poisson:rate=400,requests=5000000,input=fixed(2000),output=fixed(300)"],
            cwd=self.root, stderr=subprocess.PIPE)
        while sorted(self.root.rglob("*")) == before:
            self.assertIsNone(running.poll())
            time.sleep(0.01)
        running.terminate()
        _, message = running.communicate()
        self.assertEqual(running.returncode, 130, message)
        self.assertEqual(sorted(self.root.rglob("*")), before)

    def test_flags_that_are_not_modelled_are_not_ignored(self):
        line = "vllm serve Qwen/Qwen3-8B "
        for flags in ("--runner pooling", "--prefill-context-parallel-size 2",
                      "--offload-group-size 8"):
            with self.subTest(flags):
                self.refuses("plan", "--gpu", "H100", "--launch", line + flags,
                             mentions=[flags.split()[0]])
        done = self.run_oomcast("plan", "--gpu", "H100", "--json", "--launch",
                                line + "--enable-sleep-mode --port 8000")
        plan = json.loads(done.stdout)
        self.assertTrue(any("--enable-sleep-mode" in w for w in plan["warnings"]))
        self.assertTrue(any("port" in n for n in plan["notes"]))

    def test_overrides_change_the_config(self):
        def weights(line):
            done = self.run_oomcast("plan", "--gpu", "H100", "--json", "--launch", line)
            return json.loads(done.stdout)["engine_report"]["weights_gib"]
        layer = 2 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 12288 + 2 * 4096 + 2 * 128) / 2**30
        for line in ("vllm serve Qwen/Qwen3-8B --hf-overrides '{\"num_hidden_layers\": 4}'",
                     "python -m sglang.launch_server --model-path Qwen/Qwen3-8B "
                     "--json-model-override-args '{\"num_hidden_layers\": 4}'"):
            with self.subTest(line):
                self.assertAlmostEqual(weights(line.split(" --hf")[0].split(" --json")[0])
                                       - weights(line), 32 * layer, delta=0.01)
        self.refuses("plan", "--gpu", "H100", "--launch",
                     "vllm serve Qwen/Qwen3-8B --hf-overrides '{\"num_hidden_layers\": -4}'",
                     mentions=["num_hidden_layers"])

    def test_sizes_need_units(self):
        self.refuses("plan", *LLAMA, "--gpu-total", "79.19", mentions=["79.19GiB"])

    def test_bad_calibrations(self):
        path = self.root / "c.json"
        for content in ({"schema": "x"}, {"schema": "oomcast.calibration/1", "gpu": "NVIDIA L40S"},
                        {"schema": "oomcast.calibration/1", "gpu": "NVIDIA H100 80GB HBM3",
                         "memory": {"context_mib": -1}, "step_tim": {}}):
            path.write_text(json.dumps(content))
            with self.subTest(str(content)):
                self.refuses("plan", *LLAMA, "--calibration", path, mentions=["c.json"])


if __name__ == "__main__":
    unittest.main()
