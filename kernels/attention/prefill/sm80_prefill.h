// Prefill attention for every NVIDIA card from compute capability 8.0 on, host side: any query
// lengths against paged keys and values. Compiles without a GPU toolkit. What is computed:
// attention.md.
//
// Supported: q and o bfloat16 or float16, KV of the same type or e4m3 or int8 with scales; head_dim
// 16..256 in steps of 8; block_size a multiple of 16 in 16..256; any group, every mask and option
// but trees. q, k and v 16-byte aligned (8-bit k, v: 8) with strides that are multiples of 8, o
// 4-byte aligned with even strides. PrepareSm80Prefill says at start-up what cannot be served.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_params.h"
#include "kernels/attention/prefill/prefill_plan.h"
#include "kernels/kernel_status.h"
#include "kernels/runtime/device.h"
#include "kernels/runtime/stream_handle.h"

namespace longspan {

struct Sm80PrefillInstance;

// The kernel that a shape uses, found once.
struct Sm80PrefillSetup {
  const Sm80PrefillInstance* instance = nullptr;
  int32_t block_rows = 0;  // PrefillPlanParams::block_rows
};

// kOk, or why this shape cannot be served there. Reads no pointer.
KernelStatus PrepareSm80Prefill(const AttentionParams& shape, const GpuDevice& device,
                                Sm80PrefillSetup* setup);

struct Sm80PrefillLaunch {
  const PrefillBlock* blocks = nullptr;  // device copy of what PlanPrefill wrote, 16-byte aligned
  int64_t num_blocks = 0;                // of them; the empty ones may be left out
};

// Enqueues; computes o, and lse when given. params holds device pointers; cu_seqlens_q and seq_lens
// are not read (the plan has them). Needs no workspace, allocates and synchronises nothing; can be
// captured in a graph, which then serves every plan of at most num_blocks blocks. Launches nothing
// unless the answer is kOk.
KernelStatus LaunchSm80Prefill(const Sm80PrefillSetup& setup, const AttentionParams& params,
                               const Sm80PrefillLaunch& launch, GpuStreamHandle stream);

}  // namespace longspan
