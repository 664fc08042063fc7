"""Writes dequantized_blocks.json: random blocks of every GGUF weight format and the floats that the `gguf`
package makes of them. Needs `pip install gguf`; the tests read only the committed file.

Usage: python3 make_dequantized_blocks.py > dequantized_blocks.json
"""

import json

import gguf
import numpy as np

# name -> (blocks to write, byte offsets of the halves in a block, whose bits must not be arbitrary)
FORMATS = {
    "F32": (8, None),
    "F16": (24, None),
    "BF16": (24, None),
    "Q4_0": (2, [0]),
    "Q4_1": (2, [0, 2]),
    "Q5_0": (2, [0]),
    "Q5_1": (2, [0, 2]),
    "Q8_0": (2, [0]),
    "Q4_K": (1, [0, 2]),
    "Q5_K": (1, [0, 2]),
    "Q6_K": (1, [208]),
}
HALVES = [0.0123, -0.75, 6e-8, 1.5e-5, -0.0, 300.0]  # denormal halves among them


def blocks_of(name: str, rng: np.random.Generator) -> np.ndarray:
    count, halves = FORMATS[name]
    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    data = rng.integers(0, 256, (count, size), dtype=np.uint8)
    if name == "F32":
        data = rng.standard_normal(count).astype(np.float32).view(np.uint8).reshape(count, 4)
    if name in ("F16", "BF16"):  # any finite bits
        bits = rng.integers(0, 0x10000, count).astype(np.uint16)
        exponent = 0x7C00 if name == "F16" else 0x7F80
        bits = np.where((bits & exponent) == exponent, bits ^ 0x4000, bits)
        data = bits.astype(np.uint16).view(np.uint8).reshape(count, 2)
    for block in data:
        for offset in halves or []:
            half = np.float16(rng.choice(HALVES) if rng.random() < 0.5 else rng.normal() * 0.02)
            block[offset : offset + 2] = np.frombuffer(half.tobytes(), np.uint8)
    return data


def main() -> None:
    rng = np.random.default_rng(20261130)
    formats = {}
    for name in FORMATS:
        data = blocks_of(name, rng)
        values = gguf.dequantize(data.reshape(-1), gguf.GGMLQuantizationType[name])
        formats[name] = {
            "blocks": data.tobytes().hex(),
            "values": " ".join(str(v) for v in values.astype(np.float32)),
        }
    print(json.dumps(formats, indent=1))


if __name__ == "__main__":
    main()
