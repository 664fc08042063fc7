"""What the library does with a call, in double on the CPU, one sequence at a time: reads and writes memory through the
call's pointers and strides alone, as attn_c.h describes them. Shares no code with the package but the structs.
"""

import ctypes

import numpy
import torch

from longspan_attn import _library as lib

TYPES = {lib.FLOAT16: torch.float16, lib.BFLOAT16: torch.bfloat16, lib.FLOAT8_E4M3: torch.float8_e4m3fn,
         lib.INT8: torch.int8}


def view(address, dtype, shape, strides):
    """A tensor on somebody's memory."""
    extent = 1 + sum((size - 1) * step for size, step in zip(shape, strides))
    memory = (ctypes.c_char * (extent * dtype.itemsize)).from_address(address)
    flat = torch.from_numpy(numpy.frombuffer(memory, dtype=numpy.uint8)).view(dtype)
    return flat.as_strided(shape, strides)


def kv_type(call):
    return TYPES[call.kv_dtype or call.dtype]


def scales(call, base):
    """[heads, 1] of the keys ("k") or values ("v"); of blocks apart they are not tested here."""
    if call.kv_dtype == 0:
        return 1.0
    assert getattr(call, base + "_scale_block_stride") == 0
    step = getattr(call, base + "_scale_head_stride")
    return view(getattr(call, base + "_scale"), torch.float32, (call.num_kv_heads, 1), (step, 0)).double()


def element(call, base, step, place, heads, dtype):
    """[heads, head_dim] of one token; place: elements from the base."""
    return view(base + place * dtype.itemsize, dtype, (heads, call.head_dim), (step, 1))


