"""What a call must fulfil, as exceptions that say what is wrong. Looks at shapes, types and devices only.

ArgumentError: arguments that contradict each other or the limits. NotImplementedError: what flash-attn has and this
package has not; nothing is ever computed otherwise than asked.
"""

import torch

DTYPES = (torch.float16, torch.bfloat16)
CACHE_DTYPES = tuple(getattr(torch, name) for name in ("float8_e4m3fn", "int8") if hasattr(torch, name))
MAX_HEAD_DIM = 256


def refuse(condition, reason):
    if condition:
        raise NotImplementedError(f"longspan_attn: {reason}")


class ArgumentError(ValueError, RuntimeError):
    """An argument that does not fit. flash-attn raises RuntimeError there; Python's word is ValueError."""


def need(condition, reason):
    if not condition:
        raise ArgumentError(f"longspan_attn: {reason}")


def no_gradient(**tensors):
    """Forward only: a result without a graph would train silently wrong."""
    if not torch.is_grad_enabled():
        return
    for name, tensor in tensors.items():
        refuse(tensor is not None and tensor.requires_grad,
               f"{name}.requires_grad: there is no backward pass; call under torch.no_grad() or detach()")


def window(window_size):
    """(left, right) as ints of at least -1; flash-attn takes None and negative numbers for open, and tensors."""
    need(len(window_size) == 2, f"window_size has {len(window_size)} entries, not 2")
    return tuple(-1 if side is None or int(side) < 0 else int(side) for side in window_size)


def scale_of(softmax_scale, head_dim):
    return float(softmax_scale) if softmax_scale is not None else head_dim ** -0.5


def matrices(q, k, v, q_dims, other_dtypes=()):
    """q, k, v of one type (or k and v of one of the others), with the heads' proportion; q_dims and k's dimensions are
    checked by the caller's shapes."""
    need(q.dim() == q_dims, f"q has {q.dim()} dimensions, not {q_dims}")
    need(q.dtype in DTYPES, f"q is {q.dtype}: float16 and bfloat16 are supported")
    for name, tensor in (("k", k), ("v", v)):
        need(tensor.dtype == q.dtype or tensor.dtype in other_dtypes, f"{name} is {tensor.dtype}, q is {q.dtype}")
        need(tensor.dtype == k.dtype, f"{name} is {tensor.dtype}, k is {k.dtype}")
        need(tensor.device == q.device, f"{name} is on {tensor.device}, q on {q.device}")
        need(tensor.dim() == k.dim(), f"{name} has {tensor.dim()} dimensions, k {k.dim()}")
    need(k.shape[:-1] == v.shape[:-1], f"k is {tuple(k.shape)}, v is {tuple(v.shape)}")
    need(q.shape[-1] == k.shape[-1], f"head_dim of q is {q.shape[-1]}, of k {k.shape[-1]}")
    need(0 < q.shape[-1] <= MAX_HEAD_DIM, f"head_dim {q.shape[-1]}: 1 to {MAX_HEAD_DIM} are supported")
    need(0 < v.shape[-1] <= MAX_HEAD_DIM, f"head_dim {v.shape[-1]} of v: 1 to {MAX_HEAD_DIM} are supported")
    heads, kv_heads = q.shape[-2], k.shape[-2]
    need(kv_heads > 0 and heads > 0 and heads % kv_heads == 0,
         f"{heads} query heads are not a multiple of {kv_heads} KV heads")


def int32_vector(tensor, length, name, q):
    need(isinstance(tensor, torch.Tensor), f"{name} is {type(tensor).__name__}, not a tensor")
    need(tensor.dtype == torch.int32, f"{name} is {tensor.dtype}, not int32")
    need(tensor.dim() == 1 and (length is None or tensor.shape[0] == length),
         f"{name} is {tuple(tensor.shape)}, not ({'B + 1' if length is None else length},)")
    need(tensor.device == q.device, f"{name} is on {tensor.device}, q on {q.device}")


def slopes(alibi_slopes, num_seqs, q):
    if alibi_slopes is None:
        return
    need(alibi_slopes.dtype == torch.float32, f"alibi_slopes are {alibi_slopes.dtype}, not float32")
    need(alibi_slopes.device == q.device, f"alibi_slopes are on {alibi_slopes.device}, q on {q.device}")
    heads = q.shape[-2]
    need(tuple(alibi_slopes.shape) in ((heads,), (num_seqs, heads)),
         f"alibi_slopes are {tuple(alibi_slopes.shape)}, not ({heads},) or ({num_seqs}, {heads})")


def is_of_each_sequence(tensor):
    """Whether slopes or scales [sequences, heads] differ from sequence to sequence."""
    return tensor is not None and tensor.dim() == 2 and tensor.shape[0] > 1 and tensor.stride(0) != 0


def descale(tensor, name, cache, num_seqs, q):
    """FlashAttention-3's scales of an 8-bit cache."""
    if tensor is None:
        return
    need(cache.dtype in CACHE_DTYPES, f"{name} with a cache of {cache.dtype}: scales are of 8-bit caches")
    need(tensor.dtype == torch.float32, f"{name} is {tensor.dtype}, not float32")
    need(tensor.device == q.device, f"{name} is on {tensor.device}, q on {q.device}")
    shape = (num_seqs, cache.shape[-2])
    need(tuple(tensor.shape) == shape, f"{name} is {tuple(tensor.shape)}, not {shape}")


def block_table(table, num_seqs, block_size, q):
    need(table.dtype == torch.int32, f"block_table is {table.dtype}, not int32")
    need(table.dim() == 2 and table.shape[0] == num_seqs,
         f"block_table is {tuple(table.shape)}, not ({num_seqs}, blocks of a sequence)")
    need(table.device == q.device, f"block_table is on {table.device}, q on {q.device}")
    refuse(block_size % 16 != 0 or block_size == 0, f"blocks of {block_size} tokens: multiples of 16 are supported")


def rotary(cos, sin, head_dim, q):
    need(sin is not None and cos is not None, "rotary_cos and rotary_sin come together")
    need(cos.dim() == 2 and cos.shape == sin.shape, f"rotary_cos is {tuple(cos.shape)}, rotary_sin {tuple(sin.shape)}")
    need(cos.dtype == q.dtype and sin.dtype == q.dtype, f"rotary_cos is {cos.dtype}, q is {q.dtype}")
    need(cos.device == q.device and sin.device == q.device, f"rotary_cos is on {cos.device}, q on {q.device}")
    dim = 2 * cos.shape[1]
    need(dim % 16 == 0 and 0 < dim <= head_dim, f"rotary_dim {dim}: a multiple of 16, at most head_dim {head_dim}")
    need(cos.shape[0] > 0, "rotary_cos has no positions")


def on_gpu(q):
    need(q.device.type == "cuda", f"q is on {q.device}: the kernels run on CUDA devices")
