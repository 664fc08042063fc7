"""Signatures, refusals with their reasons, shapes of results without memory (meta), torch.compile."""

import inspect

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: the drop-in for PyTorch is not tested")

import longspan_attn as attn  # noqa: E402
from longspan_attn import _checks, _ops, flash3  # noqa: E402

NONE, OPEN = None, (-1, -1)
# Parameters and defaults of flash-attn 2.8 and of its hopper interface (FlashAttention-3), in order: callers pass
# them by position.
_DENSE2 = [("dropout_p", 0.0), ("softmax_scale", NONE), ("causal", False), ("window_size", OPEN), ("softcap", 0.0),
           ("alibi_slopes", NONE), ("deterministic", False), ("return_attn_probs", False)]
_DESCALE = [("q_descale", NONE), ("k_descale", NONE), ("v_descale", NONE)]
_TAIL3 = [("window_size", OPEN), ("attention_chunk", 0), ("softcap", 0.0), ("num_splits", 1), ("pack_gqa", NONE),
          ("deterministic", False), ("sm_margin", 0), ("return_attn_probs", False)]
_DENSE3 = [("softmax_scale", NONE), ("causal", False), ("qv", NONE), *_DESCALE, *_TAIL3]
_VARLEN = ["q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"]
_CACHE = ["q", "k_cache", "v_cache", ("k", NONE), ("v", NONE)]
_ROTARY = [("rotary_cos", NONE), ("rotary_sin", NONE), ("cache_seqlens", NONE), ("cache_batch_idx", NONE),
           ("cache_leftpad", NONE)]
SIGNATURES = [
    (attn.flash_attn_func, ["q", "k", "v", *_DENSE2]),
    (attn.flash_attn_varlen_func, [*_VARLEN, *_DENSE2, ("block_table", NONE)]),
    (attn.flash_attn_with_kvcache, [
        *_CACHE, *_ROTARY, ("block_table", NONE), ("softmax_scale", NONE), ("causal", False), ("window_size", OPEN),
        ("softcap", 0.0), ("rotary_interleaved", True), ("alibi_slopes", NONE), ("num_splits", 0),
        ("return_softmax_lse", False)]),
    (flash3.flash_attn_func, ["q", "k", "v", *_DENSE3]),
    (flash3.flash_attn_varlen_func, [*_VARLEN, ("seqused_q", NONE), ("seqused_k", NONE), *_DENSE3]),
    (flash3.flash_attn_with_kvcache, [
        *_CACHE, ("qv", NONE), *_ROTARY, ("page_table", NONE), ("cu_seqlens_q", NONE), ("cu_seqlens_k_new", NONE),
        ("max_seqlen_q", NONE), ("rotary_seqlens", NONE), *_DESCALE, ("softmax_scale", NONE), ("causal", False),
        ("window_size", OPEN), ("attention_chunk", 0), ("softcap", 0.0), ("rotary_interleaved", True),
        ("scheduler_metadata", NONE), ("num_splits", 0), ("pack_gqa", NONE), ("sm_margin", 0),
        ("return_softmax_lse", False)]),
    (attn.scaled_dot_product_attention, [
        "query", "key", "value", ("attn_mask", NONE), ("dropout_p", 0.0), ("is_causal", False), ("scale", NONE),
        ("enable_gqa", False)]),
]


@pytest.mark.parametrize("function, want", SIGNATURES, ids=lambda x: getattr(x, "__qualname__", ""))
def test_signature_is_flash_attns(function, want):
    parameters = inspect.signature(function).parameters.values()
    positional = [p.name if p.default is p.empty else (p.name, p.default) for p in parameters
                  if p.kind == p.POSITIONAL_OR_KEYWORD]
    assert positional == want
    ours = [p for p in parameters if p.kind != p.POSITIONAL_OR_KEYWORD]
    assert all(p.kind == p.KEYWORD_ONLY and p.default is not p.empty for p in ours)


def zeros(*shape, dtype=torch.float16, device="meta"):
    return torch.zeros(shape, dtype=dtype, device=device)


def ints(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device="meta")


Q, K = zeros(2, 3, 4, 64), zeros(2, 5, 2, 64)
FLAT, CU = zeros(6, 4, 64), ints(0, 3, 6)
CACHE = zeros(2, 16, 2, 64)
BLOCKS, TABLE = zeros(9, 16, 2, 64), torch.zeros((2, 4), dtype=torch.int32, device="meta")
COS = zeros(32, 16)
LENS = ints(1, 2)
SCALES = zeros(2, 2, dtype=torch.float32)


def grad(tensor):
    return tensor.detach().clone().requires_grad_()


def dense(**more):
    return lambda: attn.flash_attn_func(**{"q": Q, "k": K, "v": K, **more})


