"""A plain NumPy forward pass of the tiny models: whole prompt, float64, no cache and no tricks.

It is the explanation of what the models compute and the oracle of tests that need answers for prompts
of their own. It shares no code with the server or with transformers; check_reference.py holds it
against the logits that transformers gave.
"""

import math

import numpy as np

import write_tiny_model


def load(name, seed=1):
    """(config, {tensor name: float64 array}) of a model of write_tiny_model.MODELS."""
    config = write_tiny_model.MODELS[name]["config"]
    tensors = write_tiny_model.model_tensors(name, config, seed)
    return config, {t: np.array(v, dtype=np.float64).reshape(s) for t, s, v in tensors}


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotary_frequencies(config, head_dim):
    """(head_dim / 2 angles per position, factor on cos and sin)."""
    theta = config["rope_theta"]
    base = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    scaling = config.get("rope_scaling")
    if not scaling:
        return base, 1.0
    kind, factor = scaling.get("rope_type") or scaling["type"], scaling["factor"]
    if kind == "linear":
        return base / factor, 1.0
    original = scaling["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = original * base / (2 * math.pi)  # full turns within the original context
        blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return base * (blend + (1.0 - blend) / factor), 1.0
    if kind == "yarn":

        def dimension_of(turns):
            return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low = max(math.floor(dimension_of(scaling.get("beta_fast", 32))), 0)
        high = min(math.ceil(dimension_of(scaling.get("beta_slow", 1))), head_dim - 1)
        high = high + 0.001 if low == high else high
        ramp = np.clip((np.arange(head_dim // 2) - low) / (high - low), 0.0, 1.0)
        return base * (1.0 - ramp + ramp / factor), 0.1 * math.log(factor) + 1.0
    raise ValueError(f"unknown rope scaling {kind}")


def rotate(x, config):
    """Rotary embedding, halves paired (i, i + head_dim / 2); x is [tokens, heads, head_dim]."""
    head_dim = x.shape[-1]
    frequencies, factor = rotary_frequencies(config, head_dim)
    angles = np.arange(x.shape[0])[:, None, None] * frequencies
    cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
    first, second = x[..., : head_dim // 2], x[..., head_dim // 2 :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def window_of(config):
    """Keys that a token sees, itself among them; None is all."""
    if config["model_type"].startswith("qwen") and not config.get("use_sliding_window"):
        return None
    return config.get("sliding_window")


def attention(q, k, v, window):
    """Causal attention with grouped heads; q [tokens, heads, dim], k and v [tokens, kv heads, dim]."""
    tokens, heads, dim = q.shape
    group = heads // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(dim)
    distance = np.arange(tokens)[:, None] - np.arange(tokens)[None, :]
    hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v).reshape(tokens, heads * dim)


def forward(config, w, token_ids):
    """Logits of every position, [tokens, vocabulary]."""
    eps = config["rms_norm_eps"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    x = w["model.embed_tokens.weight"][np.asarray(token_ids)]
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        h = rms_norm(x, w[p + "input_layernorm.weight"], eps)

        def project(letter, num_heads):
            y = h @ w[p + f"self_attn.{letter}_proj.weight"].T
            y = y + w.get(p + f"self_attn.{letter}_proj.bias", 0.0)
            return y.reshape(len(token_ids), num_heads, -1)

        q, k, v = project("q", heads), project("k", kv_heads), project("v", kv_heads)
        if p + "self_attn.q_norm.weight" in w:
            q = rms_norm(q, w[p + "self_attn.q_norm.weight"], eps)
            k = rms_norm(k, w[p + "self_attn.k_norm.weight"], eps)
        mixed = attention(rotate(q, config), rotate(k, config), v, window_of(config))
        x = x + mixed @ w[p + "self_attn.o_proj.weight"].T
        h = rms_norm(x, w[p + "post_attention_layernorm.weight"], eps)
        gate = h @ w[p + "mlp.gate_proj.weight"].T
        up = h @ w[p + "mlp.up_proj.weight"].T
        x = x + (gate / (1.0 + np.exp(-gate)) * up) @ w[p + "mlp.down_proj.weight"].T
    x = rms_norm(x, w["model.norm.weight"], eps)
    return x @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def greedy(config, w, prompt, count):
    """The next count ids by arg-max (lowest id on ties)."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(np.argmax(forward(config, w, ids)[-1])))
    return ids[len(prompt) :]
