#!/usr/bin/env python3
"""Runs programs that need a GPU with every device hidden from them, and fails unless they say that none is present.

A test program skips what needs a device, each case with the reason, and passes; others print the reason and end with 3.
"""
import os
import re
import subprocess
import sys

NO_DEVICE = re.compile(r"no GPU: .+|no CUDA device")
SKIPPED = re.compile(r"^\[ RUN      \] (\S+)\n((?:(?!\[ RUN ).*\n)*?)\[  SKIPPED \] \1 ", re.MULTILINE)


def complaint(program):
    hidden = dict(os.environ, CUDA_VISIBLE_DEVICES="-1")
    done = subprocess.run([program], env=hidden, capture_output=True, text=True, timeout=300, check=False)
    if not program.endswith("_test"):
        said = NO_DEVICE.search(done.stderr)
        return None if done.returncode == 3 and said else f"status {done.returncode}, stderr {done.stderr!r}"
    if done.returncode != 0:
        return f"status {done.returncode}\n{done.stdout}{done.stderr}"
    skipped = SKIPPED.findall(done.stdout)
    if not skipped:
        return "no test was skipped"
    silent = [name for name, text in skipped if not NO_DEVICE.search(text)]
    return f"skipped without saying that there is no device: {silent}" if silent else None


def main():
    failures = 0
    for program in sys.argv[1:]:
        found = complaint(program)
        failures += found is not None
        print(f"{os.path.basename(program)}: {found or 'says that no device is present'}")
    return 1 if failures or len(sys.argv) < 2 else 0


if __name__ == "__main__":
    sys.exit(main())