def dense3(**more):
    return lambda: flash3.flash_attn_func(**{"q": Q, "k": K, "v": K, **more})


def varlen(**more):
    return lambda: attn.flash_attn_varlen_func(**{
        "q": FLAT, "k": FLAT, "v": FLAT, "cu_seqlens_q": CU, "cu_seqlens_k": CU, "max_seqlen_q": 3, "max_seqlen_k": 3,
        **more})


def varlen3(**more):
    return lambda: flash3.flash_attn_varlen_func(FLAT, FLAT, FLAT, CU, CU, 3, 3, **more)


def cache(**more):
    return lambda: attn.flash_attn_with_kvcache(**{"q": Q, "k_cache": CACHE, "v_cache": CACHE, "cache_seqlens": LENS,
                                                   **more})


def cache3(**more):
    return lambda: flash3.flash_attn_with_kvcache(Q, CACHE, CACHE, cache_seqlens=LENS, **more)


def cache8(**more):
    eight = CACHE.to(torch.float8_e4m3fn)
    return lambda: flash3.flash_attn_with_kvcache(**{"q": Q, "k_cache": eight, "v_cache": eight, "cache_seqlens": LENS,
                                                     **more})


def paged(**more):
    return cache(**{"k_cache": BLOCKS, "v_cache": BLOCKS, "block_table": TABLE, **more})


def sdpa(**more):
    return lambda: attn.scaled_dot_product_attention(**{"query": Q, "key": Q, "value": Q, **more})


MISSING = [
    (dense(dropout_p=0.1), "dropout_p=0.1"),
    (varlen(dropout_p=0.1), "dropout_p=0.1"),
    (dense(return_attn_probs=True), "return_lse"),
    (varlen(return_attn_probs=True), "return_lse"),
    (dense(q=grad(Q)), "q.requires_grad"),
    (dense(v=grad(K)), "v.requires_grad"),
    (varlen(k=grad(FLAT)), "k.requires_grad"),
    (cache(q=grad(Q)), "q.requires_grad"),
    (dense3(qv=Q), "qv"),
    (dense3(q_descale=Q), "q_descale"),
    (dense3(attention_chunk=16), "attention_chunk=16"),
    (varlen3(seqused_q=LENS), "seqused_q"),
    (varlen3(attention_chunk=1), "attention_chunk=1"),
    (cache3(scheduler_metadata=LENS), "scheduler_metadata"),
    (cache3(q_descale=SCALES), "q_descale"),
    (cache8(k=zeros(2, 1, 2, 64), v=zeros(2, 1, 2, 64), k_descale=SCALES), "one row of scales, expanded"),
    (cache3(cu_seqlens_q=CU), "cu_seqlens_q"),
    (cache3(cu_seqlens_k_new=CU), "cu_seqlens_k_new"),
    (paged(cache_leftpad=LENS), "cache_leftpad with block_table"),
    (paged(k_cache=zeros(9, 24, 2, 64), v_cache=zeros(9, 24, 2, 64)), "blocks of 24 tokens"),
    (cache(q=zeros(2, 3, 4, 60), k_cache=zeros(2, 16, 2, 60), v_cache=zeros(2, 16, 2, 60)), "head_dim 60"),
    (cache(v_cache=zeros(2, 16, 2, 32)), "32 of v_cache"),
    (sdpa(attn_mask=Q), "attn_mask"),
    (sdpa(dropout_p=0.5), "dropout_p=0.5"),
    (sdpa(query=zeros(2, 4, 9, 64), key=zeros(2, 4, 3, 64), value=zeros(2, 4, 3, 64), is_causal=True), "9 rows and 3"),
]


@pytest.mark.parametrize("call, reason", MISSING, ids=[reason for _, reason in MISSING])
def test_what_is_not_supported_says_so(call, reason):
    with pytest.raises(NotImplementedError) as raised:
        call()
    assert reason in str(raised.value)


