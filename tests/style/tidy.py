#!/usr/bin/env python3
"""clang-tidy-16 finds nothing in the library and the program.

    tidy.py BUILD_DIR

A file that passed is remembered in BUILD_DIR/tidy until it, any header of the project, or the
settings change.
"""
import concurrent.futures
import hashlib
import os
import pathlib
import subprocess
import sys

from sources import ROOT, sources


def digest(*paths):
    total = hashlib.sha256()
    for path in paths:
        total.update(path.read_bytes())
    return total.hexdigest()


def lint(build, path, key):
    mark = build / "tidy" / f"{digest(path)}-{key}"
    if mark.exists():
        return ""
    # The build's flags are g++'s; clang does not know all of them.
    done = subprocess.run(["clang-tidy-16", "--quiet", "-p", str(build),
                           "--extra-arg=-Wno-unknown-warning-option", str(path)],
                          cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        return done.stdout[-3000:] + done.stderr[-500:]
    mark.touch()
    return ""


def main():
    build = pathlib.Path(sys.argv[1])
    (build / "tidy").mkdir(exist_ok=True)
    key = digest(ROOT / ".clang-tidy", *sources(".hpp"))[:16]
    files = [p for p in sources(".cpp") if "tests" not in p.relative_to(ROOT).parts[:1]]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        complaints = [c for c in pool.map(lambda p: lint(build, p, key), files) if c]
    print("\n".join(complaints))
    print(f"{len(files)} files, {len(complaints)} with complaints")
    sys.exit(1 if complaints else 0)


main()
