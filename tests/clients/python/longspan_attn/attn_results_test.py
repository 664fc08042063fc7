"""Results of every function against attention written from its definition, with a slow library behind the functions:
that layouts, lengths, strides, padding, appending and rotating reach the library as they should."""

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: the drop-in for PyTorch is not tested")

import longspan_attn as attn  # noqa: E402
from longspan_attn import flash3  # noqa: E402


def make(*shape, dtype=torch.float16, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def reference(q, k, v, causal=False, window=(-1, -1), softcap=0.0, slopes=None, scale=None):
    """One sequence: q [Lq, H, D], k [Lk, Hk, D], v [Lk, Hk, Dv]. Loops over rows and keys that count."""
    q_len, heads, head_dim = q.shape
    kv_len, kv_heads = k.shape[:2]
    scale = head_dim ** -0.5 if scale is None else scale
    out = torch.zeros(q_len, heads, v.shape[-1], dtype=torch.float64)
    lse = torch.full((heads, q_len), -math.inf, dtype=torch.float64)
    for i in range(q_len):
        p = i + kv_len - q_len
        first = 0 if window[0] < 0 else max(0, p - window[0])
        last = kv_len - 1 if window[1] < 0 else min(kv_len - 1, p + window[1])
        if causal:
            last = min(last, p)
        if last < first:
            continue
        js = torch.arange(first, last + 1)
        for h in range(heads):
            g = h // (heads // kv_heads)
            x = (k[first:last + 1, g].double() @ q[i, h].double()) * scale
            if softcap > 0:
                x = softcap * torch.tanh(x / softcap)
            if slopes is not None:
                x = x - slopes[h].double() * (p - js).abs()
            lse[h, i] = torch.logsumexp(x, 0)
            out[i, h] = torch.softmax(x, 0) @ v[first:last + 1, g].double()
    return out, lse


def expect(out, lse, want):
    assert out.shape == want[0].shape and lse.shape == want[1].shape
    torch.testing.assert_close(out.double(), want[0], atol=2e-3, rtol=2e-2)
    torch.testing.assert_close(lse.double(), want[1], atol=1e-4, rtol=1e-4)


def stack(parts):
    return tuple(torch.stack(tensors) for tensors in zip(*parts))


@pytest.mark.parametrize("options", [
    {}, {"causal": True}, {"window_size": (3, 2)}, {"window_size": (4, 0)}, {"causal": True, "window_size": (2, 5)},
    {"softcap": 2.0}, {"softmax_scale": 0.3, "causal": True}, {"window_size": (None, 1)},
])
@pytest.mark.parametrize("lengths", [(1, 9), (5, 9), (9, 5), (7, 7)])
def test_dense_is_attention(slow, options, lengths):
    q, k, v = make(2, lengths[0], 6, 32), make(2, lengths[1], 3, 32), make(2, lengths[1], 3, 32, seed=1)
    out, lse = attn.flash_attn_func(q, k, v, return_lse=True, **options)
    window = tuple(-1 if w is None else w for w in options.get("window_size", (-1, -1)))
    expect(out, lse, stack(reference(q[b], k[b], v[b], options.get("causal", False), window,
                                     options.get("softcap", 0.0), None, options.get("softmax_scale")) for b in (0, 1)))
    assert len(slow) == 1


@pytest.mark.parametrize("head_dims", [(40, 40), (59, 59), (8, 8), (64, 32), (32, 64), (3, 17)])
def test_head_dims_are_padded_and_cut(slow, head_dims):
    q, k, v = make(2, 4, 4, head_dims[0]), make(2, 6, 2, head_dims[0]), make(2, 6, 2, head_dims[1])
    out, lse = attn.flash_attn_func(q, k, v, causal=True, return_lse=True)
    expect(out, lse, stack(reference(q[b], k[b], v[b], True) for b in (0, 1)))


def test_strides_are_taken_or_copied(slow):
    q, k, v = make(2, 4, 5, 32), make(2, 2, 9, 32), make(2, 2, 9, 32, seed=3)
    want = stack(reference(q[b].transpose(0, 1), k[b].transpose(0, 1), v[b].transpose(0, 1), True) for b in (0, 1))
    out, lse = attn.flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=True, return_lse=True)
    expect(out, lse, want)
    assert slow[0][0].k == k.data_ptr(), "heads before tokens need no copy"
    packed = make(2, 5, 3, 4, 32)
    out, lse = attn.flash_attn_func(*packed.unbind(2), return_lse=True)
    expect(out, lse, stack(reference(*packed[b].unbind(1)) for b in (0, 1)))
    odd = make(2, 5, 4, 33)[..., 1:]  # no row begins at a multiple of 16 bytes
    out, lse = attn.flash_attn_func(odd, odd, odd, return_lse=True)
    expect(out, lse, stack(reference(odd[b], odd[b], odd[b]) for b in (0, 1)))
    one = make(1, 9, 2, 32).expand(3, 9, 2, 32)
    out, lse = attn.flash_attn_func(one, one, make(3, 9, 2, 32), return_lse=True)
    expect(out, lse, stack(reference(one[b], one[b], make(3, 9, 2, 32)[b]) for b in range(3)))
    last = make(2, 32, 5, 4).permute(0, 2, 3, 1)  # the last dimension is not contiguous
    out, lse = attn.flash_attn_func(last, last, last, return_lse=True)
    expect(out, lse, stack(reference(last[b], last[b], last[b]) for b in (0, 1)))


