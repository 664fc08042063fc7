#!/usr/bin/env python3
"""Makes gguf_blocks_smollm2.json: a few blocks of the model's weights as the gguf package decodes them.

For each chosen tensor: its type, its shape (outermost first), and 32 consecutive values of one row. Needs
gguf and NumPy; nothing that CI runs needs it.

Usage: make_gguf_blocks.py [--model FILE]
"""

import argparse
import json
import os

import gguf

from model_file import DEFAULT_MODEL

HERE = os.path.dirname(os.path.abspath(__file__))

# (tensor, row, first column)
BLOCKS = (
    ("token_embd.weight", 0, 0),
    ("token_embd.weight", 31000, 544),
    ("blk.0.attn_q.weight", 0, 0),
    ("blk.0.attn_v.weight", 191, 544),
    ("blk.14.ffn_gate.weight", 1000, 320),
    ("blk.29.ffn_down.weight", 575, 1504),
    ("blk.7.attn_norm.weight", 0, 32),
    ("output_norm.weight", 0, 544),
)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=DEFAULT_MODEL)
    args = parser.parse_args()
    tensors = {t.name: t for t in gguf.GGUFReader(args.model).tensors}
    blocks = []
    for name, row, first in BLOCKS:
        tensor = tensors[name]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        values = values.reshape([int(n) for n in reversed(tensor.shape)])
        line = values if values.ndim == 1 else values[row]
        blocks.append(
            {
                "tensor": name,
                "format": tensor.tensor_type.name,
                "shape": list(values.shape),
                "row": row,
                "first": first,
                "values": [float(v) for v in line[first : first + 32]],
            }
        )
    with open(os.path.join(HERE, "gguf_blocks_smollm2.json"), "w", encoding="utf-8") as file:
        json.dump({"num_tensors": len(tensors), "blocks": blocks}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
