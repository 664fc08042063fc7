#!/usr/bin/env python3
"""Compares the names of tests with docs/faults.md and fails when either side lacks something that the other one names.

A name such as Fault_C3_, Fault_S4_S5_, Case_040_Case_042_ or Trap_07_ in a file of tests/ asks for a row with that id whose
last column lists the file. What a row promises is for people to compare. The traps of attention kernels, TRAPS in number, have a
row each.
"""
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
TRAPS = 27
PAGE = ROOT / "docs" / "faults.md"
NAME = re.compile(r"Fault((?:_[A-Z]\d+)+)_|((?:Case|Trap)_\d+)_(?=[A-Z])")
ROW = re.compile(r"^\| ([A-Z]\d+|Case_\d+|Trap_\d+) \|.*\| ([^|]*) \|$")


def names_of_tests():
    """id -> files below tests/ whose tests carry it."""
    found = collections.defaultdict(set)
    for file in sorted(TESTS.rglob("*")):
        if file.suffix in {".cc", ".py"} and file != pathlib.Path(__file__).resolve():
            for match in NAME.finditer(file.read_text(encoding="utf-8")):
                ids = match.group(1).strip("_").split("_") if match.group(1) else [match.group(2)]
                for name in ids:
                    found[name].add(file.relative_to(TESTS).as_posix())
    return found


def rows_of_page():
    """id -> files that its row lists; and the ids that have a second row."""
    rows, twice = {}, []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        match = ROW.match(line)
        if match:
            twice += [match.group(1)] if match.group(1) in rows else []
            rows[match.group(1)] = set(re.findall(r"`([^`]+)`", match.group(2)))
    return rows, twice


def differences():
    tests, (rows, twice) = names_of_tests(), rows_of_page()
    if len(tests) < 50:
        yield f"only {len(tests)} ids found below {TESTS}: the test looks at the wrong place"
    for name in (f"Trap_{number:02}" for number in range(1, TRAPS + 1)):
        if name not in rows:
            yield f"{name} has no row, so no test"
    for name in twice:
        yield f"{name} has two rows"
    for name in sorted(tests.keys() | rows.keys()):
        if name not in rows:
            yield f"{name} of {', '.join(sorted(tests[name]))} has no row"
            continue
        for file in sorted(tests[name] - rows[name]):
            yield f"{name}: its row lacks `{file}`"
        for file in sorted(rows[name] - tests[name]):
            yield f"{name}: its row lists `{file}`, which has no test of that name"


def main():
    found = list(differences())
    for difference in found:
        print(f"docs/faults.md: {difference}")
    print(f"{len(found)} differences between docs/faults.md and the names of tests")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
