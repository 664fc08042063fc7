#!/usr/bin/env python3
"""Makes tiny_<name>.json: what transformers computes on the hashed models of write_tiny_model.py.

Each model's folder is written, loaded by transformers as any other folder (float32, eager attention)
and asked for logits and a greedy continuation. Needs torch and transformers; nothing that CI runs does.

Usage: make_tiny_models.py [NAME ...]
"""

import argparse
import json
import os
import struct
import tempfile

import torch
import transformers

import write_tiny_model

HERE = os.path.dirname(os.path.abspath(__file__))
# The successor model and the long toy are told by what they are for; they need no logits from here.
NAMES = [name for name in write_tiny_model.MODELS if name not in ("successor", "toy_long")]
GREEDY_STEPS = 16
LEAST_MARGIN = 2.5e-4  # above twice the bar on logits, so that who meets the bar has the same ids


def hashed_prompt(vocab_size, length):
    """Ids spread over the vocabulary: element i is the hash of (seed 1, i) modulo its size."""
    ids, state = [], 1
    for i in range(length):
        v = write_tiny_model.unit_value(state, i)
        ids.append(int((v + 1.0) * (1 << 23)) % vocab_size)
    return ids


def prompts_for(config):
    """(ids, positions whose logits are kept): one token, one block, several chunks of 16 and windows."""
    vocab_size = config["vocab_size"]
    return [
        ([7], [0]),
        (list(range(1, 21)), [19]),
        (list(range(1, 51)), [15, 16, 49]),
        (hashed_prompt(vocab_size, 131), [130]),
    ]


def load_folder(name, folder):
    """The model as transformers reads the folder; fails when a tensor is missing or unknown to it."""
    write_tiny_model.write_model(name, folder)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    problems = {key: value for key, value in info.items() if value}
    if problems:
        raise ValueError(f"{name}: {problems}")
    return model.eval()


def saved_config(model, folder):
    """config.json as this version of transformers writes it, which may differ in spelling."""
    model.save_pretrained(folder)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        return json.load(file)


def same_tensors(first, second):
    """Whether two folders hold the same tensors bit for bit (one file or shards)."""

    def read(folder):
        tensors = {}
        for name in sorted(os.listdir(folder)):
            if not name.endswith(".safetensors"):
                continue
            with open(os.path.join(folder, name), "rb") as file:
                (size,) = struct.unpack("<Q", file.read(8))
                header, data = json.loads(file.read(size)), file.read()
            for tensor, entry in header.items():
                if tensor != "__metadata__":
                    begin, end = entry["data_offsets"]
                    tensors[tensor] = (entry["dtype"], entry["shape"], data[begin:end])
        return tensors

    return read(first) == read(second)


def greedy(model, prompt):
    """(ids, least top-2 margin of the logits), each step a whole pass without a cache."""
    ids, least = list(prompt), float("inf")
    for _ in range(GREEDY_STEPS):
        best = torch.topk(model(torch.tensor([ids]), use_cache=False).logits[0, -1], 2)
        least = min(least, float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :], least


def seven_digits(values):
    return [float(f"{value:.7g}") for value in values]


def sample_weights(name, config):
    """Three values as test vectors of the hash: a first element, one in the middle, a last one."""
    tensors = {tensor: values for tensor, _, values in write_tiny_model.model_tensors(name, config)}
    picks = (
        ("model.embed_tokens.weight", 0),
        ("model.layers.1.self_attn.q_proj.weight", 777),
        ("model.norm.weight", config["hidden_size"] - 1),
    )
    return [{"tensor": t, "index": i, "value": tensors[t][i]} for t, i in picks]


def make_model(name):
    config = write_tiny_model.MODELS[name]["config"]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as saved:
        model = load_folder(name, folder)
        as_saved = saved_config(model, saved)
        if not same_tensors(folder, saved):
            raise ValueError(f"{name}: transformers saves other tensors than it was given")
    record = {
        "name": name,
        "seed": 1,
        "num_shards": write_tiny_model.MODELS[name].get("shards", 1),
        "config": config,
        "config_as_saved": as_saved,
        "weights": sample_weights(name, config),
        "prompts": [],
    }
    for ids, positions in prompts_for(config):
        logits = model(torch.tensor([ids]), use_cache=False).logits[0]
        continuation, least = greedy(model, ids)
        if least < LEAST_MARGIN:
            raise ValueError(f"{name}: a greedy step of the prompt of {len(ids)} is nearly a tie")
        record["prompts"].append(
            {
                "token_ids": ids,
                "positions": positions,
                "greedy_ids": continuation,
                "least_margin": float(f"{least:.3g}"),
                "logits": [seven_digits(logits[p].tolist()) for p in positions],
            }
        )
    return record


def write_record(path, record):
    """JSON with one line for each entry and each row of logits."""

    def line(value):
        return json.dumps(value, separators=(",", ":"))

    fields = [f'"{key}":{line(value)}' for key, value in record.items() if key != "prompts"]
    prompts = []
    for prompt in record["prompts"]:
        parts = [f'"{key}":{line(value)}' for key, value in prompt.items() if key != "logits"]
        rows = ",\n".join(line(row) for row in prompt["logits"])
        prompts.append("{" + ",\n".join(parts) + ',\n"logits":[\n' + rows + "\n]}")
    with open(path, "w", encoding="utf-8") as file:
        file.write("{" + ",\n".join(fields) + ',\n"prompts":[\n' + ",\n".join(prompts) + "\n]}\n")


def main():
    parser = argparse.ArgumentParser(description="Make tiny_<name>.json.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(NAMES)}")
    names = parser.parse_args().names or NAMES
    torch.set_num_threads(2)
    torch.set_grad_enabled(False)
    for name in names:
        path = os.path.join(HERE, f"tiny_{name}.json")
        record = make_model(name)
        write_record(path, record)
        margins = [p["least_margin"] for p in record["prompts"]]
        print(f"{name}: {os.path.getsize(path)} bytes, least margin {min(margins)}")


if __name__ == "__main__":
    main()
