"""Writes Toy T as a GGUF file (version 3, float32), for tests that break it. Rotation pairs are not re-ordered, so it
loads and serves, and its answers are nobody's reference."""

import math
import struct

import write_tiny_model

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
ALIGNMENT = 32


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, item):
    if kind == STRING:
        return string(item)
    if kind == ARRAY:
        of = INT32 if item and isinstance(item[0], int) else STRING
        return struct.pack("<IQ", of, len(item)) + b"".join(value(of, x) for x in item)
    return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"}[kind], item)


def keys(config, architecture):
    a = architecture + "."
    heads, head_dim = config["num_attention_heads"], config["head_dim"]
    return [
        ("general.architecture", STRING, architecture),
        ("general.name", STRING, "toy"),
        (a + "block_count", UINT32, config["num_hidden_layers"]),
        (a + "context_length", UINT32, config["max_position_embeddings"]),
        (a + "embedding_length", UINT32, config["hidden_size"]),
        (a + "feed_forward_length", UINT32, config["intermediate_size"]),
        (a + "attention.head_count", UINT32, heads),
        (a + "attention.head_count_kv", UINT32, config["num_key_value_heads"]),
        (a + "attention.key_length", UINT32, head_dim),
        (a + "attention.value_length", UINT32, head_dim),
        (a + "attention.layer_norm_rms_epsilon", FLOAT32, config["rms_norm_eps"]),
        (a + "rope.freq_base", FLOAT32, config["rope_theta"]),
        (a + "rope.dimension_count", UINT32, head_dim),
        ("tokenizer.ggml.model", STRING, "gpt2"),
        ("tokenizer.ggml.pre", STRING, "gpt-2"),
        ("tokenizer.ggml.tokens", ARRAY, [f"<{i}>" for i in range(config["vocab_size"])]),
        ("tokenizer.ggml.token_type", ARRAY, [1] * config["vocab_size"]),  # normal tokens
        ("tokenizer.ggml.merges", ARRAY, []),
        ("tokenizer.ggml.eos_token_id", UINT32, 2),
        ("tokenizer.ggml.add_bos_token", BOOL, False),
    ]


NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    if name in NAMES:
        return NAMES[name]
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{LAYER_NAMES[rest.removesuffix('.weight')]}.weight"


def padded(data):
    return data + bytes(-len(data) % ALIGNMENT)


class Gguf:
    """A file in parts: header (magic, version, counts), keys, tensor table, data."""

    def __init__(self, architecture="llama", magic=b"GGUF", version=3, changes=()):
        config = write_tiny_model.MODELS["toy_t"]["config"]
        fields = {name: (kind, item) for name, kind, item in keys(config, architecture)}
        fields.update(changes)
        table, data = b"", b""
        tensors = list(write_tiny_model.model_tensors("toy_t", config))
        for name, shape, values in tensors:
            table += string(gguf_name(name)) + struct.pack("<I", len(shape))
            table += b"".join(struct.pack("<Q", extent) for extent in reversed(shape))
            table += struct.pack("<IQ", 0, len(data))
            assert len(values) == math.prod(shape)
            data += padded(values.tobytes())
        self.header = magic + struct.pack("<IQQ", version, len(tensors), len(fields))
        self.keys = b"".join(string(n) + struct.pack("<I", kind) + value(kind, item)
                             for n, (kind, item) in fields.items())
        self.table, self.data = table, data

    def build(self):
        return padded(self.header + self.keys + self.table) + self.data
