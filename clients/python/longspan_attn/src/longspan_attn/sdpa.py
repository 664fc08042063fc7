"""torch.nn.functional.scaled_dot_product_attention's shape of call."""

from longspan_attn import _checks, _entry


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
                                 enable_gqa=False):
    """query [B, H, Lq, D], key [B, Hk, Lk, D], value [B, Hk, Lk, Dv]; answers [B, H, Lq, Dv] (a transposed view).

    is_causal is aligned at the top left, as PyTorch's: row i sees keys 0..i. Fewer keys than rows under is_causal,
    attn_mask and dropout_p > 0 are not supported. Types and other limits: flash_attn_func.
    """
    _checks.refuse(attn_mask is not None, "attn_mask is not supported: is_causal, or flash_attn_func's window_size")
    _checks.refuse(dropout_p != 0.0, f"dropout_p={dropout_p}: dropout is not supported, only 0.0")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        _checks.need(tensor.dim() == 4, f"{name} has {tensor.dim()} dimensions, not 4: [B, heads, length, d]")
    _checks.need(enable_gqa or query.shape[1] == key.shape[1],
                 f"{query.shape[1]} query heads, {key.shape[1]} key heads: enable_gqa=True allows groups")
    q_len, kv_len = query.shape[2], key.shape[2]
    if is_causal:
        _checks.refuse(kv_len < q_len, f"is_causal with {q_len} rows and {kv_len} keys (top left alignment)")
        key, value = key[:, :, :q_len], value[:, :, :q_len]  # no row sees more
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    out, _ = _entry.dense(q, k, v, scale, is_causal, (-1, -1), 0.0, None)
    return out.transpose(1, 2)
