"""liblongspan_attn.so by ctypes: its structs (attn_c.h, field by field) and its answers as exceptions.

The library is found by LONGSPAN_ATTN_LIBRARY (a path), else beside this file, else by the loader. It is opened at the
first call that needs it, so that importing the package needs neither it nor a GPU.
"""

import ctypes
import functools
import logging
import os
import pathlib

ABI = 2
FLOAT16, BFLOAT16 = 1, 2
FLOAT8_E4M3, INT8 = 3, 4  # of k and v alone
PAGED, ROWS, PACKED = 0, 1, 2
DECODE, PREFILL = 1, 2

_I32, _I64, _PTR, _F32 = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
_STRIDES = ("q_token", "q_head", "o_token", "o_head", "k_block", "k_token", "k_head", "v_block", "v_token", "v_head",
            "k_scale_block", "k_scale_head", "v_scale_block", "v_scale_head", "tree_mask")


class LibraryError(RuntimeError):
    """What liblongspan_attn.so answered, or why it could not be loaded."""


class _Sized(ctypes.Structure):
    """A struct that says its own size first."""

    def __init__(self, **fields):
        super().__init__(**fields)
        self.struct_bytes = ctypes.sizeof(self)


class Call(_Sized):
    POINTERS = ("q", "o", "lse", "k", "v", "block_table", "alibi_slopes", "sinks", "k_scale", "v_scale", "tree_mask")
    _fields_ = [
        *((name, _I32) for name in (
            "struct_bytes", "dtype", "kv_dtype", "num_seqs", "num_q_heads", "num_kv_heads", "head_dim", "max_q_len", "kv_layout",
            "block_size", "causal", "window_left", "window_right", "family", "line", "unused")),
        ("scale", _F32),
        ("softcap", _F32),
        *((name, _I64) for name in ("total_q", "num_blocks", "kv_capacity")),
        *((name, _PTR) for name in POINTERS),
        ("block_table_stride", _I64),
        *((name + "_stride", _I64) for name in _STRIDES),
    ]

    def shape_key(self):
        """All that plans, sizes and selection depend on: everything but where the memory is."""
        values = (getattr(self, name) for name, _ in self._fields_ if name not in self.POINTERS)
        return (*values, bool(self.alibi_slopes), bool(self.sinks), bool(self.tree_mask))


class Choice(ctypes.Structure):
    _fields_ = [("family", _I32), ("line", _I32), ("how_keys", ctypes.c_char_p), ("reason", ctypes.c_char_p)]


class Sizes(ctypes.Structure):
    _fields_ = [(name, _I64) for name in ("plan_bytes", "workspace_bytes", "zeroed_bytes")]


class Lengths(_Sized):
    _fields_ = [("struct_bytes", _I32), ("unused", _I32),
                *((name, ctypes.POINTER(_I32)) for name in ("cu_seqlens_q", "seq_lens", "kv_rows", "kv_starts"))]


class PlanInfo(ctypes.Structure):
    _fields_ = [(name, _I64) for name in ("num_items", "max_keys", "bytes")]


class Append(_Sized):
    _fields_ = [
        ("struct_bytes", _I32), ("new_len", _I32), ("k_new", _PTR), ("v_new", _PTR),
        *((name + "_stride", _I64) for name in ("k_token", "k_head", "v_token", "v_head")),
        *((name, _PTR) for name in ("cache_seqlens", "kv_starts", "rotary_cos", "rotary_sin", "positions")),
        ("rotary_stride", _I64), ("num_positions", _I64),
        *((name, _I32) for name in ("rotary_dim", "interleaved", "q_fixed", "q_len")),
        ("q", _PTR), ("scratch", _PTR), ("scratch_bytes", _I64),
    ]


