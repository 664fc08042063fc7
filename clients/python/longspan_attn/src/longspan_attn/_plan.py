"""Plans: who computes what, made on the host from the batch's lengths, copied to the device.

A plan is made for every call from lengths; batches whose lengths follow from shapes alone keep theirs. For CUDA graphs
a caller keeps an AttnPlan: the graph reads the plan's memory, update() fills it anew.
"""

import ctypes
import dataclasses

import torch

from longspan_attn import _library as lib


@dataclasses.dataclass
class HostLengths:
    """Lengths of a batch as Python integers."""

    cu_seqlens_q: list
    seq_lens: list            # keys, appended ones included
    kv_rows: list = None      # row of the cache of each sequence; None: 0, 1, 2, ...
    kv_starts: list = None    # first key's token in its row

    def native(self):
        arrays = [None if values is None else lib.int32_array(values)
                  for values in (self.cu_seqlens_q, self.seq_lens, self.kv_rows, self.kv_starts)]
        pointers = [ctypes.cast(array, ctypes.POINTER(ctypes.c_int32)) if array is not None else None
                    for array in arrays]
        return lib.Lengths(cu_seqlens_q=pointers[0], seq_lens=pointers[1], kv_rows=pointers[2],
                           kv_starts=pointers[3]), arrays

    def key(self):
        return tuple(None if v is None else tuple(v)
                     for v in (self.cu_seqlens_q, self.seq_lens, self.kv_rows, self.kv_starts))


class AttnPlan:
    """The plan of a call that is repeated, for CUDA graphs.

        plan = AttnPlan()
        flash_attn_with_kvcache(..., cache_seqlens_cpu=lengths, plan=plan)      # once, before the capture: makes it
        with torch.cuda.graph(graph):
            flash_attn_with_kvcache(..., plan=plan)                             # the same shapes: uses it
        plan.update(cache_seqlens_cpu=new_lengths); cache_seqlens.copy_(...); graph.replay()

    update() enqueues one copy on the current stream and does not synchronise. A plan serves one stream at a time.
    """

    def __init__(self):
        self.call_key = None
        self._call = None
        self._lengths = None
        self._new_len = 0
        self._device = None
        self.memory = None      # uint8, on the device
        self.info = None
        self.workspace = None

    @property
    def is_made(self):
        return self.memory is not None

    def update(self, *, cache_seqlens_cpu):
        """The same batch with other lengths, ints or a CPU tensor: before this step's tokens, as cache_seqlens."""
        if not self.is_made:
            raise RuntimeError("the plan was never made: pass it to a call outside a capture first")
        lengths = as_ints(cache_seqlens_cpu, "cache_seqlens_cpu")
        if len(lengths) != self._call.num_seqs:
            raise ValueError(f"cache_seqlens_cpu has {len(lengths)} lengths, the plan {self._call.num_seqs} sequences")
        starts = self._lengths.kv_starts or [0] * len(lengths)
        self._lengths.seq_lens = [n + self._new_len - start for n, start in zip(lengths, starts)]
        with torch.cuda.device(self._device):
            self._fill()

    def _make(self, call, lengths, new_len, index, has_workspace):
        self._device = torch.device("cuda", index)
        self._call = type(call).from_buffer_copy(call)
        self._lengths, self._new_len = lengths, new_len
        self.call_key = call.shape_key()
        sizes = lib.device(index).measure(call)
        self.memory = torch.empty(max(sizes.plan_bytes, 1), dtype=torch.uint8, device=self._device)
        if has_workspace:
            self.workspace = torch.zeros(max(sizes.workspace_bytes, 1), dtype=torch.uint8, device=self._device)
        self._fill()

    def _refill(self, lengths):
        self._lengths = lengths
        self._fill()

    def _fill(self):
        # From torch's cache of pinned memory, which knows when the copy is done with it.
        host = torch.empty(self.memory.numel(), dtype=torch.uint8, device="cpu", pin_memory=True)
        native, kept = self._lengths.native()
        self.info = lib.device(self._device.index).plan(self._call, native, host.data_ptr(), host.numel())
        del kept
        size = self.info.bytes
        self.memory[:size].copy_(host[:size], non_blocking=True)


_KEPT = {}       # plans of batches whose lengths follow from shapes: (device, call, lengths) -> AttnPlan
_MAX_KEPT = 256
_WORKSPACES = {}  # (device, stream, zeroed bytes) -> uint8 tensor


def is_capturing():
    return torch.cuda.is_current_stream_capturing()


def plan_for(call, lengths, index, *, keep, plan, new_len=0):
    """A plan of the call. keep: lengths follow from shapes alone. plan: the caller's AttnPlan, or None."""
    if plan is not None:
        if not plan.is_made:
            if is_capturing():
                raise RuntimeError("plan= was never made: call once with it before the capture")
            plan._make(call, lengths, new_len, index, True)
        elif plan.call_key != call.shape_key() or plan._new_len != new_len:
            raise ValueError("plan= was made for other shapes, strides or options")
        elif not is_capturing():
            plan._refill(lengths)  # in place: graphs may read that memory
        return plan
    key = (index, call.shape_key(), lengths.key()) if keep else None
    if key in _KEPT:
        return _KEPT[key]
    if is_capturing():
        raise RuntimeError("longspan_attn plans on the host, which a CUDA graph cannot repeat: pass plan= (AttnPlan), "
                           "or call once with the same shapes before the capture (flash_attn_func)")
    made = AttnPlan()
    made._make(call, lengths, new_len, index, False)
    if keep and len(_KEPT) < _MAX_KEPT:
        torch.cuda.current_stream(index).synchronize()  # once a shape: every stream may use it from now on
        _KEPT[key] = made
    return made


def workspace_for(call, plan, index, *, is_callers):
    """Device memory whose first bytes are zero between launches."""
    if is_callers:
        return plan.workspace
    sizes = lib.device(index).measure(call)
    device = torch.device("cuda", index)
    if is_capturing():  # memory of the graph: zeroed by the graph, before each launch
        memory = torch.empty(max(sizes.workspace_bytes, 1), dtype=torch.uint8, device=device)
        memory[:sizes.zeroed_bytes].zero_()
        return memory
    key = (index, torch.cuda.current_stream(index).cuda_stream, sizes.zeroed_bytes)
    memory = _WORKSPACES.get(key)
    if memory is None or memory.numel() < sizes.workspace_bytes:
        memory = torch.zeros(max(sizes.workspace_bytes, 1), dtype=torch.uint8, device=device)
        _WORKSPACES[key] = memory
    return memory


def as_ints(values, name):
    """Host lengths as a list of ints; a CUDA tensor is refused, since reading it would wait for the device."""
    if isinstance(values, torch.Tensor):
        if values.device.type != "cpu":
            raise ValueError(f"{name} is on {values.device}: it is the copy on the host (cpu)")
        values = values.tolist()
    return [int(value) for value in values]