@pytest.mark.parametrize("per_sequence", [False, True])
def test_slopes_of_heads_and_of_sequences(slow, per_sequence):
    q, k, v = make(3, 4, 4, 16), make(3, 7, 2, 16), make(3, 7, 2, 16, seed=1)
    slopes = torch.rand(3, 4) if per_sequence else torch.rand(4)
    out, lse = attn.flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes, return_lse=True)
    expect(out, lse, stack(reference(q[b], k[b], v[b], True, slopes=slopes[b] if per_sequence else slopes)
                           for b in range(3)))
    assert len(slow) == (3 if per_sequence else 1)


def test_without_keys_rows_are_zero(slow):
    out, lse = attn.flash_attn_func(make(2, 3, 4, 16), make(2, 0, 2, 16), make(2, 0, 2, 24), return_lse=True)
    assert out.shape == (2, 3, 4, 24) and not out.any() and torch.isneginf(lse).all() and lse.shape == (2, 4, 3)
    assert attn.flash_attn_func(make(0, 3, 4, 16), make(0, 3, 4, 16), make(0, 3, 4, 16)).shape == (0, 3, 4, 16)
    assert not slow


def cumulative(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


@pytest.mark.parametrize("slopes_shape", [None, (4,), (4, 4)])
def test_varlen_is_attention(slow, slopes_shape):
    q_lens, k_lens = [3, 0, 5, 1], [4, 2, 0, 9]
    q, k, v = make(11, 4, 32), make(16, 2, 32), make(16, 2, 32, seed=1)
    slopes = None if slopes_shape is None else torch.rand(slopes_shape)
    cu_q, cu_k = cumulative(q_lens), cumulative(k_lens)
    out, lse = attn.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 5, 9, causal=True, alibi_slopes=slopes, return_lse=True)
    for b in range(4):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        mine = slopes[b] if slopes is not None and slopes.dim() == 2 else slopes
        expect(out[rows], lse[:, rows], reference(q[rows], k[keys], v[keys], True, slopes=mine))


def test_varlen_counts_used_keys_only(slow):
    q, k = make(4, 2, 16), make(10, 2, 16)
    used = torch.tensor([2, 5], dtype=torch.int32)
    out, lse = flash3.flash_attn_varlen_func(q, k, k, cumulative([2, 2]), cumulative([5, 5]), 2, 5, seqused_k=used,
                                             return_attn_probs=True)
    expect(out[:2], lse[:, :2], reference(q[:2], k[:2], k[:2]))
    expect(out[2:], lse[:, 2:], reference(q[2:], k[5:], k[5:]))