_SIGNATURES = {
    "longspan_attn_choose": (ctypes.c_int, [ctypes.POINTER(Call), _I32, ctypes.POINTER(Choice)]),
    "longspan_attn_open": (ctypes.c_int, [ctypes.POINTER(_PTR)]),
    "longspan_attn_compute_capability": (_I32, [_PTR]),
    "longspan_attn_tune": (ctypes.c_int, [_PTR, ctypes.c_char_p]),
    "longspan_attn_tuning": (ctypes.c_char_p, [_PTR]),
    "longspan_attn_measure": (ctypes.c_int, [_PTR, ctypes.POINTER(Call), ctypes.POINTER(Sizes)]),
    "longspan_attn_plan": (ctypes.c_int, [_PTR, ctypes.POINTER(Call), ctypes.POINTER(Lengths), _PTR, _I64,
                                          ctypes.POINTER(PlanInfo)]),
    "longspan_attn_append_bytes": (_I64, [ctypes.POINTER(Call), ctypes.POINTER(Append)]),
    "longspan_attn_append_run": (ctypes.c_int, [_PTR, ctypes.POINTER(Call), ctypes.POINTER(Append), _PTR, _PTR]),
    "longspan_attn_run": (ctypes.c_int, [_PTR, ctypes.POINTER(Call), _PTR, ctypes.POINTER(PlanInfo), _PTR, _I64,
                                         _PTR]),
    "longspan_attn_text": (ctypes.c_char_p, [ctypes.c_int]),
    "longspan_attn_abi": (ctypes.c_int, []),
}


def _candidates():
    chosen = os.environ.get("LONGSPAN_ATTN_LIBRARY")
    if chosen:
        return [chosen]
    beside = pathlib.Path(__file__).with_name("liblongspan_attn.so")
    return [str(beside)] if beside.exists() else ["liblongspan_attn.so"]


@functools.cache
def load():
    path = _candidates()[0]
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise LibraryError(f"liblongspan_attn.so could not be loaded ({error}): build the target longspan_attn of the "
                           "cuda preset and set LONGSPAN_ATTN_LIBRARY to its path") from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    if library.longspan_attn_abi() != ABI:
        raise LibraryError(f"{path} is of ABI {library.longspan_attn_abi()}, this package of {ABI}")
    return library


def text(status):
    return load().longspan_attn_text(status).decode()


def check(status, doing):
    """Raises what a function answered, unless it is 0."""
    if status != 0:
        raise LibraryError(f"longspan_attn: {doing}: {text(status)}")


def choose(call, compute_capability):
    """(family, line, how keys are seen) that serve a Call on a card, or ValueError with the reason. Needs no GPU."""
    choice = Choice()
    status = load().longspan_attn_choose(ctypes.byref(call), compute_capability, ctypes.byref(choice))
    if status != 0:
        raise ValueError(f"longspan_attn: {text(status)}: {(choice.reason or b'').decode()}")
    return ("decode" if choice.family == DECODE else "prefill"), choice.line, choice.how_keys.decode()


def int32_array(values):
    return (_I32 * len(values))(*values)


class Device:
    """An open device of the library; lives as long as the process."""

    def __init__(self):
        self.handle = _PTR()
        check(load().longspan_attn_open(ctypes.byref(self.handle)), "opening the device")
        self.compute_capability = load().longspan_attn_compute_capability(self.handle)
        tuning = load().longspan_attn_tuning(self.handle).decode(errors="replace")
        level = logging.WARNING if "refused" in tuning else logging.DEBUG
        logging.getLogger("longspan_attn").log(level, "choice of kernels: %s", tuning)

    def measure(self, call):
        sizes = Sizes()
        status = load().longspan_attn_measure(self.handle, ctypes.byref(call), ctypes.byref(sizes))
        if status != 0:
            choose(call, self.compute_capability)  # raises with the reason, if there is one
        check(status, "measuring")
        return sizes

    def plan(self, call, lengths, address, num_bytes):
        info = PlanInfo()
        check(load().longspan_attn_plan(self.handle, ctypes.byref(call), ctypes.byref(lengths), address, num_bytes,
                                        ctypes.byref(info)), "planning")
        return info

    def append_bytes(self, call, append):
        return load().longspan_attn_append_bytes(ctypes.byref(call), ctypes.byref(append))

    def append(self, call, append, plan, stream):
        check(load().longspan_attn_append_run(self.handle, ctypes.byref(call), ctypes.byref(append), plan, stream),
              "appending")

    def run(self, call, plan, info, workspace, workspace_bytes, stream):
        check(load().longspan_attn_run(self.handle, ctypes.byref(call), plan, ctypes.byref(info), workspace,
                                       workspace_bytes, stream), "launching")


@functools.cache
def device(_index):
    """The device that is current; its index is the key."""
    return Device()
