"""The operators longspan_attn::dense, ::varlen and ::cache, with shapes for tensors without memory.

torch.compile sees these and nothing behind them. They plan on the host, so they are marked as unsafe inside a CUDA
graph that the compiler makes; graphs made by hand take an AttnPlan.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

from longspan_attn import _attend, _checks, _plan
from longspan_attn._attend import Options

_TAGS = tuple(tag for tag in (getattr(torch.Tag, "cudagraph_unsafe", None),) if tag is not None)


def _define(name, mutates_args=()):
    def decorate(function):
        try:
            return torch.library.custom_op(f"longspan_attn::{name}", function, mutates_args=mutates_args, tags=_TAGS)
        except TypeError:  # torch before tags
            return torch.library.custom_op(f"longspan_attn::{name}", function, mutates_args=mutates_args)
    return decorate


@_define("dense")
def dense(q: Tensor, k: Tensor, v: Tensor, alibi_slopes: Optional[Tensor], softmax_scale: float, causal: bool,
          window_left: int, window_right: int, softcap: float) -> Tuple[Tensor, Tensor]:
    _checks.on_gpu(q)
    return _attend.dense(q, k, v, alibi_slopes, Options(softmax_scale, causal, window_left, window_right, softcap))


def _lse(q, batch, q_len, heads):
    """[B, H, Lq] as the kernels leave it: heads are innermost."""
    return q.new_empty((batch, q_len, heads), dtype=torch.float32).transpose(1, 2)


@dense.register_fake
def _(q, k, v, alibi_slopes, softmax_scale, causal, window_left, window_right, softcap):
    batch, q_len, heads, _ = q.shape
    return q.new_empty((batch, q_len, heads, v.shape[-1])), _lse(q, batch, q_len, heads)


def host_lengths(on_device, on_host, name):
    """As ints: from the copy on the host, else by a copy that waits for the device."""
    if on_host is not None:
        values = _plan.as_ints(on_host, name)
        if len(values) != on_device.shape[0]:
            raise ValueError(f"longspan_attn: {name} has {len(values)} entries, not {on_device.shape[0]}")
        return values
    if _plan.is_capturing():
        raise RuntimeError(f"longspan_attn: lengths on the device cannot be read while a CUDA graph is captured: pass "
                           f"{name} or plan=")
    return on_device.tolist()


@_define("varlen")
def varlen(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, seqused_k: Optional[Tensor],
           block_table: Optional[Tensor], alibi_slopes: Optional[Tensor], cu_seqlens_q_cpu: Optional[Tensor],
           cu_seqlens_k_cpu: Optional[Tensor], max_seqlen_q: int, max_seqlen_k: int, softmax_scale: float,
           causal: bool, window_left: int, window_right: int, softcap: float) -> Tuple[Tensor, Tensor]:
    _checks.on_gpu(q)
    cu_q = host_lengths(cu_seqlens_q, cu_seqlens_q_cpu, "cu_seqlens_q_cpu")
    cu_k = host_lengths(cu_seqlens_k, cu_seqlens_k_cpu, "cu_seqlens_k_cpu")
    sums(cu_q, q.shape[0], "cu_seqlens_q")
    sums(cu_k, None if block_table is not None else k.shape[0], "cu_seqlens_k")
    lengths = [end - begin for begin, end in zip(cu_k, cu_k[1:])]
    if seqused_k is not None:
        used = seqused_k.tolist()
        for seq, (length, room) in enumerate(zip(used, lengths)):
            _checks.need(0 <= length <= room, f"seqused_k[{seq}] is {length}, cu_seqlens_k gives {room} tokens")
        lengths = used
    longest = max(lengths, default=0)
    _checks.need(longest <= max_seqlen_k, f"max_seqlen_k is {max_seqlen_k}, a sequence has {longest} keys")
    options = Options(softmax_scale, causal, window_left, window_right, softcap)
    return _attend.varlen(q, k, v, cu_q, lengths, cu_k[:-1], block_table, max_seqlen_q, alibi_slopes, options)


def sums(values, rows, name):
    """Cumulative lengths that begin at 0 or later, never descend, and end within the tensor."""
    _checks.need(all(a <= b for a, b in zip(values, values[1:])) and (not values or values[0] >= 0),
                 f"{name} descends or begins below 0")
    _checks.need(rows is None or not values or values[-1] <= rows,
                 f"{name} ends at {values and values[-1]}, there are {rows} rows")


@varlen.register_fake
def _(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table, alibi_slopes, cu_seqlens_q_cpu, cu_seqlens_k_cpu,
      max_seqlen_q, max_seqlen_k, softmax_scale, causal, window_left, window_right, softcap):
    rows, heads, _ = q.shape
    return q.new_empty((rows, heads, v.shape[-1])), q.new_empty((rows, heads), dtype=torch.float32).transpose(0, 1)


@_define("cache", mutates_args=("k_cache", "v_cache"))
def cache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor], v: Optional[Tensor],
          rotary_cos: Optional[Tensor], rotary_sin: Optional[Tensor], cache_seqlens: Optional[Tensor],
          rotary_seqlens: Optional[Tensor], cache_batch_idx: Optional[Tensor], cache_leftpad: Optional[Tensor],
          block_table: Optional[Tensor], alibi_slopes: Optional[Tensor], k_descale: Optional[Tensor],
          v_descale: Optional[Tensor], cache_seqlens_cpu: Optional[Tensor], softmax_scale: float, causal: bool, window_left: int, window_right: int, softcap: float,
          rotary_interleaved: bool) -> Tuple[Tensor, Tensor]:
    return run_cache(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, rotary_seqlens, cache_batch_idx,
                     cache_leftpad, block_table, alibi_slopes, k_descale, v_descale, cache_seqlens_cpu, softmax_scale,
                     causal, window_left, window_right, softcap, rotary_interleaved)


def run_cache(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, rotary_seqlens, cache_batch_idx,
              cache_leftpad, block_table, alibi_slopes, k_descale, v_descale, cache_seqlens_cpu, softmax_scale, causal,
              window_left, window_right, softcap, rotary_interleaved, plan=None):
    """The operator, and with a plan what no operator can take."""
    _checks.on_gpu(q)
    if cache_seqlens is None:
        lengths = [k_cache.shape[1]] * q.shape[0]
    elif plan is not None and _plan.is_capturing():
        lengths = None
    else:
        lengths = host_lengths(cache_seqlens, cache_seqlens_cpu, "cache_seqlens_cpu")
    options = Options(softmax_scale, causal, window_left, window_right, softcap)
    return _attend.cache(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, rotary_seqlens,
                         cache_batch_idx, cache_leftpad, block_table, alibi_slopes, k_descale, v_descale, options,
                         rotary_interleaved, lengths, plan)


@cache.register_fake
def _(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, rotary_seqlens, cache_batch_idx, cache_leftpad,
      block_table, alibi_slopes, k_descale, v_descale, cache_seqlens_cpu, softmax_scale, causal, window_left, window_right, softcap,
      rotary_interleaved):
    batch, q_len, heads, _ = q.shape
    return q.new_empty((batch, q_len, heads, v_cache.shape[-1])), _lse(q, batch, q_len, heads)
