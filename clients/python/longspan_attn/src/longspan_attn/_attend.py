"""From tensors to the library's calls: views without copies where strides allow it, then plan, append, launch."""

import functools

import torch

from longspan_attn import _checks, _plan
from longspan_attn import _library as lib

_DTYPE = {torch.float16: lib.FLOAT16, torch.bfloat16: lib.BFLOAT16}
_KV_DTYPE = dict(zip((getattr(torch, name, None) for name in ("float8_e4m3fn", "int8")), (lib.FLOAT8_E4M3, lib.INT8)))


class Options:
    """Masks and scaling of a call, as they go into the library."""

    def __init__(self, scale, causal, window_left, window_right, softcap):
        self.scale, self.causal, self.softcap = scale, bool(causal), float(softcap)
        self.window_left, self.window_right = window_left, window_right


def stride(tensor, dim):
    """Of a dimension with one entry any number would do: 0, which every kernel takes."""
    return tensor.stride(dim) if tensor.shape[dim] > 1 else 0


def is_direct(tensor):
    """Whether kernels can read it where it lies: 16-byte steps and a contiguous last dimension."""
    steps = (stride(tensor, dim) for dim in range(tensor.dim() - 1))
    return (tensor.shape[-1] == 1 or tensor.stride(-1) == 1) and all(step % 8 == 0 for step in steps) and (
        tensor.data_ptr() % 16 == 0)


def direct(tensor):
    return tensor if is_direct(tensor) else tensor.clone(memory_format=torch.contiguous_format)