def places(call, lengths, seq, tokens, base):
    """Offsets in elements of tokens 0, 1, ... of a sequence's keys ("k") or values ("v")."""
    block, token = getattr(call, base + "_block_stride"), getattr(call, base + "_token_stride")
    if call.kv_layout == lib.PAGED:
        entries = max(1, -(-tokens // call.block_size))
        assert entries <= max(call.block_table_stride, 1)
        table = view(call.block_table + 4 * seq * call.block_table_stride, torch.int32, (entries,), (1,)).tolist()
        ids = [table[t // call.block_size] for t in range(tokens)]
        assert all(0 <= i < call.num_blocks for i in ids)
        return [i * block + t % call.block_size * token for t, i in enumerate(ids)]
    row = seq if lengths.kv_rows is None else lengths.kv_rows[seq]
    start = 0
    if call.kv_layout == lib.PACKED:
        start = lengths.kv_starts[seq]
    assert 0 <= row < call.num_blocks and 0 <= start and start + tokens <= call.kv_capacity
    return [row * block + (start + t) * token for t in range(tokens)]


def keys(call, lengths, seq, tokens, base):
    rows = [element(call, getattr(call, base), getattr(call, base + "_head_stride"), place, call.num_kv_heads,
                    kv_type(call)) for place in places(call, lengths, seq, tokens, base)]
    empty = torch.empty((0, call.num_kv_heads, call.head_dim), dtype=torch.float64)
    return torch.stack([row.double() for row in rows]) * scales(call, base) if rows else empty


def attend(call, lengths, seq):
    begin, end = lengths.cu_seqlens_q[seq:seq + 2]
    tokens = lengths.seq_lens[seq]
    q_len = end - begin
    assert 0 <= q_len <= call.max_q_len and end <= call.total_q
    dtype, group = TYPES[call.dtype], call.num_q_heads // call.num_kv_heads
    shape = (call.total_q, call.num_q_heads, call.head_dim)
    q = view(call.q, dtype, shape, (call.q_token_stride, call.q_head_stride, 1))[begin:end].double()
    k, v = (keys(call, lengths, seq, tokens, base).repeat_interleave(group, 1) for base in "kv")
    scores = torch.einsum("ihd,jhd->hij", q, k) * call.scale
    if call.softcap > 0:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    position = (torch.arange(q_len) + tokens - q_len).unsqueeze(1)
    key = torch.arange(tokens).unsqueeze(0)
    if call.alibi_slopes:
        slopes = view(call.alibi_slopes, torch.float32, (call.num_q_heads,), (1,)).double()
        scores = scores - slopes[:, None, None] * (position - key).abs()
    seen = torch.ones((q_len, tokens), dtype=torch.bool)
    if call.causal:
        seen &= key <= position
    if call.window_left >= 0:
        seen &= key >= position - call.window_left
    if call.window_right >= 0:
        seen &= key <= position + call.window_right
    scores = scores.masked_fill(~seen, float("-inf"))
    lse = torch.logsumexp(scores, -1) if tokens else torch.full(scores.shape[:2], float("-inf"), dtype=torch.float64)
    weights = torch.where(seen, torch.exp(scores - lse.nan_to_num(neginf=0.0)[..., None]), 0.0)
    out = torch.einsum("hij,jhd->ihd", weights, v)
    view(call.o, dtype, shape, (call.o_token_stride, call.o_head_stride, 1))[begin:end] = out.to(dtype)
    view(call.lse, torch.float32, shape[:2], (call.num_q_heads, 1))[begin:end] = lse.T.float()


def turn(x, cos, sin, interleaved):
    """Rotates [heads, rotary_dim]."""
    if interleaved:
        a, b = x[:, 0::2], x[:, 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(1)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def append_all(call, lengths, append):
    dtype, rotary = TYPES[call.dtype], append.rotary_dim
    int_of = lambda address, seq: view(address + 4 * seq, torch.int32, (1,), (1,)).item()  # noqa: E731
    angles = None
    if append.rotary_cos:
        shape = (append.num_positions, rotary // 2)
        angles = [view(base, dtype, shape, (append.rotary_stride, 1)).double()
                  for base in (append.rotary_cos, append.rotary_sin)]

    def turned(x, position):
        if angles is None:
            return x
        cos, sin = (table[min(position, len(table) - 1)] for table in angles)
        x = x.double()
        return torch.cat((turn(x[:, :rotary], cos, sin, append.interleaved), x[:, rotary:]), -1).to(dtype)

    for seq in range(call.num_seqs):
        before = int_of(append.cache_seqlens, seq)
        first = before - (int_of(append.kv_starts, seq) if append.kv_starts else 0)
        stands = int_of(append.positions, seq) if append.positions else before
        for base in "kv":
            where = places(call, lengths, seq, first + append.new_len, base)
            for t in range(append.new_len):
                new = element(call, getattr(append, base + "_new"), getattr(append, f"{base}_head_stride"),
                              (seq * append.new_len + t) * getattr(append, f"{base}_token_stride"), call.num_kv_heads,
                              dtype)
                slot = element(call, getattr(call, base), getattr(call, f"{base}_head_stride"), where[first + t],
                               call.num_kv_heads, kv_type(call))
                new = turned(new, stands + t) if base == "k" else new
                if call.kv_dtype:
                    most = 448.0 if slot.dtype == torch.float8_e4m3fn else 127.0
                    new = (new.double() / scales(call, base)).clamp(-most, most)
                    new = new.round() if slot.dtype == torch.int8 else new.float()
                slot.copy_(new)
        if append.q:
            assert append.q == call.q
            for i in range(append.q_len):
                row = element(call, append.q, call.q_head_stride,
                              (seq * append.q_len + i) * call.q_token_stride, call.num_q_heads, dtype)
                row.copy_(turned(row.clone(), stands + (0 if append.q_fixed else i)))


def launch(call, lengths, *, keep=False, plan=None, new_len=0, append=None, attend_=None, attend=True):
    del keep, plan, attend_
    assert len(lengths.seq_lens) == call.num_seqs and len(lengths.cu_seqlens_q) == call.num_seqs + 1
    steps = [getattr(call, name) for name, _ in call._fields_
             if name.endswith("_stride") and name[1] == "_" and "scale" not in name]
    assert all(step % 8 == 0 for step in steps)
    assert all(pointer % 16 == 0 for pointer in (call.q, call.k, call.v, call.o))
    assert append is None or append.new_len == new_len
    if append is not None:
        append_all(call, lengths, append)
    if attend:
        for seq in range(call.num_seqs):
            globals()["attend"](call, lengths, seq)
