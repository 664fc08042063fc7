#!/usr/bin/env python3
"""Writes tiny model folders (safetensors, config.json, tokenizer.json) whose weights come from a hash.

Standard library only. The folders are inputs of tests: nothing here knows what a model computes; the
expected logits are in tiny_<name>.json, made by make_tiny_models.py with transformers.

The weights, so that any language can make the same bits (all integers unsigned, modulo 2^64):

    G       = 0x9E3779B97F4A7C15
    h       = FNV-1a 64 of the tensor's name in UTF-8 (offset 0xCBF29CE484222325, prime 0x100000001B3)
    s       = h xor (seed * G)
    x       = s + (i + 1) * G                    i: flat index, row-major, from 0
    x       = (x xor (x >> 30)) * 0xBF58476D1CE4E5B9
    x       = (x xor (x >> 27)) * 0x94D049BB133111EB
    x       =  x xor (x >> 31)                   (splitmix64)
    v       = float((x >> 40) - 2^23) * 2^-23    in [-1, 1), exact in float32
    weight  = v * a            for matrices and biases, a from AMPLITUDE by the name's last parts
            = 1 + v * 0.25     for norms (any name that ends in "norm.weight"), one rounding to float32

Every amplitude a is a dyadic number, so that v * a is exact. The seed is 1 unless told otherwise.

Toy tokenizer (toy_t, toy_long): ids 0..255 are the bytes 0..255; id 256 + 16 * i + j is the merge of
letters i and j of "etaoinshrdlcumwf", ranked in that order. No special tokens, no end id.
Successor tokenizer (successor): the tokens given by the caller from first_id on; the bytes that are
not among them fill the other ids in ascending order, then "<ID>" (plain text) fills what is left.

Usage: write_tiny_model.py NAME FOLDER [options], or import write_model().
"""

import argparse
import array
import json
import math
import os
import struct
import sys

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15

# By the end of the tensor's name; the first match counts.
AMPLITUDE = (
    ("embed_tokens.weight", 0.25),
    ("lm_head.weight", 0.25),
    ("q_proj.weight", 0.375),
    ("k_proj.weight", 0.375),
    (".bias", 0.5),
    (".weight", 0.25),
)
LETTERS = "etaoinshrdlcumwf"


def fnv1a64(name):
    h = 0xCBF29CE484222325
    for byte in name.encode("utf-8"):
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def unit_value(state, index):
    """v of the header comment for one element; exact in float32."""
    x = (state + (index + 1) * GOLDEN) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    x ^= x >> 31
    return ((x >> 40) - (1 << 23)) / (1 << 23)


def hashed_weights(name, count, seed):
    """The tensor's float32 values in row-major order."""
    state = fnv1a64(name) ^ ((seed * GOLDEN) & MASK)
    values = (unit_value(state, i) for i in range(count))
    if name.endswith("norm.weight"):
        return array.array("f", (1.0 + v * 0.25 for v in values))
    a = next(a for end, a in AMPLITUDE if name.endswith(end))
    return array.array("f", (v * a for v in values))


# ---- Model table -------------------------------------------------------------------------------


