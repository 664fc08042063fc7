// One decode problem of tests/support on a device: planned, launched, brought back.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention/decode/decode.h"
#include "kernels/runtime/buffer.h"
#include "tests/kernels/attention/gpu_attention_memory.h"

namespace longspan {

struct GpuDecodeOptions {
  int32_t num_ctas = 0;           // 0: one per SM
  int32_t max_q_len = 0;          // 0: the batch's
  uint8_t workspace_fill = 0xff;  // NaN patterns
  bool overlap_previous = false;
};

class GpuDecodeProblem {
 public:
  // Copies the problem to the device. The problem outlives this object.
  GpuDecodeProblem(PagedAttention& problem, const GpuDecodeOptions& options = {});

  KernelStatus status() const { return status_; }  // of the set-up; kOk before anything may run
  AttentionParams& device_params() { return params_; }
  const DecodeSetup& setup() const { return setup_; }
  const DecodeKvMaps& maps() const { return maps_; }
  GpuStream& stream() { return memory_.stream(); }
  const DecodeLaunch& launch() const { return launch_; }

  // Plans for the problem's lengths as they are now and copies the plan.
  void Plan();
  // Copies q, k, v, the block table, o and lse as they are on the host now.
  void Upload() { memory_.Upload(); }
  KernelStatus Enqueue() {
    return LaunchDecode(setup_, params_, maps_, launch_, stream().handle());
  }
  // Waits, copies o and lse to the host problem. False on a device error, a changed guard word, or
  // an arrival count that was not reset.
  bool Download();
  // Plan, Enqueue, Download.
  bool Run();

 private:
  void Check(GpuResult result);

  PagedAttention& problem_;
  GpuAttentionMemory memory_;
  KernelStatus status_ = KernelStatus::kOk;
  AttentionParams params_;  // device pointers
  DecodeSetup setup_;
  DecodeKvMaps maps_;
  DecodeLaunch launch_;
  DeviceBuffer plan_, workspace_;
  std::vector<std::byte> host_plan_;
};

}  // namespace longspan
