#!/usr/bin/env python3
"""Every source is as clang-format-16 would write it."""
import subprocess
import sys

from sources import ROOT, sources

files = [str(p.relative_to(ROOT)) for p in sources(".hpp", ".cpp", ".cu")]
done = subprocess.run(["clang-format-16", "--dry-run", "-Werror", *files], cwd=ROOT, check=False,
                      capture_output=True, text=True)
sys.stdout.write(done.stderr[-4000:])
print(f"{len(files)} files; to mend: clang-format-16 -i FILE")
sys.exit(done.returncode)
