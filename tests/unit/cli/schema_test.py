#!/usr/bin/python3
"""Everything that is written, held against its JSON Schema: real outputs of many deployments, no key
that the schema does not describe, and outputs spoilt one way or another that it must refuse.

    schema_test.py PROGRAM
"""
import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import jsonschema

PROGRAM = os.path.abspath(sys.argv.pop(1))
ROOT = pathlib.Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "workloads" / "samples" / "azure_conv_500.csv"
SCHEMAS = {path.name.split(".")[0]: json.loads(path.read_text())
           for path in sorted((ROOT / "sim" / "report" / "schemas").glob("*.schema.json"))}

# Engines, families, parallel layouts, and deployments that end in each phase.
PLANS = {
    "dense": ["vllm serve Qwen/Qwen3-8B", "H100"],
    "old": ["docker run vllm/vllm-openai:v0.11.0 --model meta-llama/Llama-3.1-8B-Instruct", "A100"],
    "parallel": ["vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 2 -pp 2", "H100"],
    "experts": ["vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --enable-expert-parallel", "H200"],
    "eager": ["vllm serve Qwen/Qwen3-8B --enforce-eager --kv-cache-dtype fp8", "L40S"],
    "short of KV": ["vllm serve Qwen/Qwen3-8B", "RTX4090"],
    "too large": ["vllm serve meta-llama/Llama-3.1-70B-Instruct", "RTX4090"],
    "sglang": ["python -m sglang.launch_server --model-path Qwen/Qwen3-8B", "H100"],
    "trtllm": ["trtllm-serve Qwen/Qwen3-8B", "H100"],
}

# Prefill and decode servers.
PAIRS = {
    "sglang": ["python -m sglang.launch_server --model-path Qwen/Qwen3-8B --disaggregation-mode " +
               role for role in ("prefill", "decode")],
    "vllm": ["vllm serve Qwen/Qwen3-8B --kv-transfer-config "
             '\'{"kv_connector":"NixlConnector","kv_role":"kv_%s"}\'' % role
             for role in ("producer", "consumer")],
}


