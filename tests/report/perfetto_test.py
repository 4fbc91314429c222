#!/usr/bin/env python3
"""trace.pftrace read with Google's protobuf: every counter equals its column of timeline.csv in every row.

    perfetto_test.py PROGRAM [--published]

By default with the part of the format in tests/data/perfetto, compiled by protoc; with --published with
the full protos of the PyPI package `perfetto`, which also show that no field is unknown. Skips (77) where
what it needs is not installed.
"""
import bisect
import csv
import importlib
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
COLUMNS = {"device used": "device_used_bytes", "torch reserved": "torch_reserved_bytes",
           "torch allocated": "torch_allocated_bytes", "pinned host": "pinned_host_bytes",
           "KV used": "kv_used_bytes", "KV cached": "kv_cached_bytes", "KV free": "kv_free_bytes",
           "running": "running", "waiting": "waiting", "step tokens": "step_tokens",
           "preemptions": "preemptions"}
SECOND = 10**9


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def protos(folder, published):
    """The module with the message Trace."""
    name = "perfetto.protos.perfetto.trace.perfetto_trace_pb2" if published else "trace_pb2"
    if not published:
        if shutil.which("protoc") is None:
            skip("protoc is not installed")
        source = ROOT / "tests" / "data" / "perfetto"
        subprocess.run(["protoc", f"--proto_path={source}", f"--python_out={folder}", "trace.proto"],
                       check=True)
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        skip(error)


def nanos(seconds):
    whole, fraction = seconds.split(".")
    return int(whole) * SECOND + int(fraction.ljust(9, "0"))


def replay(program, folder, name, flags, expected):
    out = pathlib.Path(folder) / name
    done = subprocess.run(
        [program, "replay", "--gpu", "H100-80GB", "--engine-version", "0.19.0", "--launch",
         f"vllm serve meta-llama/Llama-3.1-8B-Instruct {flags}", "--synthetic",
         "poisson:rate=40,requests=300,input=lognormal(1024,0.8),output=uniform(64,512)", "--out", out],
        stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == expected, (name, done.returncode)
    return out


class Rank:
    """One process of the trace: samples by counter, slices and instants by name."""

    def __init__(self, name):
        self.name = name
        self.samples = {}
        self.slices = []
        self.instants = []

    def at(self, counter, instant):
        times, values = self.samples[counter]
        return values[bisect.bisect_right(times, instant) - 1]


def read(trace):
    ranks, tracks = {}, {}
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            if track.HasField("process"):
                ranks[track.uuid] = Rank(track.process.process_name)
            else:
                tracks[track.uuid] = (ranks[track.parent_uuid], track)
                if track.HasField("counter"):
                    ranks[track.parent_uuid].samples[track.name] = ([], [])
            continue
        event = packet.track_event
        rank, track = tracks[event.track_uuid]
        if event.type == event.TYPE_COUNTER:
            times, values = rank.samples[track.name]
            assert not times or times[-1] <= packet.timestamp, "samples go back"
            times.append(packet.timestamp)
            values.append(event.counter_value)
        elif event.type == event.TYPE_SLICE_BEGIN:
            rank.slices.append([event.name, packet.timestamp, None])
        elif event.type == event.TYPE_SLICE_END:
            rank.slices[-1][2] = packet.timestamp
        else:
            rank.instants.append((event.name, packet.timestamp))
    return list(ranks.values())


def compare(out, ranks):
    with open(out / "timeline.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    by_rank = {}
    for row in rows:
        by_rank.setdefault(row["rank"], []).append(row)
    assert len(by_rank) == len(ranks)
    for rank, own in zip(ranks, by_rank.values()):
        phases = [name for name, _, _ in rank.slices if name != "serving"]
        start = len(phases) * SECOND
        assert all(end - begin == SECOND for name, begin, end in rank.slices if name != "serving")
        # The last row at an instant is the one that stands.
        instants = [(i + 1) * SECOND for i in range(len(phases))]
        instants += [start + nanos(row["time_s"]) for row in own[len(phases):]]
        last = {instant: row for instant, row in zip(instants, own)}
        columns = {**COLUMNS, **{name: name for name in own[0] if "." in name}}
        for counter, column in columns.items():
            if counter not in rank.samples:
                assert all(row[column] == "0" for row in own), f"{counter} is missing"
                continue
            for instant, row in last.items():
                assert rank.at(counter, instant) == int(row[column]), (counter, instant)
        preempted = sum(int(name.split()[0]) if name[0].isdigit() else 1
                        for name, _ in rank.instants if "preemption" in name)
        assert preempted == int(own[-1]["preemptions"])
    return len(rows)


def main():
    program, published = sys.argv[1], "--published" in sys.argv
    with tempfile.TemporaryDirectory() as folder:
        module = protos(folder, published)
        for name, flags, expected in (("served", "-tp 2 -pp 2 --max-model-len 8192", 0),
                                      ("preempted", "--max-model-len 8192 --gpu-memory-utilization 0.3", 0),
                                      ("failed", "--max-model-len 8192 --gpu-memory-utilization 0.99", 3)):
            out = replay(program, folder, name, flags, expected)
            trace = module.Trace()
            size = trace.ParseFromString((out / "trace.pftrace").read_bytes())
            trace.DiscardUnknownFields()
            assert trace.ByteSize() == size, "fields that the format does not have"
            ranks = read(trace)
            rows = compare(out, ranks)
            names = [instant for rank in ranks for instant, _ in rank.instants]
            assert any("preemption" in one for one in names) == (name == "preempted"), names
            assert ("startup_oom" in names or "runtime_oom" in names) == (expected == 3), names
            print(f"{name}: {len(ranks)} ranks, {len(trace.packet)} packets, {rows} rows agree")


main()
