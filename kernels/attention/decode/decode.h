// Decode attention on a GPU, host side: few query rows per sequence against paged keys and values.
// Compiles without a GPU toolkit. What is computed: attention.md.
//
// Two lines. sm_90a, on compute capability 9.0 (H100, H200): head_dim 64, 128, 192, on 8-bit keys
// and values 16..128 in steps of 16, 192, 256; causal or not; window_left; not softcap, sinks,
// ALiBi, trees, a right window without causal. sm_80, on 8.0 and up, for all that sm_90a does not
// serve: head_dim 16..256 in steps of 8, every mask and option, tree masks of at most 64 new
// tokens; keys and values with strides that are multiples of 8, aligned to 16 bytes (8-bit: 8).
// Both: q and o bfloat16 or float16; KV of their type, or e4m3 or int8 with scales (positive normal
// floats); block_size a multiple of 16 in 16..256; any group and query lengths (keys are read once
// per 16 packed rows). PrepareDecode says at start-up what cannot be served.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_params.h"
#include "kernels/attention/decode/gpu_decode_plan.h"
#include "kernels/kernel_status.h"
#include "kernels/runtime/device.h"
#include "kernels/runtime/stream_handle.h"
#include "kernels/runtime/tensor_map.h"

namespace longspan {

struct DecodeInstance;

// The kernel that a shape uses on a device, found once.
struct DecodeSetup {
  const DecodeInstance* instance = nullptr;
  int32_t num_ctas = 0;  // grid of every launch: GpuDecodePlanParams::num_ctas
};

enum class GpuLine : uint8_t { kAuto, kSm80 };  // kAuto: the best that serves the shape

// kOk, or why this shape cannot be served there. Reads no pointer.
KernelStatus PrepareDecode(const AttentionParams& shape, const GpuDevice& device,
                           DecodeSetup* setup, GpuLine line = GpuLine::kAuto);

// Where the keys and values of a layer lie, for the copy engine. Made when the pool is made; the
// sm_80 line needs none: it takes k and v as the launch's params have them.
bool DecodeNeedsKvMaps(const DecodeSetup& setup);
struct DecodeKvMaps {
  TensorMap k, v;
};
// Of params: k, v, their strides, num_kv_heads, head_dim, block_size, kv_dtype.
KernelStatus MakeDecodeKvMaps(const AttentionParams& params, int64_t num_blocks,
                              DecodeKvMaps* maps);

// Device memory that launches on one stream share, 256-byte aligned. Its first DecodeZeroedBytes
// are zero before the first launch, and again after every launch; the rest may hold anything.
int64_t DecodeWorkspaceBytes(const DecodeSetup& setup);
int64_t DecodeZeroedBytes(const DecodeSetup& setup);

struct DecodeLaunch {
  const void* plan = nullptr;  // device copy of what PlanGpuDecode wrote for this batch
  int32_t max_q_len = 0;  // no sequence of this plan, or of one replayed in its place, has more
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  // The kernel may start while the one before it in the stream still runs. That one may write q and
  // the keys and values of the batch's query tokens; the plan, the block table and all older keys
  // and values, and all scales, were written by what is before it. Nothing needs the caller's care
  // otherwise. The sm_80 line never starts early.
  bool overlap_previous = false;
};

// Enqueues; computes o, and lse when given. params holds device pointers; cu_seqlens_q and seq_lens
// are not read (the plan has them). Allocates and synchronises nothing; can be captured in a graph,
// which then serves every plan of the same max_q_len. Launches nothing unless the answer is kOk.
KernelStatus LaunchDecode(const DecodeSetup& setup, const AttentionParams& params,
                          const DecodeKvMaps& maps, const DecodeLaunch& launch,
                          GpuStreamHandle stream);

}  // namespace longspan