def in_blocks(rows, block_size, seed=0):
    """Rows [B, tokens, H, D] as blocks in shuffled order, with spare ones; and their table."""
    batch, tokens = rows.shape[:2]
    per_seq = -(-tokens // block_size)
    order = torch.randperm(batch * per_seq + 3, generator=torch.Generator().manual_seed(seed))
    table = order[:batch * per_seq].view(batch, per_seq).int()
    blocks = torch.full((len(order), block_size, *rows.shape[2:]), float("nan"), dtype=rows.dtype)
    for b in range(batch):
        for t in range(tokens):
            blocks[table[b, t // block_size], t % block_size] = rows[b, t]
    return blocks, table


@pytest.mark.parametrize("block_size", [16, 48, 256, 512])
def test_varlen_reads_blocks(slow, block_size):
    q, k, v = make(5, 4, 32), make(2, 600, 2, 32), make(2, 600, 2, 32, seed=1)
    k_blocks, table = in_blocks(k, block_size)
    v_blocks, _ = in_blocks(v, block_size)
    lens = [33, 600]
    out, lse = attn.flash_attn_varlen_func(q, k_blocks, v_blocks, cumulative([3, 2]), cumulative(lens), 3, 600,
                                           causal=True, block_table=table, return_lse=True)
    for b, rows in enumerate((slice(0, 3), slice(3, 5))):
        expect(out[rows], lse[:, rows], reference(q[rows], k[b, :lens[b]], v[b, :lens[b]], True))


def rotate(x, cos, sin, positions, interleaved):
    """x [L, H, D], row i at positions[i]."""
    x = x.double().clone()
    half = cos.shape[1]
    for i, p in enumerate(positions):
        for pair in range(half):
            a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + half)
            c, s = cos[p, pair].double(), sin[p, pair].double()
            x[i, :, a], x[i, :, b] = x[i, :, a] * c - x[i, :, b] * s, x[i, :, a] * s + x[i, :, b] * c
    return x.half()


CACHES = [
    {"new": 0}, {"new": 2}, {"new": 2, "rotary": True}, {"new": 3, "rotary": True, "interleaved": False},
    {"new": 2, "rotary": True, "causal": False}, {"new": 1, "block_size": 16}, {"new": 2, "block_size": 512},
    {"new": 2, "rotary": True, "block_size": 32}, {"new": 2, "batch_idx": True}, {"new": 2, "leftpad": True},
    {"new": 2, "batch_idx": True, "block_size": 16},
    {"new": 2, "leftpad": True, "batch_idx": True, "rotary": True}, {"new": 2, "slopes": True, "block_size": 16},
    {"new": 2, "slopes": True, "leftpad": True, "batch_idx": True}, {"new": 0, "leftpad": True},
    {"new": 2, "window": (3, 1), "causal": False, "rotary": True}, {"new": 2, "rotary": True, "positions": True},
]


@pytest.mark.parametrize("case", CACHES, ids=str)
def test_cache_is_appended_to_and_attended(slow, case):
    causal, window, new = case.get("causal", True), case.get("window", (-1, -1)), case["new"]
    batch, q_len, capacity, heads, kv_heads, head_dim = 3, 3, 40, 4, 2, 32
    lens = [4, 0, 37] if new else [4, 1, 40]
    q = make(batch, q_len, heads, head_dim)
    rows = 5 if case.get("batch_idx") else batch
    k_rows, v_rows = make(rows, capacity, kv_heads, head_dim), make(rows, capacity, kv_heads, head_dim, seed=9)
    k, v = make(batch, new, kv_heads, head_dim, seed=2), make(batch, new, kv_heads, head_dim, seed=3)
    arguments = {"causal": causal, "window_size": window, "cache_seqlens": torch.tensor(lens, dtype=torch.int32)}
    where, starts, slopes = list(range(batch)), [0] * batch, None
    if case.get("batch_idx"):
        where = [4, 0, 2]
        arguments["cache_batch_idx"] = torch.tensor(where, dtype=torch.int32)
    if case.get("leftpad"):
        starts = [2, 0, 36]
        arguments["cache_leftpad"] = torch.tensor(starts, dtype=torch.int32)
    if case.get("slopes"):
        slopes = arguments["alibi_slopes"] = torch.rand(batch, heads)
    k_new, q_turned, stands = k, q, lens
    if case.get("rotary"):
        angle = torch.rand(64, 8) * 6
        cos, sin = torch.cos(angle).half(), torch.sin(angle).half()
        interleaved = case.get("interleaved", True)
        arguments |= {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": interleaved}
        if case.get("positions"):
            stands = [7, 11, 3]
            arguments["rotary_seqlens"] = torch.tensor(stands, dtype=torch.int32)
        fixed = not causal and window == (-1, -1)
        k_new = torch.stack([rotate(k[b], cos, sin, range(stands[b], stands[b] + new), interleaved)
                             for b in range(batch)])
        q_turned = torch.stack([rotate(q[b], cos, sin, [stands[b] + (0 if fixed else i) for i in range(q_len)],
                                       interleaved) for b in range(batch)])
    want_k, want_v = k_rows.clone(), v_rows.clone()
    for b in range(batch):
        want_k[where[b], lens[b]:lens[b] + new] = k_new[b]
        want_v[where[b], lens[b]:lens[b] + new] = v[b]
    k_cache, v_cache = k_rows, v_rows
    function, table = attn.flash_attn_with_kvcache, None
    if case.get("positions"):
        function = flash3.flash_attn_with_kvcache
    if "block_size" in case:
        (k_cache, table), (v_cache, _) = (in_blocks(x, case["block_size"]) for x in (k_rows, v_rows))
        arguments["block_table"] = table
    before = q.clone()
    new_tokens = (k, v) if new else (None, None)
    out, lse = function(q, k_cache, v_cache, *new_tokens, return_softmax_lse=True, **arguments)
    assert torch.equal(q, before), "q is the caller's"
    for b in range(batch):
        seen = slice(starts[b], lens[b] + new)
        mine = None if slopes is None else slopes[b]
        expect(out[b], lse[b], reference(q_turned[b], want_k[where[b], seen], want_v[where[b], seen], causal, window,
                                         slopes=mine))
    if table is None:
        torch.testing.assert_close(k_cache, want_k, atol=2e-3, rtol=2e-3)
        assert torch.equal(v_cache, want_v)
    else:
        again, _ = in_blocks(want_k, case["block_size"])
        torch.testing.assert_close(k_cache, again, atol=2e-3, rtol=2e-3, equal_nan=True)


EIGHT_BIT = [torch.float8_e4m3fn, torch.int8]


def eight_bit(x, dtype):
    return (x.float() * 40).clamp(-127, 127).to(dtype)


@pytest.mark.parametrize("dtype", EIGHT_BIT, ids=str)
@pytest.mark.parametrize("block_size", [None, 16])
@pytest.mark.parametrize("which", ["none", "expanded", "of each sequence"])
def test_cache_of_8_bits(slow, dtype, block_size, which):
    batch, heads, kv_heads, lens = 3, 4, 2, [5, 0, 37]
    q = make(batch, 2, heads, 32)
    k, v = (eight_bit(make(batch, 40, kv_heads, 32, seed=seed), dtype) for seed in (1, 2))
    k_scale, v_scale = (0.01 + 0.01 * torch.rand(batch, kv_heads) for _ in "kv")
    if which == "none":
        k_scale = v_scale = None
    elif which == "expanded":
        k_scale, v_scale = (x[:1].expand(batch, -1) for x in (k_scale, v_scale))
    k_cache, v_cache, arguments = k, v, {}
    if block_size:
        cut = [in_blocks(x.float(), block_size) for x in (k, v)]
        k_cache, v_cache = (x.nan_to_num(0).to(dtype) for x, _ in cut)
        arguments["page_table"] = cut[0][1]
    out, lse = flash3.flash_attn_with_kvcache(
        q, k_cache, v_cache, cache_seqlens=torch.tensor(lens, dtype=torch.int32), k_descale=k_scale,
        v_descale=v_scale, softmax_scale=0.02, causal=True, return_softmax_lse=True, **arguments)
    assert len(slow) == (batch if which == "of each sequence" else 1)
    for b in range(batch):
        real_k, real_v = (x[b, :lens[b]].double() * (1 if s is None else s[b, :, None])
                          for x, s in ((k, k_scale), (v, v_scale)))
        want_out, want_lse = reference(q[b], real_k, real_v, True, scale=0.02)
        torch.testing.assert_close(out[b].double(), want_out, atol=3e-3, rtol=3e-3)
        torch.testing.assert_close(lse[b].double(), want_lse, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", EIGHT_BIT, ids=str)
def test_new_tokens_are_stored_in_a_cache_of_8_bits(slow, dtype):
    q, k = make(2, 1, 4, 32), make(2, 1, 2, 32, seed=5)
    cache = eight_bit(make(2, 16, 2, 32, seed=1), dtype)
    k_scale, v_scale = (torch.tensor([row]).expand(2, -1) for row in ([0.03, 0.05], [0.02, 0.07]))
    k_cache, v_cache = cache.clone(), cache.clone()
    flash3.flash_attn_with_kvcache(q, k_cache, v_cache, k, k, cache_seqlens=torch.tensor([3, 9], dtype=torch.int32),
                                   k_descale=k_scale, v_descale=v_scale)
    for b, slot in ((0, 3), (1, 9)):
        for stored, scale in ((k_cache, k_scale), (v_cache, v_scale)):
            back = stored[b, slot].float() * scale[b, :, None]
            torch.testing.assert_close(back, k[b, 0].float(), atol=0.04, rtol=0.07)
    untouched = torch.ones(2, 16, dtype=torch.bool)
    untouched[0, 3] = untouched[1, 9] = False
    assert torch.equal(k_cache[untouched].float(), cache[untouched].float())


def test_cache_takes_a_number_and_lengths_of_the_host(slow):
    q, k = make(2, 1, 2, 16), make(2, 8, 2, 16)
    want = stack(reference(q[b], k[b, :5], k[b, :5]) for b in (0, 1))
    expect(*attn.flash_attn_with_kvcache(q, k, k.clone(), cache_seqlens=5, return_softmax_lse=True), want)
    expect(*attn.flash_attn_with_kvcache(q, k, k.clone(), cache_seqlens=torch.zeros(2, dtype=torch.int32),
                                         cache_seqlens_cpu=[5, 5], return_softmax_lse=True), want)
    whole = stack(reference(q[b], k[b], k[b]) for b in (0, 1))
    expect(*attn.flash_attn_with_kvcache(q, k, k.clone(), return_softmax_lse=True), whole)


def test_flash3_is_flash2(slow):
    q, k = make(2, 4, 4, 32), make(2, 6, 2, 32)
    out, lse = flash3.flash_attn_func(q, k, k, causal=True, softcap=3.0, return_attn_probs=True)
    expect(out, lse, stack(reference(q[b], k[b], k[b], True, softcap=3.0) for b in (0, 1)))


@pytest.mark.parametrize("lengths", [(6, 6), (4, 9)])
@pytest.mark.parametrize("causal", [False, True])
def test_sdpa_is_torchs(slow, lengths, causal):
    query, key, value = make(2, 4, lengths[0], 32), make(2, 2, lengths[1], 32), make(2, 2, lengths[1], 16)
    out = attn.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True)
    want = torch.nn.functional.scaled_dot_product_attention(
        query.double(), key.double(), value.double(), is_causal=causal, enable_gqa=True)
    torch.testing.assert_close(out.double(), want, atol=2e-3, rtol=2e-2)
