"""Our kernels as an --ours file of bench_peers.py.

LONGSPAN_BENCH_LIBRARY names liblongspan_bench_attention.so (target longspan_bench_attention of the cuda preset).
"""
import ctypes
import os

import torch

LIBRARY = ctypes.CDLL(os.environ["LONGSPAN_BENCH_LIBRARY"])
LIBRARY.longspan_bench_plan_decode.restype = ctypes.c_void_p
LIBRARY.longspan_bench_plan_decode.argtypes = [ctypes.c_void_p] + [ctypes.c_int32] * 5 + [ctypes.c_float]
LIBRARY.longspan_bench_decode.argtypes = ([ctypes.c_void_p] * 6 + [ctypes.c_int64] * 2 +
                                          [ctypes.c_int, ctypes.c_void_p])


def make_decode(overlap):
    """A decode function that plans a list of lengths when it first meets it, outside captures and timing."""
    def make(_shape):
        plans = {}

        def decode(q, k_pages, v_pages, page_table, seq_lens):
            key = (seq_lens.data_ptr(), k_pages.shape[1])
            if key not in plans:
                lengths = seq_lens.cpu().contiguous()
                plans[key] = LIBRARY.longspan_bench_plan_decode(
                    lengths.data_ptr(), len(lengths), q.shape[2], k_pages.shape[2], q.shape[3], k_pages.shape[1],
                    q.shape[3] ** -0.5)
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


PEERS = {"ours": {"decode": {"make": make_decode(0)}}, "ours, overlapped": {"decode": {"make": make_decode(1)}}}
