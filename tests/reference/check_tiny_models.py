#!/usr/bin/env python3
"""Checks the committed tiny_*.json against oracle.py and write_tiny_model.py: NumPy only, no torch.

Two independent computations (transformers in float32, NumPy in float64) must agree to 1e-4 on every
logit and on every greedy token; a change of the hash, of a config or of a file shows here first.
Exits 1 on a difference, 77 (skipped) without NumPy.
"""

import glob
import json
import os
import sys

try:
    import numpy as np
except ImportError:
    print("skipped: needs NumPy (Debian: python3-numpy)")
    sys.exit(77)

import oracle
import write_tiny_model

HERE = os.path.dirname(os.path.abspath(__file__))
TOLERANCE = 1e-4


def problems_of(record):
    """(sentences on what is wrong, largest difference of a logit)."""
    name, problems, largest = record["name"], [], 0.0
    if record["config"] != write_tiny_model.MODELS[name]["config"]:
        problems.append("its config is not the one of write_tiny_model.py")
    config, weights = oracle.load(name, record["seed"])
    for sample in record["weights"]:
        if weights[sample["tensor"]].flat[sample["index"]] != sample["value"]:
            problems.append(f"weight {sample} is made differently")
    for prompt in record["prompts"]:
        ids, chosen = prompt["token_ids"], prompt["greedy_ids"]
        logits = oracle.forward(config, weights, ids + chosen[:-1])
        difference = np.abs(logits[prompt["positions"]] - np.array(prompt["logits"])).max()
        largest = max(largest, float(difference))
        if not difference <= TOLERANCE:
            problems.append(f"prompt of {len(ids)}: logits differ by {difference:.3g}")
        if np.argmax(logits[len(ids) - 1 :], axis=-1).tolist() != chosen:
            problems.append(f"prompt of {len(ids)}: greedy ids differ")
    return problems, largest


def main():
    paths = sorted(glob.glob(os.path.join(HERE, "tiny_*.json")))
    if not paths:
        print("no tiny_*.json here")
        return 1
    failed = False
    for path in paths:
        with open(path, encoding="utf-8") as file:
            problems, largest = problems_of(json.load(file))
        print(f"{os.path.basename(path)}: largest difference {largest:.2e} {'; '.join(problems)}")
        failed = failed or bool(problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
