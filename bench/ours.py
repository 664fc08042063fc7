"""Our kernels as an --ours file of bench_peers.py.

LONGSPAN_BENCH_LIBRARY names liblongspan_bench_attention.so (target longspan_bench_attention of the cuda preset).
"""
import ctypes
import os

import torch

LIBRARY = ctypes.CDLL(os.environ["LONGSPAN_BENCH_LIBRARY"])
LIBRARY.longspan_bench_plan_decode.restype = ctypes.c_void_p
LIBRARY.longspan_bench_plan_decode.argtypes = [ctypes.c_void_p] + [ctypes.c_int32] * 6 + [ctypes.c_float]
LIBRARY.longspan_bench_decode.argtypes = ([ctypes.c_void_p] * 6 + [ctypes.c_int64] * 2 +
                                          [ctypes.c_int, ctypes.c_void_p])
LIBRARY.longspan_bench_plan_prefill.restype = ctypes.c_void_p
LIBRARY.longspan_bench_plan_prefill.argtypes = [ctypes.c_int32] * 7 + [ctypes.c_int, ctypes.c_float]
LIBRARY.longspan_bench_prefill.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int64] * 2 + [ctypes.c_void_p]


def make_decode(overlap):
    """A decode function on bfloat16 or e4m3 pages that plans a list of lengths when it first meets it, outside captures
    and timing."""
    def make(_shape):
        plans = {}

        def decode(q, k_pages, v_pages, page_table, seq_lens):
            key = (seq_lens.data_ptr(), k_pages.shape[1], k_pages.dtype)
            if key not in plans:
                lengths = seq_lens.cpu().contiguous()
                plans[key] = LIBRARY.longspan_bench_plan_decode(
                    lengths.data_ptr(), len(lengths), q.shape[2], k_pages.shape[2], q.shape[3], k_pages.shape[1],
                    k_pages.dtype == torch.float8_e4m3fn, q.shape[3] ** -0.5)
                if not plans[key]:
                    raise RuntimeError("longspan: shape not supported, or no memory")
                torch.cuda.synchronize()
            out = torch.empty_like(q)
            status = LIBRARY.longspan_bench_decode(
                plans[key], q.data_ptr(), k_pages.data_ptr(), v_pages.data_ptr(), out.data_ptr(),
                page_table.data_ptr(), page_table.stride(0), k_pages.shape[0], overlap,
                torch.cuda.current_stream().cuda_stream)
            if status:
                raise RuntimeError(f"longspan: kernel status {status}")
            return out
        return decode
    return make


def planned_prefill(q, num_keys, num_kv_heads, block_size, causal):
    batch, q_len, num_heads, head_dim = q.shape
    planned = LIBRARY.longspan_bench_plan_prefill(q_len, num_keys, batch, num_heads, num_kv_heads, head_dim, block_size,
                                                  causal, head_dim ** -0.5)
    if not planned:
        raise RuntimeError("longspan: shape not supported, or no memory")
    torch.cuda.synchronize()
    return planned


def launch_prefill(planned, q, k, v, table, table_stride, num_blocks):
    out = torch.empty_like(q)
    status = LIBRARY.longspan_bench_prefill(planned, q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), table,
                                            table_stride, num_blocks, torch.cuda.current_stream().cuda_stream)
    if status:
        raise RuntimeError(f"longspan: kernel status {status}")
    return out


def make_prefill(_shape):
    """A prefill function on keys in one piece; plans when it first meets a shape, outside captures and timing."""
    plans = {}

    def prefill(q, k, v, causal):
        key = (q.shape, k.shape, bool(causal))
        if key not in plans:
            plans[key] = planned_prefill(q, k.shape[1], k.shape[2], 0, bool(causal))
        return launch_prefill(plans[key], q, k, v, None, 0, 1)
    return prefill


def make_chunk(shape):
    """The same on pages, causal, every sequence of the shape's length."""
    plans = {}

    def chunk(q, k_pages, v_pages, page_table, _seq_lens):
        key = (q.shape, k_pages.shape)
        if key not in plans:
            plans[key] = planned_prefill(q, shape["Lk"], k_pages.shape[2], k_pages.shape[1], True)
        return launch_prefill(plans[key], q, k_pages, v_pages, page_table.data_ptr(), page_table.stride(0),
                              k_pages.shape[0])
    return chunk


PEERS = {"ours": {"prefill": {"make": make_prefill}, "chunk": {"make": make_chunk},
                  "decode": {"make": make_decode(0)}, "fp8_decode": {"make": make_decode(0)}},
         "ours, overlapped": {"decode": {"make": make_decode(1)}, "fp8_decode": {"make": make_decode(1)}}}