def llama_config(**changes):
    """Toy T of the test cases; the other models are stated as differences from it."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": None,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value != "absent"}


def small_config(**changes):
    """The models of the single architectures: smaller than Toy T, a folder is below 300 KB."""
    small = {"vocab_size": 256, "hidden_size": 48, "intermediate_size": 64}
    return llama_config(**{**small, **changes})


MODELS = {
    "toy_t": {"config": llama_config(), "tokenizer": "toy"},
    "toy_long": {
        "config": llama_config(
            hidden_size=32,
            intermediate_size=64,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=131072,
            rope_theta=1000000.0,
        ),
        "tokenizer": "toy",
    },
    "successor": {
        "config": llama_config(
            hidden_size=512,
            intermediate_size=16,
            max_position_embeddings=8192,
        ),
        "tokenizer": "successor",
    },
    # Groups of 3 query heads as in SmolLM2; heads * head_dim differs from hidden_size.
    "llama_untied": {
        "config": small_config(num_attention_heads=6, num_key_value_heads=2),
        "shards": 3,
    },
    # No head_dim in the file: it follows from hidden_size / num_attention_heads.
    "llama_tied": {
        "config": small_config(
            tie_word_embeddings=True,
            head_dim="absent",
            num_attention_heads=3,
            num_key_value_heads=1,
        )
    },
    "llama_rope_llama3": {
        "config": small_config(
            rope_scaling={
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        )
    },
    # "type" is the older spelling of "rope_type"; files with either exist.
    "llama_rope_linear": {"config": small_config(rope_scaling={"type": "linear", "factor": 4.0})},
    # The original context is long enough for both ends of the ramp to lie within the 8 frequencies.
    "llama_rope_yarn": {
        "config": small_config(
            max_position_embeddings=8192,
            rope_scaling={
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 1024,
            },
        )
    },
    "mistral_window": {
        "config": small_config(
            architectures=["MistralForCausalLM"],
            model_type="mistral",
            sliding_window=8,
            attention_bias="absent",
            mlp_bias="absent",
        )
    },
    # sliding_window is present but switched off, as in the published files: it must be ignored.
    "qwen2": {
        "config": small_config(
            architectures=["Qwen2ForCausalLM"],
            model_type="qwen2",
            head_dim="absent",
            num_attention_heads=3,
            num_key_value_heads=1,
            attention_bias="absent",
            mlp_bias="absent",
            rms_norm_eps=1e-6,
            rope_theta=1000000.0,
            tie_word_embeddings=True,
            use_sliding_window=False,
            sliding_window=8,
            max_window_layers=1,
        )
    },
    "qwen3": {
        "config": small_config(
            architectures=["Qwen3ForCausalLM"],
            model_type="qwen3",
            hidden_size=32,
            head_dim=32,
            mlp_bias="absent",
            rms_norm_eps=1e-6,
            rope_theta=1000000.0,
            use_sliding_window=False,
            sliding_window=None,
            max_window_layers=2,
        )
    },
}


def tensor_shapes(config):
    """(name, shape) of every tensor, in the order in which they lie in the files."""
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q_rows = config["num_attention_heads"] * head_dim
    kv_rows = config["num_key_value_heads"] * head_dim
    shapes = [("model.embed_tokens.weight", (config["vocab_size"], hidden))]
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        shapes.append((p + "input_layernorm.weight", (hidden,)))
        for letter, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
            shapes.append((p + f"self_attn.{letter}_proj.weight", (rows, hidden)))
            if config["model_type"] == "qwen2":
                shapes.append((p + f"self_attn.{letter}_proj.bias", (rows,)))
        if config["model_type"] == "qwen3":
            shapes.append((p + "self_attn.q_norm.weight", (head_dim,)))
            shapes.append((p + "self_attn.k_norm.weight", (head_dim,)))
        shapes.append((p + "self_attn.o_proj.weight", (hidden, q_rows)))
        shapes.append((p + "post_attention_layernorm.weight", (hidden,)))
        shapes.append((p + "mlp.gate_proj.weight", (mlp, hidden)))
        shapes.append((p + "mlp.up_proj.weight", (mlp, hidden)))
        shapes.append((p + "mlp.down_proj.weight", (hidden, mlp)))
    shapes.append(("model.norm.weight", (hidden,)))
    if not config["tie_word_embeddings"]:
        shapes.append(("lm_head.weight", (config["vocab_size"], hidden)))
    return shapes


def successor_weights(name, shape, seed):
    """Greedy next id = id + 1 modulo the vocabulary: nothing is added to the identity embedding."""
    values = array.array("f", bytes(4 * math.prod(shape)))
    if name == "model.embed_tokens.weight":
        for i in range(shape[0]):
            values[i * shape[1] + i] = 1.0
    elif name == "lm_head.weight":
        for i in range(shape[0]):
            values[((i + 1) % shape[0]) * shape[1] + i] = 1.0
    elif name.endswith("norm.weight"):
        values = array.array("f", [1.0] * shape[0])
    elif not name.endswith(("o_proj.weight", "down_proj.weight")):
        values = hashed_weights(name, math.prod(shape), seed)
    return values


def model_tensors(name, config, seed=1):
    """Yields (tensor name, shape, float32 array) in file order."""
    for tensor, shape in tensor_shapes(config):
        if name == "successor":
            yield tensor, shape, successor_weights(tensor, shape, seed)
        else:
            yield tensor, shape, hashed_weights(tensor, math.prod(shape), seed)


# ---- Files -------------------------------------------------------------------------------------


def write_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, values in tensors:
        end = offset + 4 * len(values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, values in tensors:
            if sys.byteorder == "big":
                values = array.array("f", values)
                values.byteswap()
            file.write(values.tobytes())


def write_weights(folder, tensors, shards):
    """One file, or contiguous runs of tensors in several files with an index."""
    if shards == 1:
        write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
        return
    weight_map = {}
    for shard in range(shards):
        part = tensors[len(tensors) * shard // shards : len(tensors) * (shard + 1) // shards]
        file_name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        write_safetensors(os.path.join(folder, file_name), part)
        weight_map.update({name: file_name for name, _, _ in part})
    total = sum(4 * len(values) for _, _, values in tensors)
    write_json(
        os.path.join(folder, "model.safetensors.index.json"),
        {"metadata": {"total_size": total}, "weight_map": weight_map},
    )


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, ensure_ascii=False)
        file.write("\n")


# ---- Tokenizers --------------------------------------------------------------------------------


def byte_characters():
    """The printable character that stands for each byte in a byte-level vocabulary (as GPT-2)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    characters = {b: chr(b) for b in plain}
    characters.update({b: chr(0x100 + n) for n, b in enumerate(others)})
    return characters


