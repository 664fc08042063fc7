#!/usr/bin/env python3
"""Makes truth_smollm2.json: what Hugging Face transformers says on the dequantised weights of the model.

Reads SmolLM2-135M-Instruct.Q4_1.gguf, dequantises every tensor to float32, loads them into a plain
LlamaForCausalLM and records greedy continuations of many prompts (README.md describes the file).
Needs torch, transformers, gguf and tokenizers; nothing that CI runs needs it.

Usage: nice make_truth.py [--model FILE] [--check-float64]
"""

import argparse
import hashlib
import json
import math
import os
import sys
import time

import gguf
import numpy as np
import tokenizers
import torch
import transformers

import truth_text
from model_file import DEFAULT_MODEL

HERE = os.path.dirname(os.path.abspath(__file__))

# (document, start, prompt length); the document "chat" is cut at its own questions instead.
PROMPTS = (
    ("prose", 0, 1),
    ("data", 3, 1),
    ("mixed", 10, 2),
    ("prose", 40, 3),
    ("prose", 100, 7),
    ("mixed", 200, 15),
    ("prose", 300, 16),
    ("data", 60, 17),
    ("prose", 420, 31),
    ("mixed", 90, 32),
    ("data", 300, 33),
    ("prose", 700, 48),
    ("prose", 900, 64),
    ("mixed", 500, 65),
    ("data", 700, 100),
    ("prose", 1200, 127),
    ("mixed", 800, 128),
    ("data", 1000, 129),
    ("prose", 1700, 200),
    ("mixed", 1000, 255),
    ("prose", 2100, 256),
    ("data", 1300, 257),
    ("prose", 2600, 400),
    ("mixed", 300, 511),
    ("prose", 3000, 512),
    ("data", 1800, 513),
    ("prose", 3600, 700),
    ("mixed", 1200, 1000),
    ("prose", 4200, 1023),
    ("data", 500, 1024),
    ("prose", 5000, 1025),
    ("prose", 6000, 1500),
    ("data", 200, 2000),
    ("mixed", 100, 2047),
    ("prose", 2000, 2048),
    ("data", 900, 2049),
    ("prose", 4500, 3000),
    ("mixed", 0, 3500),
    ("data", 0, 4000),
    ("prose", 3300, 4096),
    ("prose", 1000, 5000),
    ("prose", 2000, 6000),
    ("prose", 900, 7000),
    ("prose", 150, 7900),
)


def steps_for(length):
    """Fewer steps where each costs more; context + steps stay under 8,192."""
    return 40 if length <= 4096 else 24


# ---- Model -------------------------------------------------------------------------------------


