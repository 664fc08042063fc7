"""FlashAttention-2's functions: the same positional signatures; what is ours comes by keyword behind them."""

from typing import Optional, Union

import torch

from longspan_attn import _checks, _entry


def _only_forward(dropout_p, return_attn_probs):
    _checks.refuse(dropout_p != 0.0, f"dropout_p={dropout_p}: dropout is not supported, only 0.0")
    _checks.refuse(return_attn_probs, "return_attn_probs: probabilities are never made; return_lse=True gives the lse")


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    *,
    return_lse=False,
):
    """Attention of batches of one length.

    q [B, Lq, H, D], k [B, Lk, Hk, D], v [B, Lk, Hk, Dv]; float16 or bfloat16; H a multiple of Hk; D, Dv up to 256
    (those that are no multiple of 8 from 16 on, or differ, are padded: copies). Any strides; those that are no
    multiple of 8 elements, and last dimensions that are not contiguous, cost a copy.

    causal and window_size=(left, right) are aligned at the bottom right; a row that sees no key gives 0 and lse -inf.
    softmax_scale: None is D ** -0.5. softcap: 0 is off. alibi_slopes: float32 [H], or [B, H] (a launch a sequence).
    deterministic changes nothing: there is no backward pass.

    Answers out [B, Lq, H, Dv]; with return_lse=True (out, lse), lse float32 [B, H, Lq], natural logarithm.

    Raises NotImplementedError for dropout_p > 0, return_attn_probs and tensors that require a gradient; ArgumentError
    (a ValueError and a RuntimeError) for shapes, types and devices that do not fit; LibraryError when the library
    cannot be loaded or refuses.
    """
    _only_forward(dropout_p, return_attn_probs)
    out, lse = _entry.dense(q, k, v, softmax_scale, causal, window_size, softcap, alibi_slopes)
    return (out, lse.contiguous()) if return_lse else out


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
    *,
    return_lse=False,
    cu_seqlens_q_cpu=None,
    cu_seqlens_k_cpu=None,
):
    """Attention of sequences behind one another.

    q [rows, H, D], k [tokens, Hk, D], v [tokens, Hk, Dv]; with block_table (int32 [B, blocks of a sequence]) k and v
    are [blocks, block_size, Hk, D], block_size a multiple of 16 (above 256 it must be contiguous).
    cu_seqlens_q, cu_seqlens_k: int32 [B + 1] on q's device.

    The plan is made on the host. cu_seqlens_q_cpu and cu_seqlens_k_cpu (ints or CPU tensors) are the same numbers
    there; without them they are copied from the device, which waits for it.

    Answers out [rows, H, Dv]; with return_lse=True (out, lse), lse float32 [H, rows]. Rows past the last sequence hold
    anything. Everything else as flash_attn_func.
    """
    _only_forward(dropout_p, return_attn_probs)
    out, lse = _entry.varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, None, softmax_scale,
                             causal, window_size, softcap, alibi_slopes, block_table, cu_seqlens_q_cpu,
                             cu_seqlens_k_cpu)
    return (out, lse.contiguous()) if return_lse else out


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens: Optional[Union[(int, torch.Tensor)]] = None,
    cache_batch_idx: Optional[torch.Tensor] = None,
    cache_leftpad: Optional[torch.Tensor] = None,
    block_table: Optional[torch.Tensor] = None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
    *,
    cache_seqlens_cpu=None,
    plan=None,
):
    """Attention against a cache, after new keys and values were appended to it in place.

    q [B, Lq, H, D]; k_cache, v_cache [rows, capacity, Hk, D], or [blocks, block_size, Hk, D] with block_table (int32
    [B, blocks of a sequence]; block_size a multiple of 16, above 256 contiguous). D a multiple of 8 from 16 on. Strides
    of the caches are multiples of 8 elements; they are never copied.

    k, v [B, Lnew, Hk, D] go to the slots from cache_seqlens on. rotary_cos, rotary_sin [positions, rotary_dim / 2], of
    q's type, rotary_dim a multiple of 16: keys are turned by their position; so are queries when causal or with a
    window, else all of them by cache_seqlens. rotary_interleaved: pairs (0, 1), (2, 3), ...; else (0, rotary_dim / 2).

    cache_seqlens: int, or int32 [B] on q's device; None: the whole capacity. cache_batch_idx [B]: row of each sequence,
    of the cache or of block_table. cache_leftpad [B]: first slot that counts; not with block_table. Of a cache without
    blocks both are read on the host, as cache_seqlens is.

    The plan is made on the host: cache_seqlens_cpu (ints or a CPU tensor) are the same lengths there; without it they
    are copied from the device, which waits for it. plan: an AttnPlan, for CUDA graphs. num_splits is not needed: the
    plan cuts the keys.

    Answers out [B, Lq, H, D]; with return_softmax_lse=True (out, lse), lse float32 [B, H, Lq].
    """
    out, lse = _entry.cache(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx,
                            cache_leftpad, block_table, softmax_scale, causal, window_size, softcap,
                            rotary_interleaved, alibi_slopes, None, cache_seqlens_cpu, plan)
    return (out, lse.contiguous()) if return_softmax_lse else out
