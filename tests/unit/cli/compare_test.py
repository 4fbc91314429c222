#!/usr/bin/env python3
"""oomcast compare: differences against two plans, shares that sum, refused changes, run folders.

    compare_test.py PROGRAM
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))
ROOT = pathlib.Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "workloads" / "samples" / "azure_conv_500.csv"
QWEN = "vllm serve Qwen/Qwen3-8B"
CARD = ["--gpu", "H100-80GB", "--engine-version", "0.19.0"]


def figures(side):
    """Numbers of a side or a difference, flat."""
    flat = dict(side["classes"])
    for name in ("kv_tokens", "free_bytes", "device_peak_bytes"):
        flat[name] = side[name]
    return flat


def total(parts):
    parts = [figures(part) for part in parts]
    return {name: sum(part[name] for part in parts) for name in parts[0]}


class Compare(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def oomcast(self, *words):
        return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, check=False,
                              cwd=self.root, text=True)

    def compare(self, *words, code=0):
        done = self.oomcast(*words, "--json")
        self.assertEqual(done.returncode, code, done.stderr)
        return json.loads(done.stdout)

    def test_difference_is_that_of_the_plans(self):
        b = QWEN + " --kv-cache-dtype fp8 --max-num-seqs 64 --enforce-eager"
        result = self.compare("compare", QWEN, b, *CARD)
        plans = [json.loads(self.oomcast("plan", "--launch", line, *CARD, "--json").stdout)
                 for line in (QWEN, b)]
        for side, plan in zip((result["a"], result["b"]), plans):
            self.assertEqual(side["classes"], plan["ranks"][0]["classes"])
            self.assertEqual(side["kv_tokens"], plan["engine_report"]["kv_tokens"])
        left, right = figures(result["a"]), figures(result["b"])
        for name, value in figures(result["difference"]).items():
            self.assertEqual(value, right[name] - left[name], name)

    def test_shares_sum_to_the_difference(self):
        b = ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True " + QWEN +
             " --kv-cache-dtype fp8 --max-num-seqs 64 --max-num-batched-tokens 16384 --dtype auto"
             " --gpu-memory-utilization 0.8")
        result = self.compare("compare", QWEN, b, *CARD)
        names = [change["change"].split()[0] for change in result["changes"]]
        self.assertEqual(names, ["PYTORCH_CUDA_ALLOC_CONF", "--dtype", "--gpu-memory-utilization",
                                 "--kv-cache-dtype", "--max-num-batched-tokens", "--max-num-seqs"])
        difference = figures(result["difference"])
        self.assertEqual(total(change["in_order"] for change in result["changes"]), difference)
        alone = total(change["alone"] for change in result["changes"])
        beyond = figures(result["interaction"])
        self.assertEqual({name: alone[name] + beyond[name] for name in alone}, difference)
        for change in result["changes"]:
            self.assertEqual(total([change["alone"], change["interaction"]]),
                             figures(change["in_order"]))
        # Nothing comes before the first, so it does what it does alone.
        self.assertFalse(any(figures(result["changes"][0]["interaction"]).values()))
        by_name = dict(zip(names, result["changes"]))
        self.assertFalse(any(figures(by_name["--dtype"]["in_order"]).values()))
        # A byte instead of two an element: twice the tokens in the same pool.
        kv = by_name["--kv-cache-dtype"]["alone"]["kv_tokens"]
        self.assertAlmostEqual(kv / result["a"]["kv_tokens"], 1.0, delta=0.01)

    def test_a_change_that_is_refused_alone_waits_for_others(self):
        b = QWEN + " --no-enable-chunked-prefill --max-num-batched-tokens 40960"
        result = self.compare("compare", QWEN + " --max-num-batched-tokens 8192", b, *CARD)
        names = [change["change"].split()[0] for change in result["changes"]]
        self.assertEqual(names, ["--max-num-batched-tokens", "--enable-chunked-prefill"])
        self.assertIsNone(result["changes"][1]["alone"])
        self.assertIsNone(result["interaction"])
        self.assertEqual(total(change["in_order"] for change in result["changes"]),
                         figures(result["difference"]))

    def test_version_card_and_model(self):
        a = "docker run vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B"
        b = "docker run vllm/vllm-openai:v0.19.0 --model Qwen/Qwen3-14B"
        result = self.compare("compare", a, b, "--gpu", "H100", "--gpu-b", "H200")
        names = [change["change"].split()[0] for change in result["changes"]]
        self.assertEqual(names, ["vllm", "card", "model"])
        self.assertEqual(total(change["in_order"] for change in result["changes"]),
                         figures(result["difference"]))

    def test_the_same_twice(self):
        result = self.compare("compare", QWEN, QWEN + " --port 8000", *CARD)
        self.assertEqual(result["changes"], [])
        self.assertFalse(any(figures(result["difference"]).values()))

    def test_exit_code_is_that_of_b(self):
        big = "vllm serve Qwen/Qwen3-14B"
        result = self.compare("compare", QWEN, big, "--gpu", "RTX4090", code=3)
        self.assertNotEqual(result["b"]["outcome"], "served")
        self.compare("compare", big, QWEN + " --max-model-len 8192", "--gpu", "RTX4090")

    def test_spellings(self):
        (self.root / "b.txt").write_text(QWEN + " --max-num-seqs 64")
        by_word = self.oomcast("compare", QWEN, "@b.txt", *CARD)
        self.assertEqual(by_word.returncode, 0, by_word.stderr)
        self.assertIn("--max-num-seqs automatic -> 64", by_word.stdout)
        for words in (["plan", "--compare", QWEN, "@b.txt"],
                      ["plan", "--launch", QWEN, "--compare", "@b.txt"],
                      ["compare", "@b.txt", "--launch", QWEN]):
            self.assertEqual(self.oomcast(*words, *CARD).stdout, by_word.stdout)

    def test_run_folders(self):
        for name, flags in (("a", ""), ("b", " --max-num-seqs 8")):
            self.assertEqual(self.oomcast("replay", SAMPLE, "--requests", 50, "--launch",
                                          QWEN + flags, *CARD, "--out", name).returncode, 0)
            self.oomcast("plan", "--launch", QWEN + flags, *CARD, "--out", "plan-" + name)
        runs = self.compare("compare", "a", "b/record.json")
        self.assertEqual([c["change"] for c in runs["changes"]],
                         ["--max-num-seqs automatic -> 8"])
        self.assertEqual(runs["a"]["totals"]["finished"], 50)
        plans = self.compare("compare", "plan-a", "plan-b")
        self.assertEqual(plans["difference"], runs["difference"])
        self.assertEqual(plans["changes"], runs["changes"])
        line = self.compare("compare", "a", QWEN + " --max-num-seqs 8", *CARD)
        self.assertEqual(line["difference"], runs["difference"])
        text = self.oomcast("compare", "a", "b").stdout
        self.assertIn("requests finished", text)
        self.assertIn("requests given up", text)

    def test_what_is_refused(self):
        def refuses(*words, mentions):
            done = self.oomcast(*words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done)
            for word in mentions:
                self.assertIn(word, done.stderr)
        refuses("compare", QWEN, *CARD, mentions=["two launch lines"])
        refuses("compare", QWEN, QWEN, QWEN, *CARD, mentions=["3 given"])
        refuses("compare", "no-such", "nor-this", mentions=["no-such", "nor-this", "run folder"])
        refuses("compare", QWEN, QWEN, mentions=["--gpu"])
        refuses("compare", QWEN + " --max-num-seqz 4", QWEN + " --block-sise 16", *CARD,
                mentions=["max-num-seqs", "block-size"])
        refuses("compare", QWEN, QWEN, "--gpu", "H100", "--gpu-b", "H200", "--gpu-total", "79GiB",
                mentions=["--gpu-total", "--gpu-b"])
        (self.root / "empty").mkdir()
        plan = json.loads(self.oomcast("plan", "--launch", QWEN, *CARD, "--json").stdout)
        broken = {
            "text.json": "no JSON",
            "list.json": "[]",
            "other.json": json.dumps({"schema": "oomcast.calibration/1"}),
            "bare.json": json.dumps({"schema": "oomcast.plan/1"}),
            "ranks.json": json.dumps({**plan, "ranks": [1, None, {}]}),
            "kind.json": json.dumps({**plan, "outcome": "fits"}),
            "bytes.json": json.dumps(plan).replace('"model.weights": ', '"model.weights": -'),
            "launch.json": json.dumps({"schema": "oomcast.record/1", "plan": plan,
                                       "config": {"launch": {"flags": 3}}}),
            "record.json": json.dumps({"schema": "oomcast.record/1", "plan": []}),
        }
        for name, text in broken.items():
            (self.root / name).write_text(text)
            with self.subTest(name):
                refuses("compare", name, name, mentions=[name])
        refuses("compare", "empty", "empty", mentions=["empty", "record.json"])


if __name__ == "__main__":
    unittest.main()
