"""The project's own C++ and CUDA sources."""
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("sim", "models", "workloads", "validation", "tests")


def sources(*endings):
    found = []
    for folder in FOLDERS:
        found += [p for p in (ROOT / folder).rglob("*") if p.suffix in endings and p.is_file()]
    return sorted(p for p in found if "compile_fail" not in p.parts)
