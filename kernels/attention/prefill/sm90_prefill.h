// Prefill attention on a GPU, host side: many query rows per sequence, causal or not, against keys
// and values in blocks (chunks behind a long history) or in one piece. Compiles without a GPU
// toolkit. What is computed: attention.md.
//
// Supported on compute capability 9.0 (H100, H200): q, o and KV all bfloat16 or all float16;
// head_dim 64, 128, 256; block_size a multiple of 16 in 16..256, or one block that holds all keys;
// any group and query lengths; causal or not; window_left; scale > 0. Not: softcap, sinks, ALiBi, a
// right window without causal. PrepareSm90Prefill says so at start-up.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_params.h"
#include "kernels/attention/prefill/sm90_prefill_plan.h"
#include "kernels/kernel_status.h"
#include "kernels/runtime/device.h"
#include "kernels/runtime/stream_handle.h"
#include "kernels/runtime/tensor_map.h"

namespace longspan {

struct Sm90PrefillInstance;

// The kernel that a shape uses on a device, found once.
struct Sm90PrefillSetup {
  const Sm90PrefillInstance* instance = nullptr;
  int32_t num_ctas = 0;       // grid of a full launch
  int32_t rows_per_tile = 0;  // Sm90PrefillPlanParams::rows_per_tile
};

// kOk, or why this shape cannot be served there. Reads no pointer.
KernelStatus PrepareSm90Prefill(const AttentionParams& shape, const GpuDevice& device,
                                Sm90PrefillSetup* setup);

// Where the keys and values of a layer lie, for the copy engine. Made when the pool is made.
struct Sm90PrefillKvMaps {
  TensorMap k, v;
  int32_t box_tokens = 0;  // that one copy brings
};
// Of params: k, v, their strides, num_kv_heads, head_dim, block_size, kv_dtype. Keys without blocks
// are one block: num_blocks 1 and block_size all tokens, any number of them.
KernelStatus MakeSm90PrefillKvMaps(const AttentionParams& params, int64_t num_blocks,
                                   Sm90PrefillKvMaps* maps);

// Device memory that launches on one stream share, 16-byte aligned: zero before the first launch,
// and again after every launch.
int64_t Sm90PrefillWorkspaceBytes();

struct Sm90PrefillLaunch {
  const Sm90PrefillPiece* pieces = nullptr;  // device copy of the plan, 16-byte aligned
  int64_t num_pieces = 0;
  int64_t total_q = 0;   // rows of q and o; those of no sequence are not touched
  int64_t max_keys = 0;  // of the longest sequence: which heads run side by side to share the L2
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

// Enqueues; computes o, and lse when given. params holds device pointers; cu_seqlens_q and seq_lens
// are not read (the plan has them); block_table null: all keys are in block 0. Allocates and
// synchronises nothing; can be captured in a graph. Launches nothing unless the answer is kOk.
KernelStatus LaunchSm90Prefill(const Sm90PrefillSetup& setup, const AttentionParams& params,
                               const Sm90PrefillKvMaps& maps, const Sm90PrefillLaunch& launch,
                               GpuStreamHandle stream);

}  // namespace longspan
