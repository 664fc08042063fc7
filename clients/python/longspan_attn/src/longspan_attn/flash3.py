"""FlashAttention-3's functions: the same positional signatures. Shapes, types and errors: longspan_attn.flash2.

num_splits, pack_gqa, sm_margin and deterministic say how to compute, not what: they change nothing here.
"""

from typing import Optional, Union

import torch

from longspan_attn import _checks, _entry


def _refuse(qv, q_descale, k_descale, v_descale, attention_chunk, scheduler_metadata=None):
    _checks.refuse(qv is not None, "qv is not supported")
    _checks.refuse(any(x is not None for x in (q_descale, k_descale, v_descale)),
                   "q_descale, k_descale, v_descale: of 8-bit types a cache alone (flash_attn_with_kvcache) is supported")
    _checks.refuse(attention_chunk != 0, f"attention_chunk={attention_chunk} is not supported")
    _checks.refuse(scheduler_metadata is not None, "scheduler_metadata is not supported: AttnPlan does its work")


def flash_attn_func(
    q,
    k,
    v,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None, k_descale=None, v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
):
    """As flash2.flash_attn_func. return_attn_probs=True answers (out, lse), as FlashAttention-3 does."""
    _refuse(qv, q_descale, k_descale, v_descale, attention_chunk)
    out, lse = _entry.dense(q, k, v, softmax_scale, causal, window_size, softcap, None)
    return (out, lse.contiguous()) if return_attn_probs else out


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    seqused_q=None,
    seqused_k=None,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None, k_descale=None, v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
    *,
    cu_seqlens_q_cpu=None,
    cu_seqlens_k_cpu=None,
):
    """As flash2.flash_attn_varlen_func. seqused_k: int32 [B], keys that count. seqused_q is not supported."""
    _refuse(qv, q_descale, k_descale, v_descale, attention_chunk)
    _checks.refuse(seqused_q is not None, "seqused_q is not supported: cu_seqlens_q says which rows count")
    out, lse = _entry.varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_k, softmax_scale,
                             causal, window_size, softcap, None, None, cu_seqlens_q_cpu, cu_seqlens_k_cpu)
    return (out, lse.contiguous()) if return_attn_probs else out


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    qv=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens: Optional[Union[(int, torch.Tensor)]] = None,
    cache_batch_idx: Optional[torch.Tensor] = None,
    cache_leftpad: Optional[torch.Tensor] = None,
    page_table: Optional[torch.Tensor] = None,
    cu_seqlens_q: Optional[torch.Tensor] = None,
    cu_seqlens_k_new: Optional[torch.Tensor] = None,
    max_seqlen_q: Optional[int] = None,
    rotary_seqlens: Optional[torch.Tensor] = None,
    q_descale: Optional[torch.Tensor] = None,
    k_descale: Optional[torch.Tensor] = None,
    v_descale: Optional[torch.Tensor] = None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    rotary_interleaved=True,
    scheduler_metadata=None,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
    return_softmax_lse=False,
    *,
    cache_seqlens_cpu=None,
    plan=None,
):
    """As flash2.flash_attn_with_kvcache. k_cache and v_cache may be float8_e4m3fn or int8 beside 16-bit q, k and v:
    k_descale and v_descale, float32 [B, kv heads], are what stored values are multiplied by; None: 1. Expanded from one
    row ([1, heads].expand(B, -1)) they cost one launch, else one a sequence, and then k and v cannot be appended.
    rotary_seqlens: int32 [B], positions in place of cache_seqlens.

    cu_seqlens_q and cu_seqlens_k_new (batches of unequal query lengths) are not supported.
    """
    _refuse(qv, q_descale, None, None, attention_chunk, scheduler_metadata)
    _checks.refuse(cu_seqlens_q is not None or cu_seqlens_k_new is not None,
                   "cu_seqlens_q, cu_seqlens_k_new: flash_attn_varlen_func of flash2 takes block_table")
    out, lse = _entry.cache(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx,
                            cache_leftpad, page_table, softmax_scale, causal, window_size, softcap, rotary_interleaved,
                            None, rotary_seqlens, cache_seqlens_cpu, plan, k_descale, v_descale)
    return (out, lse.contiguous()) if return_softmax_lse else out