WRONG = [
    (dense(q=zeros(3, 4, 64)), "3 dimensions, not 4"),
    (dense(q=zeros(2, 3, 4, 64, dtype=torch.float32)), "torch.float32"),
    (dense(k=zeros(2, 5, 2, 64, dtype=torch.bfloat16)), "k is torch.bfloat16"),
    (dense(k=zeros(2, 5, 2, 64, device="cpu")), "k is on cpu"),
    (dense(k=zeros(2, 6, 2, 64)), "k is (2, 6, 2, 64)"),
    (dense(k=zeros(3, 5, 2, 64), v=zeros(3, 5, 2, 64)), "[2, tokens, heads, d]"),
    (dense(k=zeros(2, 5, 3, 64), v=zeros(2, 5, 3, 64)), "4 query heads are not a multiple of 3"),
    (dense(k=zeros(2, 5, 2, 32)), "head_dim of q is 64, of k 32"),
    (dense(q=zeros(2, 3, 4, 264), k=zeros(2, 5, 2, 264)), "head_dim 264"),
    (dense(window_size=(1, 2, 3)), "3 entries"),
    (dense(alibi_slopes=zeros(4)), "torch.float16, not float32"),
    (dense(alibi_slopes=zeros(3, dtype=torch.float32)), "(4,) or (2, 4)"),
    (varlen(cu_seqlens_q=ints(0, 3, 6, dtype=torch.int64)), "torch.int64, not int32"),
    (varlen(cu_seqlens_k=ints(0, 3)), "cu_seqlens_k is (2,)"),
    (varlen(k=zeros(6, 1, 4, 64), v=zeros(6, 1, 4, 64)), "without block_table"),
    (varlen(block_table=TABLE), "with block_table"),
    (varlen3(seqused_k=ints(1, 2, 3)), "seqused_k is (3,)"),
    (cache(cache_seqlens=ints(1)), "cache_seqlens is (1,)"),
    (cache(cache_seqlens=ints(1, 2, dtype=torch.int64)), "torch.int64"),
    (cache(k=zeros(2, 1, 2, 64)), "k and v come together"),
    (cache(k=zeros(2, 1, 2, 64), v=zeros(2, 1, 2, 64), cache_seqlens=None), "need cache_seqlens"),
    (cache(k=zeros(2, 1, 4, 64), v=zeros(2, 1, 4, 64)), "at least one token"),
    (cache(k=zeros(2, 0, 2, 64), v=zeros(2, 0, 2, 64)), "at least one token"),
    (cache(rotary_cos=COS, rotary_sin=COS), "need k and v"),
    (cache(k=zeros(2, 1, 2, 64), v=zeros(2, 1, 2, 64), rotary_cos=COS), "come together"),
    (cache(k=zeros(2, 1, 2, 64), v=zeros(2, 1, 2, 64), rotary_cos=zeros(9, 12), rotary_sin=zeros(9, 12)),
     "rotary_dim 24"),
    (cache(k=zeros(2, 1, 2, 64), v=zeros(2, 1, 2, 64), rotary_cos=zeros(9, 8, dtype=torch.float32),
           rotary_sin=zeros(9, 8, dtype=torch.float32)), "rotary_cos is torch.float32"),
    (cache(q=zeros(3, 1, 4, 64), cache_seqlens=ints(1, 2, 3)), "2 rows for 3 sequences"),
    (cache8(v_cache=CACHE), "v is torch.float16, k is torch.float8_e4m3fn"),
    (dense(k=zeros(2, 5, 2, 64, dtype=torch.int8), v=zeros(2, 5, 2, 64, dtype=torch.int8)), "k is torch.int8"),
    (cache3(k_descale=SCALES), "scales are of 8-bit caches"),
    (cache8(v_descale=zeros(2, 2)), "v_descale is torch.float16"),
    (cache8(v_descale=zeros(2, 4, dtype=torch.float32)), "v_descale is (2, 4), not (2, 2)"),
    (paged(cache_seqlens=None), "needs cache_seqlens"),
    (paged(block_table=ints(1, 2)), "block_table is (2,)"),
    (cache(plan=3), "plan is int"),
    (sdpa(key=zeros(2, 1, 4, 64), value=zeros(2, 1, 4, 64)), "enable_gqa"),
]


@pytest.mark.parametrize("call, reason", WRONG, ids=[reason for _, reason in WRONG])
def test_what_does_not_fit_says_so(call, reason):
    with pytest.raises(ValueError) as raised:
        call()
    assert reason in str(raised.value)
    assert isinstance(raised.value, RuntimeError), "what flash-attn raises"


def test_tensors_on_the_cpu_are_refused():
    q = zeros(1, 2, 2, 64, device="cpu")
    with pytest.raises(ValueError, match="q is on cpu"):
        attn.flash_attn_func(q, q, q)


def test_a_gradient_is_no_matter_without_a_graph():
    with torch.no_grad():
        assert attn.flash_attn_func(grad(Q), K, K).shape == Q.shape


def packed(*sums):
    """q, k, v, cu_seqlens_q, cu_seqlens_k on the CPU."""
    return [zeros(6, 2, 16, device="cpu")] * 3 + [torch.tensor(sums).int()] * 2


def rows(number, **more):
    """q and caches (and new tokens) of one sequence and four tokens on the CPU."""
    return attn.flash_attn_with_kvcache(*[zeros(1, 4, 2, 16, device="cpu")] * number, **more)