def to_half_split(rows, num_heads):
    """q/k rows of GGUF pair neighbours (2i, 2i+1); transformers pairs (i, i + head_dim / 2)."""
    head_dim = rows.shape[0] // num_heads
    paired = rows.reshape(num_heads, head_dim // 2, 2, rows.shape[1])
    return paired.swapaxes(1, 2).reshape(rows.shape)


def transformers_name(name):
    parts = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, end = name.split(".")
    return f"model.layers.{layer}.{parts[part]}.{end}"


def load_model(reader):
    def field(key):
        return reader.fields[key].contents()

    heads, kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    config = transformers.LlamaConfig(
        vocab_size=field("llama.vocab_size"),
        hidden_size=field("llama.embedding_length"),
        intermediate_size=field("llama.feed_forward_length"),
        num_hidden_layers=field("llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=field("llama.context_length"),
        rms_norm_eps=field("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("llama.rope.freq_base")},
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    state = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = values.reshape(list(reversed([int(n) for n in tensor.shape])))
        if ".attn_q." in tensor.name:
            values = to_half_split(values, heads)
        elif ".attn_k." in tensor.name:
            values = to_half_split(values, kv_heads)
        state[transformers_name(tensor.name)] = torch.from_numpy(np.ascontiguousarray(values))
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = transformers.LlamaForCausalLM(config).float().eval()
    model.load_state_dict(state, strict=True)
    model.tie_weights()
    return model


def load_tokenizer(reader):
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    bpe = tokenizers.models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges)
    tokenizer = tokenizers.Tokenizer(bpe)
    split = tokenizers.pre_tokenizers
    tokenizer.pre_tokenizer = split.Sequence(
        [
            split.Digits(individual_digits=True),
            split.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


# ---- Prompts -----------------------------------------------------------------------------------


def chat_document(tokenizer, start_id, end_id):
    """All chats in one row of ids, and the (start, length) of each: a chat's prompt is its own part."""
    ids, slices = [], []
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    for question in truth_text.CHATS:
        begin = len(ids)
        for role, text in (("system", system), ("user", question)):
            ids += [start_id, *tokenizer.encode(f"{role}\n{text}").ids, end_id]
            ids += tokenizer.encode("\n").ids
        ids += [start_id, *tokenizer.encode("assistant\n").ids]
        slices.append((begin, len(ids) - begin))
    return ids, slices


def make_prompts(tokenizer):
    """({document: ids}, [(document, start, length)]), documents cut to what the prompts use."""
    documents = {
        name: tokenizer.encode(text).ids for name, text in truth_text.make_documents().items()
    }
    prompts = list(PROMPTS)
    for name, ids in documents.items():
        used = max(start + length for d, start, length in prompts if d == name)
        if used > len(ids):
            raise ValueError(f"document {name} has {len(ids)} tokens, prompts use {used}")
        documents[name] = ids[:used]
    start_id, end_id = tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("<|im_end|>")
    documents["chat"], slices = chat_document(tokenizer, start_id, end_id)
    prompts += [("chat", start, length) for start, length in slices]
    return documents, sorted(prompts, key=lambda p: p[2])


# ---- Reference ---------------------------------------------------------------------------------


def greedy(model, prompt, steps, end_id):
    """[(id, logprob, margin, second id)] of up to `steps` tokens; an end id is the last one."""
    cache = transformers.DynamicCache(config=model.config)
    inputs, result = torch.tensor([prompt]), []
    for _ in range(steps):
        logits = model(inputs, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[
            0, -1
        ]
        logprobs = torch.log_softmax(logits.double(), dim=-1)
        best = torch.topk(logprobs, 2)
        first, second = best.indices.tolist()
        first_logprob, second_logprob = best.values.tolist()
        result.append((first, first_logprob, first_logprob - second_logprob, second))
        if first == end_id:
            break
        inputs = torch.tensor([[first]])
    return result


def teacher_forced(model, prompt, ids):
    """Logprobs of ids in one pass without a cache, to judge the arithmetic of the reference itself."""
    logits = model(torch.tensor([prompt + ids[:-1]]), use_cache=False).logits[0, len(prompt) - 1 :]
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    return logprobs[torch.arange(len(ids)), torch.tensor(ids)].tolist()


def check_float64(model, documents, records, longest=1100):
    """Prints how far float32 with a cache is from float64 without one."""
    model = model.double()
    differences = []
    for record in records:
        if record["length"] > longest:
            continue
        start = record["start"]
        prompt = documents[record["document"]][start : start + record["length"]]
        exact = teacher_forced(model, prompt, record["ids"])
        differences += [abs(a - b) for a, b in zip(exact, record["logprobs"])]
    mean, largest = sum(differences) / len(differences), max(differences)
    print(f"against float64: {len(differences)} steps, mean {mean:.2e}, max {largest:.2e}")


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_truth(path, header, documents, records):
    """JSON with one line a list, so that a change shows as a small difference."""

    def line(value):
        return json.dumps(value, separators=(",", ":"))

    with open(path, "w", encoding="utf-8") as file:
        file.write(line(header)[:-1] + ',\n"documents":{\n')
        file.write(",\n".join(f'"{name}":{line(ids)}' for name, ids in documents.items()))
        file.write('\n},\n"prompts":[\n' + ",\n".join(line(r) for r in records) + "\n]}\n")


def main():
    parser = argparse.ArgumentParser(description="Make truth_smollm2.json.")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--output", default=os.path.join(HERE, "truth_smollm2.json"))
    parser.add_argument(
        "--check-float64", action="store_true", help="also judge the reference itself"
    )
    args = parser.parse_args()

    torch.set_num_threads(2)
    torch.set_grad_enabled(False)
    reader = gguf.GGUFReader(args.model)
    tokenizer, model = load_tokenizer(reader), load_model(reader)
    end_id = int(reader.fields["tokenizer.ggml.eos_token_id"].contents())
    documents, prompts = make_prompts(tokenizer)

    records = []
    for document, start, length in prompts:
        began = time.monotonic()
        prompt = documents[document][start : start + length]
        steps = greedy(model, prompt, steps_for(length), end_id)
        ids, logprobs, margins, second_ids = (list(column) for column in zip(*steps))
        records.append(
            {
                "document": document,
                "start": start,
                "length": length,
                "ids": ids,
                "logprobs": [round(x, 6) for x in logprobs],
                "margins": [round(x, 6) for x in margins],
                "second_ids": second_ids,
            }
        )
        text = tokenizer.decode(list(ids), skip_special_tokens=False)
        print(
            f"{document} {start}+{length}: {time.monotonic() - began:.1f} s {text[:90]!r}",
            flush=True,
        )

    total = sum(len(r["ids"]) for r in records)
    header = {
        "about": "Greedy reference steps of SmolLM2-135M-Instruct Q4_1 in float32; see README.md",
        "model_file": os.path.basename(args.model),
        "model_sha256": sha256(args.model),
        "num_prompts": len(records),
        "num_steps": total,
    }
    write_truth(args.output, header, documents, records)
    margins = sorted(m for r in records for m in r["margins"])
    print(f"{len(records)} prompts, {total} steps, {os.path.getsize(args.output)} bytes")
    print(
        f"margins: least {margins[0]:.6f}, below 0.02: {sum(m < 0.02 for m in margins)}, "
        f"below 0.12: {sum(m < 0.12 for m in margins)}; mean logprob "
        f"{math.fsum(x for r in records for x in r['logprobs']) / total:.3f}"
    )
    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, "
        f"tokenizers {tokenizers.__version__}, Python {sys.version.split()[0]}"
    )
    if args.check_float64:
        check_float64(model, documents, records)


if __name__ == "__main__":
    main()