def closed(schema):
    """The schema with every object that names its keys refusing any other."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: closed(value) for key, value in schema.items()}
    if out.get("type") == "object" and isinstance(out.get("properties"), dict):
        out.setdefault("additionalProperties", False)
    return out


def validator(name, edit=lambda schema: schema):
    store = {schema["$id"]: edit(schema) for schema in SCHEMAS.values()}
    schema = edit(SCHEMAS[name])
    resolver = jsonschema.RefResolver(schema["$id"], schema, store=store)
    return jsonschema.Draft202012Validator(schema, resolver=resolver)


class Schemas(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def oomcast(self, *words):
        done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, check=False,
                              cwd=self.root, text=True)
        self.assertIn(done.returncode, (0, 3), done.stderr)
        return done.stdout

    def json_of(self, *words):
        return json.loads(self.oomcast(*words, "--json"))

    def holds(self, name, value):
        self.assertEqual(value["schema"], f"oomcast.{name}/1")
        for edit in (lambda schema: schema, closed):
            errors = [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}"
                      for error in validator(name, edit).iter_errors(value)]
            self.assertEqual(errors, [])
        return value

    def test_schemas_are_schemas_and_listed(self):
        for name, schema in SCHEMAS.items():
            jsonschema.Draft202012Validator.check_schema(schema)
            self.assertEqual(schema["$id"], f"urn:oomcast:{name}:1")
            self.assertEqual(json.loads(self.oomcast("schema", name)), schema)
        self.assertEqual([row["name"] for row in self.json_of("list", "schemas")], list(SCHEMAS))

    def test_plans(self):
        kinds = set()
        for name, (line, gpu) in PLANS.items():
            with self.subTest(name):
                plan = self.holds("plan", self.json_of("plan", "--launch", line, "--gpu", gpu))
                kinds.add(plan["outcome"]["kind"])
        self.assertTrue({"served", "kv_too_small", "startup_oom"} <= kinds, kinds)
        line, gpu = PLANS["parallel"]
        self.holds("plan", self.json_of("plan", "--launch", line, "--gpu", gpu, "--explain-peak"))

    def test_folders(self):
        for name, (line, gpu) in PLANS.items():
            out = self.root / name
            with self.subTest(name):
                self.oomcast("plan", "--launch", line, "--gpu", gpu, "--out", out)
                self.holds("plan", json.loads((out / "plan.json").read_text()))
                self.holds("config", json.loads((out / "config.resolved.json").read_text()))

    def test_records(self):
        tight = ("vllm serve meta-llama/Llama-3.1-8B-Instruct --enforce-eager --max-model-len 16384 "
                 "--max-num-batched-tokens 16384 --max-num-seqs 16 "
                 "--kv-cache-memory-bytes 65712999628")
        runs = {
            "served": [*PLANS["dense"], []],
            "stages": [*PLANS["parallel"], ["--detail", "allocator"]],
            "sglang": [*PLANS["sglang"], []],
            "trtllm": [*PLANS["trtllm"], []],
            "died at start": [*PLANS["too large"], []],
            "died": [tight, "H100", ["--detail", "allocator", "--engine-version", "0.19.0"]],
        }
        for name, (line, gpu, more) in runs.items():
            workload = ([SAMPLE, "--requests", 20] if name != "died" else
                        ["--synthetic", "poisson:rate=20,requests=200,input=uniform(100,16000),"
                                        "output=uniform(2,50)"])
            with self.subTest(name):
                self.oomcast("replay", *workload, "--launch", line, "--gpu", gpu, "--out", name,
                             *more)
                record = json.loads((self.root / name / "record.json").read_text())
                self.holds("record", record)
                self.assertEqual(record["outcome"]["fits"], not name.startswith("died"))

    def test_clusters(self):
        for name, (prefill, decode) in PAIRS.items():
            with self.subTest(name):
                self.oomcast("replay", SAMPLE, "--requests", 50, "--prefill", prefill, "--decode",
                             decode, "--decode-replicas", 2, "--gpu", "H100", "--out", name,
                             "--inject", "kill decode 1 at 3s")
                record = self.holds("record", json.loads(
                    (self.root / name / "record.json").read_text()))
                self.assertEqual([rank["role"] for rank in record["ranks"]],
                                 ["prefill", "decode", "decode"])
                self.assertEqual(len(record["cluster"]["servers"]), 3)

    def test_explanations_and_calibrations(self):
        log = ROOT / "tests" / "data" / "logs" / "llama_h100.log"
        self.holds("explain", self.json_of("explain", log))
        self.holds("calibration", self.json_of("calibrate", "--from-log", log, "--out", "."))
        samples = sorted((ROOT / "validation" / "samples").glob("*.json"))
        from_probes = ["--from-probes", "--replay-samples", *samples, "--out", "."]
        self.holds("calibration", self.json_of("calibrate", *from_probes))
        self.holds("calibration", self.json_of("calibrate", "--from-log", log, *from_probes))
        self.holds("plan", self.json_of("plan", "--launch", PLANS["dense"][0], "--gpu", "H100",
                                        "--calibration", "calibration-NVIDIA-H100-80GB-HBM3.json"))
        quotes = (ROOT / "tests" / "data" / "logs" / "quotes.jsonl").read_text().splitlines()
        read = 0
        for line in quotes:
            text = max((value for value in json.loads(line).values() if isinstance(value, str)),
                       key=len)
            (self.root / "quote.log").write_text(text)
            done = subprocess.run([PROGRAM, "explain", "quote.log", "--json"], cwd=self.root,
                                  capture_output=True, check=False, text=True)
            if done.returncode != 2:  # 2: no line of an engine in it
                read += 1
                with self.subTest(text[:80]):
                    self.holds("explain", json.loads(done.stdout))
        self.assertGreater(read, 5)

    def test_comparisons(self):
        dense, old = PLANS["dense"][0], PLANS["old"][0]
        for words in ([dense, dense + " --enforce-eager --max-num-seqs 8", "--gpu", "H100"],
                      [dense, "vllm serve Qwen/Qwen3-8B --no-enable-chunked-prefill "
                       "--max-num-batched-tokens 40960", "--gpu", "H100"],
                      [dense, PLANS["sglang"][0], "--gpu", "H100"],
                      [old, dense, "--gpu", "H100", "--gpu-b", "RTX4090"]):
            self.holds("compare", self.json_of("compare", *words))
        for run in "ab":
            self.oomcast("replay", SAMPLE, "--requests", 5, "--launch", dense, "--gpu", "H100",
                         "--out", run)
        self.holds("compare", self.json_of("compare", "a", "b"))

    def test_spoilt_outputs_are_refused(self):
        line, gpu = PLANS["short of KV"]
        plan = self.holds("plan", self.json_of("plan", "--launch", line, "--gpu", gpu))
        spoils = {
            "schema": lambda p: p.update(schema="oomcast.plan/2"),
            "engine": lambda p: p.update(engine="other"),
            "no ranks": lambda p: p.pop("ranks"),
            "text for bytes": lambda p: p["ranks"][0].update(total_bytes="80 GiB"),
            "fraction of a byte": lambda p: p["ranks"][0]["classes"].update({"kv.pool": 0.5}),
            "negative": lambda p: p["ranks"][0]["at_ready"].update({"kv.pool": -1}),
            "leaf": lambda p: p["ranks"][0]["classes"].update({"kv.other": 1}),
            "leaf gone": lambda p: p["ranks"][0]["classes"].pop("kv.pool"),
            "kind": lambda p: p["outcome"].update(kind="fine"),
            "fix": lambda p: p["outcome"]["fixes"][0].pop("change"),
        }
        for name, spoil in spoils.items():
            spoilt = copy.deepcopy(plan)
            spoil(spoilt)
            with self.subTest(name):
                self.assertFalse(validator("plan").is_valid(spoilt))

    def test_limits(self):
        line, gpu = PLANS["dense"]
        for words in (["--find", "max-num-seqs"], ["--find", "gpu-memory-utilization"],
                      ["--find", "max-model-len", "--between", "1024:8192"]):
            with self.subTest(words):
                limit = self.json_of("limit", "--launch", line, "--gpu", gpu, *words)
                self.holds("limit", limit)
                del limit["limits"][0]["first_bad"]
                self.assertFalse(validator("limit").is_valid(limit))

    def test_sweeps(self):
        line, gpu = PLANS["short of KV"]
        words = ["sweep", "--launch", line, "--gpu", gpu, "--vary", "max-model-len=8192,40960",
                 "--vary", "max-num-seqs=64..256*2"]
        plans = self.holds("sweep", self.json_of(*words, "--out", "a"))
        self.assertEqual(len(plans["points"]), 6)
        self.holds("sweep", self.json_of(*words, "--trace", SAMPLE, "--requests", 5, "--out", "b"))


if __name__ == "__main__":
    unittest.main()
