// One attention problem of tests/support through the drop-in's C functions: the family and the line
// that the dispatch picks, or those asked for. Memory around everything that a launch may write is
// guarded, everything that it must not read is poison.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention/dropin/attn_c.h"
#include "kernels/runtime/buffer.h"
#include "kernels/runtime/stream.h"
#include "tests/kernels/attention/gpu_attention_memory.h"
#include "tests/support/attn_call.h"

namespace longspan {

// Of the process; null, with the reason, where there is none.
longspan_attn_device* AttnTestDevice(std::string* reason = nullptr);

struct AttnGpuOptions {
  int32_t family = 0;  // 0 or LONGSPAN_ATTN_...
  int32_t line = 0;
  AttentionTableKeys keys = AttentionTableKeys::kBlocks;
  uint8_t workspace_fill = 0xff;
};

class AttnGpuProblem {
 public:
  // Copies the problem, which outlives this object, to the device.
  AttnGpuProblem(PagedAttention& problem, const AttnGpuOptions& options = {});

  int status() const { return status_; }  // LONGSPAN_ATTN_OK, or why nothing can run
  const std::string& reason() const { return reason_; }
  const longspan_attn_choice& choice() const { return choice_; }
  longspan_attn_call& call() { return call_; }  // device pointers
  GpuStream& stream() { return memory_.stream(); }

  // Plans for the problem's lengths as they are now and copies the plan. What the plan does not
  // fill of its memory is garbage.
  void Plan();
  int Enqueue();
  // Output and lse are guard words again, here and there; the rest is copied as it is now.
  void Reset();
  // Everything is copied as it is on the host now.
  void Upload() { memory_.Upload(); }
  // Waits, copies o and lse to the host problem. Empty, or what is wrong: a device error, a changed
  // guard word, a workspace that was left in another state than promised.
  std::string Download();
  // Reset, Plan, Enqueue, Download; empty or what is wrong.
  std::string Run();

 private:
  PagedAttention& problem_;
  AttnGpuOptions options_;
  GpuAttentionMemory memory_;
  longspan_attn_call call_;
  longspan_attn_choice choice_ = {};
  longspan_attn_sizes sizes_ = {};
  longspan_attn_plan_info info_ = {};
  int status_ = LONGSPAN_ATTN_OK;
  std::string reason_;
  DeviceBuffer sinks_, slopes_, plan_, workspace_;
  std::vector<std::byte> host_plan_;
};

}  // namespace longspan
