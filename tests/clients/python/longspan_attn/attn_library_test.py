"""The library by ctypes: structs as the header has them, selection, plans kept for graphs. Parts that need the built
library skip without LONGSPAN_ATTN_LIBRARY; parts that need a GPU skip without one."""

import contextlib
import ctypes
import pathlib
import re

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: the drop-in for PyTorch is not tested")

import longspan_attn as attn  # noqa: E402
from longspan_attn import _attend, _library, _plan  # noqa: E402

HEADER = pathlib.Path(__file__).resolve().parents[4] / "kernels" / "attention" / "dropin" / "attn_c.h"
C_TYPES = {"int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "float": ctypes.c_float}


def header_fields(name):
    """(field, ctypes type) of a struct of the header, in order."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", text, flags=re.S).group(1)
    for declaration in filter(None, (line.strip() for line in body.replace("\n", " ").split(";"))):
        kind, names = re.fullmatch(r"((?:const )?\w+)\s*(.*)", declaration).groups()
        for field in names.split(","):
            pointer = "*" in field
            yield field.replace("*", "").strip(), ctypes.c_void_p if pointer else C_TYPES[kind.split()[-1]]


@pytest.mark.parametrize("struct, name", [
    (_library.Call, "longspan_attn_call"), (_library.Choice, "longspan_attn_choice"),
    (_library.Sizes, "longspan_attn_sizes"), (_library.Lengths, "longspan_attn_lengths"),
    (_library.PlanInfo, "longspan_attn_plan_info"), (_library.Append, "longspan_attn_append"),
], ids=lambda x: x if isinstance(x, str) else "")
def test_struct_is_the_headers(struct, name):
    pointers = (ctypes.c_char_p, ctypes.POINTER(ctypes.c_int32))
    ours = [(field, ctypes.c_void_p if kind in pointers else kind) for field, kind in struct._fields_]
    assert ours == list(header_fields(name))


def test_every_function_of_the_header_is_bound(library):
    text = HEADER.read_text()
    functions = set(re.findall(r"\b(longspan_attn_\w+)\(", text))
    assert functions - set(_library._SIGNATURES) == {"longspan_attn_close"}, "devices stay open"
    assert all(hasattr(library, function) for function in functions)


def call_of(q, k, **options):
    values = {"scale": 1.0, "causal": True, "window_left": -1, "window_right": -1, "softcap": 0.0, **options}
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2])
    call = _attend.make_call(q, out, lse, _attend.Options(**values), num_seqs=k.shape[0],
                             max_q_len=q.shape[0] // k.shape[0])
    _attend.set_rows(call, k, k, any_start=False)
    return call


def test_selection_by_the_library(library):
    q, k = torch.zeros(4, 8, 128).half(), torch.zeros(4, 512, 2, 128).half()
    assert attn.choose(call_of(q, k), 90) == ("decode", 90, "rows as blocks")
    assert attn.choose(call_of(q, k), 86) == ("decode", 80, "overlapping blocks")
    assert attn.choose(call_of(q, k, softcap=1.0), 90) == ("decode", 80, "overlapping blocks")
    assert attn.choose(call_of(q, k[:, :500]), 90)[1] == 80, "no whole blocks"
    assert attn.choose(call_of(torch.zeros(400, 8, 128).half(), k), 90) == ("prefill", 90, "one piece")
    with pytest.raises(ValueError, match="older than compute capability 8.0"):
        attn.choose(call_of(q, k), 75)
    one_token = torch.zeros(4, 1, 2, 128).half()
    assert attn.choose(call_of(q, one_token), 90) == ("decode", 80, "overlapping blocks")


def test_a_missing_library_says_what_to_do(monkeypatch):
    monkeypatch.setenv("LONGSPAN_ATTN_LIBRARY", "/nowhere/liblongspan_attn.so")
    _library.load.cache_clear()
    try:
        with pytest.raises(attn.LibraryError, match="LONGSPAN_ATTN_LIBRARY"):
            _library.load()
    finally:
        _library.load.cache_clear()


class FakeDevice:
    """Plans write the lengths into the plan's bytes; nothing else is there."""

    def measure(self, call):
        return _library.Sizes(plan_bytes=256, workspace_bytes=64, zeroed_bytes=16)

    def plan(self, call, lengths, address, num_bytes):
        assert num_bytes == 256
        for seq in range(call.num_seqs):
            ctypes.c_int32.from_address(address + 4 * seq).value = lengths.seq_lens[seq]
        return _library.PlanInfo(num_items=1, bytes=4 * call.num_seqs)


@pytest.fixture
def fake_device(monkeypatch):
    """Plans in memory of the host. Answers a switch: capturing."""
    state = {"capturing": False}
    empty, zeros = torch.empty, torch.zeros
    host = lambda make: lambda *size, device=None, pin_memory=False, **more: make(*size, **more)  # noqa: E731
    monkeypatch.setattr(_plan.torch, "empty", host(empty))
    monkeypatch.setattr(_plan.torch, "zeros", host(zeros))
    monkeypatch.setattr(_plan.lib, "device", lambda index: FakeDevice())
    monkeypatch.setattr(_plan, "is_capturing", lambda: state["capturing"])
    monkeypatch.setattr(_plan, "_KEPT", {})
    stream = type("Stream", (), {"synchronize": lambda self: state.__setitem__("waits", state.get("waits", 0) + 1)})()
    monkeypatch.setattr(_plan.torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(_plan.torch.cuda, "current_stream", lambda index=None: stream)
    return state


def plan_lengths(plan, count=4):
    return plan.memory.view(torch.int32)[:count].tolist()


def test_a_plan_for_graphs_keeps_its_memory(fake_device):
    q, k = torch.zeros(4, 8, 64).half(), torch.zeros(4, 512, 2, 64).half()
    call = call_of(q, k)
    plan = attn.AttnPlan()
    lengths = _plan.HostLengths([0, 1, 2, 3, 4], [5, 6, 7, 8])
    assert _plan.plan_for(call, lengths, 0, keep=False, plan=plan, new_len=1) is plan
    address, info = plan.memory.data_ptr(), plan.info
    assert plan_lengths(plan) == [5, 6, 7, 8] and info.num_items == 1
    fake_device["capturing"] = True
    assert _plan.plan_for(call, None, 0, keep=False, plan=plan, new_len=1) is plan
    fake_device["capturing"] = False
    plan.update(cache_seqlens_cpu=[100, 0, 1, 2])
    assert plan_lengths(plan) == [101, 1, 2, 3], "with the appended token"
    _plan.plan_for(call, _plan.HostLengths([0, 1, 2, 3, 4], [9, 9, 9, 9]), 0, keep=False, plan=plan, new_len=1)
    assert plan_lengths(plan) == [9, 9, 9, 9] and plan.memory.data_ptr() == address
    with pytest.raises(ValueError, match="other shapes"):
        _plan.plan_for(call_of(q, k[:, :256]), lengths, 0, keep=False, plan=plan, new_len=1)
    with pytest.raises(ValueError, match="other shapes"):
        _plan.plan_for(call, lengths, 0, keep=False, plan=plan, new_len=2)
    with pytest.raises(ValueError, match="3 lengths, the plan 4"):
        plan.update(cache_seqlens_cpu=[1, 2, 3])


def test_a_capture_without_a_plan_is_refused(fake_device):
    call = call_of(torch.zeros(4, 8, 64).half(), torch.zeros(4, 512, 2, 64).half())
    lengths = _plan.HostLengths([0, 1, 2, 3, 4], [512] * 4)
    fake_device["capturing"] = True
    for plan in (None, attn.AttnPlan()):
        with pytest.raises(RuntimeError, match="plan="):
            _plan.plan_for(call, lengths, 0, keep=True, plan=plan)
    with pytest.raises(RuntimeError, match="never made"):
        attn.AttnPlan().update(cache_seqlens_cpu=[1])


def test_plans_of_shapes_are_made_once(fake_device):
    q, k = torch.zeros(4, 8, 64).half(), torch.zeros(4, 512, 2, 64).half()
    lengths = _plan.HostLengths([0, 1, 2, 3, 4], [512] * 4)
    first = _plan.plan_for(call_of(q, k), lengths, 0, keep=True, plan=None)
    fake_device["capturing"] = True
    assert _plan.plan_for(call_of(q.clone(), k.clone()), lengths, 0, keep=True, plan=None) is first
    fake_device["capturing"] = False
    assert fake_device["waits"] == 1
    assert _plan.plan_for(call_of(q, k), lengths, 1, keep=True, plan=None) is not first, "of another device"
    assert _plan.plan_for(call_of(q, k, causal=False), lengths, 0, keep=True, plan=None) is not first
    other = _plan.plan_for(call_of(q, k), lengths, 0, keep=False, plan=None)
    assert other is not first


def test_lengths_of_the_device_are_refused_as_lengths_of_the_host():
    with pytest.raises(ValueError, match="meta"):
        _plan.as_ints(torch.zeros(2, device="meta"), "cache_seqlens_cpu")


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: results of the kernels are not compared")


@needs_gpu
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("lengths", [(1, 1000), (5, 70), (300, 300), (128, 2048), (70, 5)])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_size": (40, 0)}, {"softcap": 5.0, "causal": True}],
                         ids=str)
def test_on_the_gpu_dense_is_attention(library, head_dim, lengths, options):
    torch.manual_seed(0)
    q = torch.randn(2, lengths[0], 8, head_dim, device="cuda", dtype=torch.bfloat16)
    k, v = torch.randn(2, 2, lengths[1], 2, head_dim, device="cuda", dtype=torch.bfloat16)
    out, lse = attn.flash_attn_func(q, k, v, return_lse=True, **options)
    scores = torch.einsum("bihd,bjhd->bhij", q.double(), k.double().repeat_interleave(4, 2)) * head_dim ** -0.5
    if "softcap" in options:
        scores = 5.0 * torch.tanh(scores / 5.0)
    p = (torch.arange(lengths[0], device="cuda") + lengths[1] - lengths[0])[:, None]
    j = torch.arange(lengths[1], device="cuda")[None]
    seen = j >= p - 40 if "window_size" in options else torch.ones_like(j - p, dtype=torch.bool)
    if options.get("causal") or "window_size" in options:
        seen = seen & (j <= p)
    scores = scores.masked_fill(~seen, float("-inf"))
    want = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1).nan_to_num(0.0), v.double().repeat_interleave(4, 2))
    torch.testing.assert_close(out.double(), want, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse.double(), torch.logsumexp(scores, -1), atol=1e-3, rtol=1e-3)


@needs_gpu
def test_on_the_gpu_a_graph_serves_other_lengths(library):
    torch.manual_seed(0)
    q, new = (torch.randn(3, 1, heads, 128, device="cuda", dtype=torch.bfloat16) for heads in (8, 2))
    k, v = torch.randn(2, 3, 512, 2, 128, device="cuda", dtype=torch.bfloat16)
    lens = torch.tensor([5, 100, 37], dtype=torch.int32, device="cuda")
    plan = attn.AttnPlan()

    def step(k_cache, v_cache, **more):
        return attn.flash_attn_with_kvcache(q, k_cache, v_cache, new, new, cache_seqlens=lens, causal=True, **more)

    caches = k.clone(), v.clone()
    step(*caches, plan=plan)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(*caches, plan=plan)
    for lengths in ([0, 0, 0], [511, 1, 300], [64, 63, 65]):
        lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        plan.update(cache_seqlens_cpu=lengths)
        fresh = caches[0].clone(), caches[1].clone()
        graph.replay()
        assert torch.equal(out, step(*fresh))
        assert torch.equal(caches[0], fresh[0]) and torch.equal(caches[1], fresh[1])
