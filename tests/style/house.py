#!/usr/bin/env python3
"""House rules that no formatter knows: line length, leftovers, hash maps walked in result paths,
places of one machine."""
import re
import sys

from sources import ROOT, sources

RULES = (
    (re.compile(r"\b(TODO|FIXME|XXX|HACK)\b"), "a leftover"),
    (re.compile(r"std::(cout|cerr)"), "printing belongs to sim/cli"),
    (re.compile(r"\bassert\("), "use OOMCAST_CHECK, which stays on in release"),
    (re.compile(r"std::(mt19937|uniform_int_distribution|normal_distribution|random_device)"),
     "use sim/core/random.hpp: the standard library's differ between machines"),
    (re.compile(r"for \(.*:\s*\w*(unordered|robin)\w*"), "the order of a hash map reaches a result"),
    (re.compile(r"/(root|home|work|tmp)/"), "a place of one machine"),
)
# Programs print, and test inputs quote other people's paths.
NOT_IN_TESTS = ("printing belongs to sim/cli", "a place of one machine")
PRINTS = ("sim/cli", "tests", "validation")


def complaints(path):
    name = str(path.relative_to(ROOT))
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if len(line) > 100 and "\"" not in line:
            yield f"{name}:{number}: longer than 100 columns"
        for pattern, why in RULES:
            allowed = why in NOT_IN_TESTS and name.startswith(PRINTS)
            if pattern.search(line) and not allowed:
                yield f"{name}:{number}: {why}: {line.strip()[:80]}"


found = [c for path in sources(".hpp", ".cpp", ".cu") for c in complaints(path)]
print("\n".join(found))
print(f"{len(found)} complaints")
sys.exit(1 if found else 0)
