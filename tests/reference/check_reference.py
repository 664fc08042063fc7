#!/usr/bin/env python3
"""Checks the committed reference files against oracle.py and write_tiny_model.py: NumPy only, no torch.

Two independent computations (transformers in float32, NumPy in float64) must agree to 1e-4 on every
logit and on every greedy token; a change of the hash, of a config or of a file shows here first. Of
truth_smollm2.json only the shape can be checked without the model.
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


def read_json(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return json.load(file)


def tiny_problems(record):
    """Sentences on what is wrong with one tiny_<name>.json; prints the largest difference."""
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
    print(f"{name}: largest difference {largest:.2e}")
    return problems


def successor_problems():
    """The successor model counts up by one and wraps at the end of the vocabulary."""
    config, weights = oracle.load("successor")
    problems = []
    for first in (0, 15, 507):
        expected = [(first + 1 + n) % config["vocab_size"] for n in range(10)]
        if oracle.greedy(config, weights, [first], 10) != expected:
            problems.append(f"greedy after {first} does not count up")
    return problems


def truth_problems(truth):
    """Whether truth_smollm2.json holds together and is large enough to judge a server by."""
    problems, steps = [], 0
    for prompt in truth["prompts"]:
        count = len(prompt["ids"])
        steps += count
        where = f"{prompt['document']} {prompt['start']}+{prompt['length']}"
        document = truth["documents"][prompt["document"]]
        if prompt["start"] + prompt["length"] > len(document):
            problems.append(f"{where} is outside its document")
        if any(len(prompt[key]) != count for key in ("logprobs", "margins", "second_ids")):
            problems.append(f"{where} has lists of different lengths")
        if min(prompt["margins"]) < 0 or max(prompt["logprobs"]) > 0:
            problems.append(f"{where} has a value of the wrong sign")
    lengths = [prompt["length"] for prompt in truth["prompts"]]
    if len(lengths) < 40 or min(lengths) != 1 or max(lengths) != 7900 or steps < 1500:
        problems.append(f"too little: {len(lengths)} prompts, {steps} steps")
    if (truth["num_prompts"], truth["num_steps"]) != (len(lengths), steps):
        problems.append("its counts are not those of its lists")
    return problems


def main():
    found = {"successor": successor_problems()}
    found["truth_smollm2.json"] = truth_problems(read_json("truth_smollm2.json"))
    names = sorted(os.path.basename(p) for p in glob.glob(os.path.join(HERE, "tiny_*.json")))
    for name in names:
        found[name] = tiny_problems(read_json(name))
    for name, problems in found.items():
        for problem in problems:
            print(f"{name}: {problem}")
    return 1 if any(found.values()) or not names else 0


if __name__ == "__main__":
    sys.exit(main())