def supported_head_dim(*dims):
    return max(16, (max(dims) + 7) // 8 * 8)


def pad(tensor, head_dim):
    """Zeros behind the last dimension change no score and add columns of zeros to the output."""
    missing = head_dim - tensor.shape[-1]
    return tensor if missing == 0 else torch.nn.functional.pad(tensor, (0, missing))


def same_steps(k, v):
    """Whether rows and tokens of k and v can be counted with the same numbers."""
    return stride(k, 0) * stride(v, 1) == stride(v, 0) * stride(k, 1) and (
        all((stride(k, dim) == 0) == (stride(v, dim) == 0) for dim in (0, 1)))


def make_call(q, out, lse, options, *, num_seqs, max_q_len):
    """The query side of a call; q and out are [rows, heads, head_dim]."""
    return lib.Call(
        dtype=_DTYPE[q.dtype], num_seqs=num_seqs, num_q_heads=q.shape[1], head_dim=q.shape[2], max_q_len=max_q_len,
        causal=options.causal, window_left=options.window_left, window_right=options.window_right,
        scale=options.scale, softcap=options.softcap, total_q=q.shape[0], q=q.data_ptr(), o=out.data_ptr(),
        lse=lse.data_ptr(), q_token_stride=stride(q, 0), q_head_stride=stride(q, 1), o_token_stride=stride(out, 0),
        o_head_stride=stride(out, 1))


def set_rows(call, k, v, *, any_start):
    """Keys and values in rows of a [rows, tokens, heads, head_dim] cache."""
    call.kv_layout = lib.PACKED if any_start else lib.ROWS
    call.num_blocks, call.kv_capacity = k.shape[0], k.shape[1]
    _set_kv(call, k, v)
    if k.shape[1] == 1:  # a token stride is asked for, used or not: rows of one token are steps themselves
        call.k_token_stride = call.k_block_stride or 8
        call.v_token_stride = call.v_block_stride or 8


def set_blocks(call, k, v, table):
    """Keys and values in blocks [blocks, block_size, heads, head_dim]."""
    call.kv_layout, call.num_blocks, call.block_size = lib.PAGED, k.shape[0], k.shape[1]
    call.block_table, call.block_table_stride = table.data_ptr(), stride(table, 0) or table.shape[1]
    _set_kv(call, k, v)


def _set_kv(call, k, v):
    call.num_kv_heads, call.kv_dtype = k.shape[2], _KV_DTYPE.get(k.dtype, 0)
    call.k, call.v = k.data_ptr(), v.data_ptr()
    call.k_block_stride, call.k_token_stride, call.k_head_stride = (stride(k, dim) for dim in range(3))
    call.v_block_stride, call.v_token_stride, call.v_head_stride = (stride(v, dim) for dim in range(3))


@functools.cache
def _one(device):
    return torch.ones(1, dtype=torch.float32, device=device)


def set_scales(call, k_descale, v_descale, device):
    """Scales [sequences, heads] of an 8-bit cache, those of sequence 0; None: 1."""
    if call.kv_dtype == 0:
        return
    for base, scales in (("k", k_descale), ("v", v_descale)):
        setattr(call, base + "_scale", (_one(device) if scales is None else scales).data_ptr())
        setattr(call, base + "_scale_head_stride", 0 if scales is None else stride(scales, 1))


def split_blocks(k, v, table):
    """Blocks of more than 256 tokens as several smaller ones: views, and a table made on the device."""
    size = k.shape[1]
    if size <= 256:
        return k, v, table
    part = next(n for n in range(256, 0, -16) if size % n == 0)
    parts = size // part

    def cut(cache):
        _checks.refuse(stride(cache, 0) != size * cache.stride(1) and cache.shape[0] > 1,
                       f"blocks of {size} tokens that do not follow one another in memory")
        shape = (cache.shape[0] * parts, part, *cache.shape[2:])
        return cache.as_strided(shape, (part * cache.stride(1), *cache.stride()[1:]))

    steps = torch.arange(parts, dtype=torch.int32, device=table.device)
    return cut(k), cut(v), (table.unsqueeze(-1) * parts + steps).flatten(1)


def launch(call, lengths, q, *, keep=False, plan=None, new_len=0, append=None, attend=True):
    """Plans, appends if wanted, attends if wanted: enqueued on the current stream."""
    index = q.device.index
    with torch.cuda.device(index):
        device = lib.device(index)
        stream = torch.cuda.current_stream(index).cuda_stream
        made = _plan.plan_for(call, lengths, index, keep=keep, plan=plan, new_len=new_len)
        memory = made.memory.data_ptr()
        if append is not None:
            num_bytes = device.append_bytes(call, append)
            scratch = torch.empty(max(num_bytes, 1), dtype=torch.uint8, device=q.device)
            append.scratch, append.scratch_bytes = scratch.data_ptr(), num_bytes
            device.append(call, append, memory, stream)
        if not attend:
            return
        workspace = _plan.workspace_for(call, made, index, is_callers=plan is not None)
        device.run(call, memory, made.info, workspace.data_ptr(), workspace.numel(), stream)


def launch_per_sequence(call, lengths, q, alibi_slopes, k_descale=None, v_descale=None, **options):
    """ALiBi slopes and scales of all sequences: one launch; of each sequence its own: one launch a sequence."""
    call.alibi_slopes = None if alibi_slopes is None else alibi_slopes.data_ptr()
    own = {"alibi_slopes": alibi_slopes, "k_scale": k_descale, "v_scale": v_descale}
    own = {name: tensor for name, tensor in own.items() if _checks.is_of_each_sequence(tensor)}
    if not own:
        return launch(call, lengths, q, **options)
    _checks.refuse(options.get("plan") is not None, f"plan= with {', '.join(own)} of each sequence")
    for seq in range(call.num_seqs):
        one = type(call).from_buffer_copy(call)
        one.num_seqs = 1
        for name, tensor in own.items():
            setattr(one, name, tensor.data_ptr() + 4 * seq * stride(tensor, 0))
        if call.kv_layout == lib.PAGED:
            one.block_table = call.block_table + 4 * seq * call.block_table_stride
        rows = lengths.kv_rows[seq:seq + 1] if lengths.kv_rows is not None else [seq]
        starts = None if lengths.kv_starts is None else lengths.kv_starts[seq:seq + 1]
        part = _plan.HostLengths(lengths.cu_seqlens_q[seq:seq + 2], lengths.seq_lens[seq:seq + 1], rows, starts)
        launch(one, part, q, keep=options.get("keep", False))
    return None


def empty_result(q, v_head_dim):
    """Queries without keys: zeros, and lse of -inf."""
    out = q.new_zeros((*q.shape[:-1], v_head_dim))
    return out, torch.full(q.shape[:-1], float("-inf"), dtype=torch.float32, device=q.device)


def dense(q, k, v, alibi_slopes, options):
    """q [B, Lq, H, D], k, v [B, Lk, Hk, D]. Answers out [B, Lq, H, Dv] and lse [B, H, Lq]."""
    batch, q_len, heads, _ = q.shape
    v_dim = v.shape[-1]
    if q.numel() == 0 or k.numel() == 0:
        out, lse = empty_result(q, v_dim)
        return out, lse.transpose(1, 2)
    head_dim = supported_head_dim(q.shape[-1], v_dim)
    q, k, v = (direct(pad(tensor, head_dim)) for tensor in (q, k, v))
    if not same_steps(k, v):
        k, v = k.contiguous(), v.contiguous()
    rows = direct(q.reshape(batch * q_len, heads, head_dim))
    out = torch.empty((batch * q_len, heads, head_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch * q_len, heads), dtype=torch.float32, device=q.device)
    call = make_call(rows, out, lse, options, num_seqs=batch, max_q_len=q_len)
    set_rows(call, k, v, any_start=False)
    lengths = _plan.HostLengths([b * q_len for b in range(batch + 1)], [k.shape[1]] * batch)
    launch_per_sequence(call, lengths, q, alibi_slopes, keep=True)
    out = out.view(batch, q_len, heads, head_dim)[..., :v_dim]
    return out.contiguous(), lse.view(batch, q_len, heads).transpose(1, 2)


def varlen(q, k, v, cu_q, seq_lens, k_starts, block_table, max_q_len, alibi_slopes, options):
    """q [rows, H, D]; k, v [tokens, Hk, D] or, with a table, blocks. cu_q, seq_lens, k_starts: ints.

    Answers out [rows, H, Dv] and lse [H, rows]; rows past cu_q's last are not written.
    """
    v_dim = v.shape[-1]
    num_seqs = len(seq_lens)
    if q.numel() == 0 or k.numel() == 0 or num_seqs == 0:
        out, lse = empty_result(q, v_dim)
        return out, lse.transpose(0, 1)
    head_dim = supported_head_dim(q.shape[-1], v_dim)
    paged = block_table is not None
    _checks.refuse(paged and (head_dim != k.shape[-1] or head_dim != v_dim),
                   f"head_dim {k.shape[-1]} (k), {v_dim} (v) in blocks: equal multiples of 8 from 16 on are supported")
    q, k, v = (direct(pad(tensor, head_dim)) for tensor in (q, k, v))
    out = torch.empty((q.shape[0], q.shape[1], head_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    longest = max(b - a for a, b in zip(cu_q, cu_q[1:]))
    _checks.need(longest <= max_q_len, f"max_seqlen_q is {max_q_len}, a sequence has {longest} query rows")
    call = make_call(q, out, lse, options, num_seqs=num_seqs, max_q_len=max_q_len)
    if paged:
        k, v, block_table = split_blocks(k, v, block_table.contiguous())
        set_blocks(call, k, v, block_table)
        lengths = _plan.HostLengths(cu_q, seq_lens)
    else:
        k, v = k.unsqueeze(0), v.unsqueeze(0)
        if not same_steps(k, v):
            k, v = k.contiguous(), v.contiguous()
        set_rows(call, k, v, any_start=True)
        lengths = _plan.HostLengths(cu_q, seq_lens, [0] * num_seqs, k_starts)
    launch_per_sequence(call, lengths, q, alibi_slopes)
    return out[..., :v_dim].contiguous(), lse.transpose(0, 1)


def cache(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, positions, cache_batch_idx, cache_leftpad,
          block_table, alibi_slopes, k_descale, v_descale, options, interleaved, lengths_cpu, plan=None):
    """q [B, Lq, H, D] against a cache in rows or blocks, after k, v [B, Lnew, Hk, D] were appended to it.

    lengths_cpu: ints, before the append; None while a graph with a plan is captured. Answers out and lse [B, H, Lq].
    """
    batch, q_len, heads, head_dim = q.shape
    for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache)):
        _checks.need(is_direct(tensor), f"{name}: strides must be multiples of 8 elements, the last dimension "
                                        "contiguous, the address a multiple of 16 bytes")
    new_len = 0 if k is None else k.shape[1]
    rows = q.reshape(batch * q_len, heads, head_dim)
    rows = rows.clone(memory_format=torch.contiguous_format) if rotary_cos is not None else direct(rows)
    out = torch.empty((batch * q_len, heads, head_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch * q_len, heads), dtype=torch.float32, device=q.device)
    if rows.numel() == 0:
        return out.view(q.shape), lse.view(batch, q_len, heads).transpose(1, 2)
    call = make_call(rows, out, lse, options, num_seqs=batch, max_q_len=q_len)
    starts = None
    kv_rows = None
    if block_table is not None:
        k_cache, v_cache, block_table = split_blocks(k_cache, v_cache, block_table.contiguous())
        set_blocks(call, k_cache, v_cache, block_table)
        holder, capacity = "block_table", block_table.shape[1] * k_cache.shape[1]
    else:
        _checks.need(same_steps(k_cache, v_cache), "k_cache and v_cache: rows and tokens in the same proportion")
        set_rows(call, k_cache, v_cache, any_start=cache_leftpad is not None)
        holder, capacity = "the cache", k_cache.shape[1]
    set_scales(call, k_descale, v_descale, q.device)
    lengths = None
    if lengths_cpu is not None:
        if cache_leftpad is not None:
            starts = cache_leftpad.tolist()
        if cache_batch_idx is not None:
            kv_rows = cache_batch_idx.tolist()
        for seq, length in enumerate(lengths_cpu):
            _checks.need(0 <= length and length + new_len <= capacity,
                         f"sequence {seq}: {length} tokens and {new_len} new ones, {holder} holds {capacity}")
            _checks.need(starts is None or starts[seq] <= length,
                         f"sequence {seq}: cache_leftpad {starts and starts[seq]} is past cache_seqlens {length}")
        totals = [n + new_len - (starts[b] if starts else 0) for b, n in enumerate(lengths_cpu)]
        lengths = _plan.HostLengths([b * q_len for b in range(batch + 1)], totals, kv_rows, starts)
    append, kept = None, []
    if k is not None:
        append, kept = make_append(call, k, v, rows, rotary_cos, rotary_sin, cache_seqlens, positions, cache_leftpad,
                                   interleaved, q_fixed=not _is_local(options), q_len=q_len)
        if _checks.is_of_each_sequence(alibi_slopes):  # one append, but a launch for every sequence
            _checks.refuse(plan is not None, "plan= with alibi_slopes of each sequence")
            launch(call, lengths, q, new_len=new_len, append=append, attend=False)
            append = None
    launch_per_sequence(call, lengths, q, alibi_slopes, k_descale, v_descale, plan=plan, new_len=new_len,
                        append=append)
    del kept
    return out.view(q.shape), lse.view(batch, q_len, heads).transpose(1, 2)


def _is_local(options):
    return options.causal or options.window_left >= 0 or options.window_right >= 0


def make_append(call, k, v, rows, cos, sin, cache_seqlens, positions, leftpad, interleaved, *, q_fixed, q_len):
    """The append of a call and the tensors that must live until it is enqueued."""
    k, v = (direct(tensor.reshape(-1, *tensor.shape[2:])) for tensor in (k, v))
    append = lib.Append(
        new_len=k.shape[0] // call.num_seqs, k_new=k.data_ptr(), v_new=v.data_ptr(), k_token_stride=stride(k, 0),
        k_head_stride=stride(k, 1), v_token_stride=stride(v, 0), v_head_stride=stride(v, 1),
        cache_seqlens=cache_seqlens.data_ptr(), kv_starts=None if leftpad is None else leftpad.data_ptr())
    kept = [k, v]
    if cos is not None:
        cos, sin = (tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (cos, sin))
        if stride(cos, 0) != stride(sin, 0):
            cos, sin = cos.contiguous(), sin.contiguous()
        kept += [cos, sin]
        append.rotary_cos, append.rotary_sin = cos.data_ptr(), sin.data_ptr()
        append.positions = None if positions is None else positions.data_ptr()
        append.rotary_stride, append.num_positions = stride(cos, 0), cos.shape[0]
        append.rotary_dim, append.interleaved = 2 * cos.shape[1], interleaved
        append.q, append.q_len, append.q_fixed = rows.data_ptr(), q_len, q_fixed
    return append, kept
