"""What FlashAttention-2's and -3's functions share: checks in one order, then the operator."""

import torch

from longspan_attn import _checks, _ops, _plan


def dense(q, k, v, softmax_scale, causal, window_size, softcap, alibi_slopes):
    _checks.no_gradient(q=q, k=k, v=v)
    _checks.matrices(q, k, v, 4)
    _checks.need(k.dim() == 4 and k.shape[0] == q.shape[0], f"k is {tuple(k.shape)}: [{q.shape[0]}, tokens, heads, d]")
    _checks.slopes(alibi_slopes, q.shape[0], q)
    left, right = _checks.window(window_size)
    scale = _checks.scale_of(softmax_scale, q.shape[-1])
    return _ops.dense(q, k, v, contiguous(alibi_slopes), scale, bool(causal), left, right, float(softcap))


def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_k, softmax_scale, causal,
           window_size, softcap, alibi_slopes, block_table, cu_seqlens_q_cpu, cu_seqlens_k_cpu):
    _checks.no_gradient(q=q, k=k, v=v)
    _checks.matrices(q, k, v, 3)
    _checks.int32_vector(cu_seqlens_q, None, "cu_seqlens_q", q)
    _checks.need(cu_seqlens_q.shape[0] > 0, "cu_seqlens_q is empty")
    batch = cu_seqlens_q.shape[0] - 1
    _checks.int32_vector(cu_seqlens_k, batch + 1, "cu_seqlens_k", q)
    if seqused_k is not None:
        _checks.int32_vector(seqused_k, batch, "seqused_k", q)
    if block_table is None:
        _checks.need(k.dim() == 3, f"k is {tuple(k.shape)}: [tokens, heads, d] without block_table")
    else:
        _checks.need(k.dim() == 4, f"k is {tuple(k.shape)}: [blocks, block_size, heads, d] with block_table")
        _checks.block_table(block_table, batch, k.shape[1], q)
    _checks.slopes(alibi_slopes, batch, q)
    left, right = _checks.window(window_size)
    return _ops.varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table, contiguous(alibi_slopes),
                       host_tensor(cu_seqlens_q_cpu), host_tensor(cu_seqlens_k_cpu), int(max_seqlen_q),
                       int(max_seqlen_k), _checks.scale_of(softmax_scale, q.shape[-1]), bool(causal), left, right,
                       float(softcap))


def contiguous(tensor):
    return None if tensor is None else tensor.contiguous()


def host_tensor(values):
    if values is None or isinstance(values, torch.Tensor):
        return values
    return torch.tensor([int(value) for value in values], dtype=torch.int32, device="cpu")


def cache(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad, block_table,
          softmax_scale, causal, window_size, softcap, rotary_interleaved, alibi_slopes, rotary_seqlens,
          cache_seqlens_cpu, plan, k_descale=None, v_descale=None):
    _checks.no_gradient(q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v)
    _checks.matrices(q, k_cache, v_cache, 4, _checks.CACHE_DTYPES)
    batch = q.shape[0]
    head_dim = q.shape[-1]
    _checks.need(k_cache.dim() == 4, f"k_cache is {tuple(k_cache.shape)}, not four-dimensional")
    _checks.refuse(v_cache.shape[-1] != head_dim, f"head_dim {head_dim} of k_cache and {v_cache.shape[-1]} of v_cache")
    _checks.refuse(head_dim % 8 != 0 or head_dim < 16,
                   f"head_dim {head_dim} in a cache: multiples of 8 from 16 on are supported")
    if isinstance(cache_seqlens, int):
        cache_seqlens_cpu = [cache_seqlens] * batch
        cache_seqlens = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)
    if cache_seqlens is not None:
        _checks.int32_vector(cache_seqlens, batch, "cache_seqlens", q)
        cache_seqlens = cache_seqlens.contiguous()
    for name, tensor in (("cache_batch_idx", cache_batch_idx), ("cache_leftpad", cache_leftpad),
                         ("rotary_seqlens", rotary_seqlens)):
        if tensor is not None:
            _checks.int32_vector(tensor, batch, name, q)
    cache_leftpad, rotary_seqlens = contiguous(cache_leftpad), contiguous(rotary_seqlens)
    if block_table is None:
        _checks.need(cache_batch_idx is not None or k_cache.shape[0] >= batch,
                     f"k_cache has {k_cache.shape[0]} rows for {batch} sequences")
        _checks.need(k_cache.numel() > 0, "k_cache is empty")
    else:
        _checks.refuse(cache_leftpad is not None, "cache_leftpad with block_table: rows of a cache can have it")
        _checks.need(cache_seqlens is not None, "block_table needs cache_seqlens")
        if cache_batch_idx is not None:  # of the table's rows, then
            block_table, cache_batch_idx = block_table.index_select(0, cache_batch_idx), None
        _checks.block_table(block_table, batch, k_cache.shape[1], q)
    _checks.need((k is None) == (v is None), "k and v come together")
    if k is not None:
        _checks.need(cache_seqlens is not None, "k and v need cache_seqlens: where they go")
        shape = (batch, k.shape[1], k_cache.shape[2], head_dim)
        _checks.need(tuple(k.shape) == shape and tuple(v.shape) == shape and k.shape[1] > 0,
                     f"k is {tuple(k.shape)}, v {tuple(v.shape)}: {shape}, at least one token")
        _checks.need(k.dtype == q.dtype and v.dtype == q.dtype, f"k is {k.dtype}, v {v.dtype}, q {q.dtype}")
    if rotary_cos is not None or rotary_sin is not None:
        _checks.need(k is not None, "rotary_cos and rotary_sin need k and v")
        _checks.rotary(rotary_cos, rotary_sin, head_dim, q)
    _checks.slopes(alibi_slopes, batch, q)
    _checks.descale(k_descale, "k_descale", k_cache, batch, q)
    _checks.descale(v_descale, "v_descale", v_cache, batch, q)
    _checks.refuse(k is not None and any(map(_checks.is_of_each_sequence, (k_descale, v_descale))),
                   "k and v for an 8-bit cache with scales of each sequence: one row of scales, expanded, is supported")
    left, right = _checks.window(window_size)
    arguments = (q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens,
                 rotary_seqlens if rotary_cos is not None else None, cache_batch_idx, cache_leftpad, block_table,
                 contiguous(alibi_slopes), k_descale, v_descale, host_tensor(cache_seqlens_cpu),
                 _checks.scale_of(softmax_scale, head_dim), bool(causal), left, right, float(softcap),
                 bool(rotary_interleaved))
    if plan is None:
        return _ops.cache(*arguments)
    _checks.need(isinstance(plan, _plan.AttnPlan), f"plan is {type(plan).__name__}, not AttnPlan")
    return _ops.run_cache(*arguments, plan=plan)