def spell(token):
    """A token's bytes (or text) in the characters of a byte-level vocabulary."""
    characters = byte_characters()
    raw = token.encode("utf-8") if isinstance(token, str) else bytes(token)
    return "".join(characters[b] for b in raw)


def toy_vocabulary():
    tokens = [spell(bytes([b])) for b in range(256)]
    merges = [(first, second) for first in LETTERS for second in LETTERS]
    return tokens + [first + second for first, second in merges], merges


def successor_vocabulary(size, given, first_id):
    if first_id < 0 or first_id + len(given) > size:
        raise ValueError(f"tokens do not fit: first id {first_id}, {len(given)} tokens, {size} ids")
    tokens = {first_id + n: spell(token) for n, token in enumerate(given)}
    if len(set(tokens.values())) != len(tokens) or "" in tokens.values():
        raise ValueError("tokens must be distinct and not empty")
    used = set(tokens.values())
    missing = [c for c in (spell(bytes([b])) for b in range(256)) if c not in used]
    free = [i for i in range(size) if i not in tokens]
    if len(missing) > len(free):
        raise ValueError("no room for the 256 bytes beside the given tokens")
    for n, i in enumerate(free):
        tokens[i] = missing[n] if n < len(missing) else f"<{i}>"
    if len(set(tokens.values())) != size:
        raise ValueError("a given token equals a filler of the form <ID>")
    return [tokens[i] for i in range(size)], []


def tokenizer_json(tokens, merges, special_ids=()):
    characters = {c: chr(b) for b, c in byte_characters().items()}
    added = []
    for i in special_ids:
        # Added tokens are stored as text, not in byte characters.
        raw = bytes(ord(characters[c]) for c in tokens[i])
        tokens[i] = raw.decode("utf-8")
        added.append(
            {
                "id": i,
                "content": tokens[i],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        )
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [f"{first} {second}" for first, second in merges],
        },
    }


def write_model(
    name,
    folder,
    seed=1,
    shards=None,
    context=None,
    eos=None,
    tokenizer=True,
    tokens=(),
    first_id=0,
    special_ids=(),
):
    """Writes the folder of one model. tokens (text or bytes), first_id: successor only."""
    model = MODELS[name]
    config = dict(model["config"])
    if context is not None:
        config["max_position_embeddings"] = context
    if eos is not None:
        config["eos_token_id"] = eos
    if tokens and model.get("tokenizer") != "successor":
        raise ValueError("only the successor model takes tokens")
    os.makedirs(folder, exist_ok=True)
    write_json(os.path.join(folder, "config.json"), config)
    tensors = list(model_tensors(name, config, seed))
    write_weights(folder, tensors, shards or model.get("shards", 1))
    kind = model.get("tokenizer")
    if not tokenizer or kind is None:
        return
    if kind == "toy":
        vocabulary, merges = toy_vocabulary()
    else:
        vocabulary, merges = successor_vocabulary(config["vocab_size"], list(tokens), first_id)
    write_json(
        os.path.join(folder, "tokenizer.json"), tokenizer_json(vocabulary, merges, special_ids)
    )


def token_argument(item):
    """A token of --tokens: text, or a list of byte values for what is not UTF-8 on its own."""
    return item if isinstance(item, str) else bytes(item)


def main():
    parser = argparse.ArgumentParser(description="Write a tiny model folder for tests.")
    parser.add_argument("name", choices=sorted(MODELS))
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shards", type=int, help="safetensors files (default: the model's own)")
    parser.add_argument("--context", type=int, help="max_position_embeddings")
    parser.add_argument("--eos", type=int, help="eos_token_id (default: none)")
    parser.add_argument("--no-tokenizer", action="store_true")
    parser.add_argument(
        "--tokens", help='successor: JSON list of texts or byte lists, as ["foo ", [195], [169]]'
    )
    parser.add_argument("--first-id", type=int, default=0, help="successor: id of the first token")
    parser.add_argument("--special-ids", type=int, nargs="*", default=[])
    args = parser.parse_args()
    write_model(
        args.name,
        args.folder,
        seed=args.seed,
        shards=args.shards,
        context=args.context,
        eos=args.eos,
        tokenizer=not args.no_tokenizer,
        tokens=[token_argument(t) for t in json.loads(args.tokens or "[]")],
        first_id=args.first_id,
        special_ids=args.special_ids,
    )


if __name__ == "__main__":
    main()
