"""Reads a snapshot with Python's own pickle; prints it and what it is made of as JSON.

    read_snapshot.py FILE
"""
import json
import pickle
import pickletools
import sys

data = open(sys.argv[1], "rb").read()
snapshot = pickle.loads(data)

# Items between each mark and the append that takes them.
marks, longest, names = [], 0, set()
depth = 0
for opcode, argument, _ in pickletools.genops(data):
    names.add(opcode.name)
    if opcode.name == "MARK":
        marks.append(0)
    elif opcode.name == "APPENDS":
        longest = max(longest, marks.pop())
    elif opcode.name == "SETITEMS":
        marks.pop()
    elif marks and opcode.name in ("EMPTY_DICT", "EMPTY_LIST"):
        marks[-1] += 1

json.dump({"snapshot": snapshot, "opcodes": sorted(names), "longest_batch": longest}, sys.stdout)