LENGTHS = [
    (lambda: attn.flash_attn_varlen_func(*packed(0, 4, 2), 9, 9),
     "descends"),
    (lambda: attn.flash_attn_varlen_func(*packed(0, 4, 7), 9, 9),
     "ends at 7"),
    (lambda: attn.flash_attn_varlen_func(*packed(0, 4, 6), 3, 9),
     "max_seqlen_q is 3"),
    (lambda: attn.flash_attn_varlen_func(*packed(0, 4, 6), 4, 3),
     "max_seqlen_k is 3"),
    (lambda: rows(3, cache_seqlens=5), "the cache holds 4"),
    (lambda: rows(5, cache_seqlens=1), "the cache holds 4"),
    (lambda: attn.flash_attn_with_kvcache(*[zeros(1, 16, 2, 16, device="cpu")] * 3, cache_seqlens=17,
                                          block_table=torch.zeros(1, 1).int()), "block_table holds 16"),
    (lambda: rows(3, cache_seqlens=2,
                                          cache_leftpad=torch.tensor([3]).int()), "cache_leftpad 3"),
    (lambda: rows(3, cache_seqlens_cpu=[1, 2],
                                          cache_seqlens=torch.tensor([3]).int()), "has 2 entries, not 1"),
    (lambda: attn.flash_attn_with_kvcache(zeros(1, 4, 2, 16, device="cpu"),
                                          *[zeros(1, 4, 2, 20, device="cpu")[..., 1:17]] * 2),
     "k_cache: strides"),
]


@pytest.mark.parametrize("call, reason", LENGTHS, ids=[reason for _, reason in LENGTHS])
def test_lengths_that_do_not_fit_say_so(slow, call, reason):
    with pytest.raises(ValueError) as raised:
        call()
    assert reason in str(raised.value)
    assert not slow


def test_shapes_without_memory():
    out, lse = attn.flash_attn_func(Q, K, zeros(2, 5, 2, 40), return_lse=True)
    assert (out.shape, out.dtype, out.device.type) == ((2, 3, 4, 40), torch.float16, "meta")
    assert (lse.shape, lse.dtype) == ((2, 4, 3), torch.float32)
    out, lse = attn.flash_attn_varlen_func(FLAT, FLAT, FLAT, CU, CU, 3, 3, return_lse=True)
    assert out.shape == (6, 4, 64) and lse.shape == (4, 6)
    for call in (cache(return_softmax_lse=True), paged(return_softmax_lse=True),
                 cache(k=zeros(2, 1, 2, 64), v=zeros(2, 1, 2, 64), rotary_cos=COS, rotary_sin=COS,
                       return_softmax_lse=True)):
        out, lse = call()
        assert out.shape == (2, 3, 4, 64) and lse.shape == (2, 4, 3)
    assert sdpa()().shape == Q.shape


@pytest.mark.parametrize("v_dim", [32, 48])
def test_operators_are_what_they_say(slow, v_dim):
    """torch's own checks of schema, mutation and shapes, on the real operator (with the slow library behind it)."""
    q, k, v = (torch.randn(2, 4, 2, d).half() for d in (32, 32, v_dim))
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(_ops.dense, (q, k, v, None, 0.2, True, -1, -1, 0.0), test_utils=tests)
    cu = torch.tensor([0, 3, 8], dtype=torch.int32)
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    torch.library.opcheck(_ops.varlen, (*flat, cu, cu, None, None, None, None, None, 5, 5, 0.2, True, -1, -1, 0.0),
                          test_utils=tests)
    new = torch.randn(2, 1, 2, 32).half()
    lens = torch.tensor([1, 3], dtype=torch.int32)
    torch.library.opcheck(_ops.cache, (q, k, k.clone(), new, new, None, None, lens, None, None, None, None, None, None,
                                       None, None, 0.2, True, -1, -1, 0.0, True), test_utils=tests)


def test_compiled_functions_are_the_same(slow):
    q, k = torch.randn(2, 4, 4, 32).half(), torch.randn(2, 6, 2, 32).half()
    new = torch.randn(2, 1, 2, 32).half()
    lens = torch.tensor([1, 3], dtype=torch.int32)

    def step(k_cache, v_cache):
        out = attn.flash_attn_func(q * 2, k, k, causal=True)
        more = attn.flash_attn_with_kvcache(out, k_cache, v_cache, new, new, cache_seqlens=lens, causal=True)
        return more + attn.scaled_dot_product_attention(q, q, q)

    with torch.no_grad():
        caches = [k.clone(), k.clone()], [k.clone(), k.clone()]
        want = step(*caches[0])
        got = torch.compile(step, fullgraph=True, backend="aot_eager")(*caches[1])
    torch.testing.assert_close(got, want)
    assert all(torch.equal(a, b) for a, b in zip(*caches)), "the cache is appended to once, in place"


def test_windows_may_be_tensors_or_open():
    assert _checks.window(torch.tensor([3, 4])) == (3, 4)
    assert _checks.window((None, -5)) == (-1, -1)
