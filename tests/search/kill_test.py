#!/usr/bin/env python3
"""kill_test.py OOMCAST [--mpi OOMCAST_MPI]: a sweep under kill -9.

Starts the same sweep again and again and kills it after a random time, 20 times; then lets it end.
Its files must be those of a sweep that nobody disturbed, byte for byte.
"""

import argparse
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

KILLS = 20
LINE = "vllm serve Qwen/Qwen3-8B --max-model-len 8192"
SWEEP = [
    "sweep", "--launch", LINE, "--gpu", "L40S", "--engine-version", "0.19.0",
    "--vary", "max-num-seqs=16..256+16", "--vary", "max-num-batched-tokens=2048..8192+1024",
    "--vary", "gpu-memory-utilization=0.70..0.95+0.01", "--rows", "1",
]


def start(command, out):
    return subprocess.Popen(command + SWEEP + ["--out", str(out)], start_new_session=True,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def kill_all(process, session):
    """Every process of the job; mpirun puts its children into groups of their own."""
    pids = subprocess.run(["pgrep", "-s", str(session)], capture_output=True, text=True)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    for pid in set(pids.stdout.split() + children.stdout.split() + [str(process.pid)]):
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def same(whole, out):
    for name in ("points.csv", "sweep.json", "sweep.html"):
        if (whole / name).read_bytes() != (out / name).read_bytes():
            print(f"{name} differs from that of a sweep that was left alone")
            return False
    return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("oomcast")
    parser.add_argument("--mpi")
    options = parser.parse_args()
    command = [options.oomcast]
    if options.mpi:
        if shutil.which("mpirun") is None:
            print("no mpirun: skipped")
            return 77
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", options.mpi]
    random.seed(4)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        whole = folder / "whole"
        begin = time.monotonic()
        first = start([options.oomcast], whole)
        if first.wait() != 0:
            print(first.stderr.read())
            return 1
        usual = time.monotonic() - begin
        out = folder / "killed"
        resumed = kills = finished = 0
        while kills < KILLS:
            journal = folder / "killed.partial" / "journal"
            before = journal.stat().st_size if journal.exists() else 0
            resumed += before > 0
            process = start(command, out)
            time.sleep(random.uniform(0.02, 0.6 * usual + (0.5 if options.mpi else 0)))
            if process.poll() is None:
                kill_all(process, process.pid)
                kills += 1
                # The others of an MPI job notice within moments.
                time.sleep(0.3 if options.mpi else 0)
                if out.exists():  # the kill came after the last word, before the journal went
                    if not same(whole, out):
                        return 1
                    finished += 1
                    shutil.rmtree(out)
                    shutil.rmtree(folder / "killed.partial", ignore_errors=True)
            elif process.returncode == 0:
                finished += 1
                shutil.rmtree(out)
            else:
                message = process.stderr.read()
                if "no other process runs" in message:
                    time.sleep(0.2)  # one that was killed has not gone yet
                    continue
                print(message)
                return 1
        process = start(command, out)
        if process.wait() != 0:
            print(process.stderr.read())
            return 1
        if not same(whole, out):
            return 1
        if (folder / "killed.partial").exists():
            print("the journal was left behind")
            return 1
        print(f"{kills} kills, {resumed} starts from a journal, {finished} ended before")
        return 0 if resumed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
