#!/usr/bin/env python3
"""PyTorch's own command-line tool reads a snapshot that oomcast wrote. Opt-in: needs torch from PyPI and
OOMCAST_TORCH_TESTS=1.

    memory_viz_with_torch.py UNIT_MEMORY_VIZ
"""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77

if os.environ.get("OOMCAST_TORCH_TESTS") != "1" or importlib.util.find_spec("torch") is None:
    print("skipped: set OOMCAST_TORCH_TESTS=1 and install torch")
    sys.exit(SKIPPED)

with tempfile.TemporaryDirectory() as folder:
    snapshot = pathlib.Path(folder) / "snapshot.pickle"
    subprocess.run([sys.argv[1], "--gtest_filter=*PythonReads*"], check=True,
                   env={**os.environ, "OOMCAST_SNAPSHOT": str(snapshot)})
    viz = [sys.executable, "-m", "torch.cuda._memory_viz"]
    # The views that need nothing from the network.
    for view in ("stats", "trace"):
        done = subprocess.run([*viz, view, str(snapshot)], check=True, capture_output=True, text=True)
        assert done.stdout.strip(), view
    for view in ("trace_plot", "segment_plot"):
        page = pathlib.Path(folder) / f"{view}.html"
        subprocess.run([*viz, view, str(snapshot), "-o", str(page)], check=True)
        assert page.stat().st_size > 1000, view
print("torch.cuda._memory_viz read the snapshot")
