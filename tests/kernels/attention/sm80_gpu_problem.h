// One attention problem of tests/support through the sm_80 line's prefill or decode: planned,
// launched, brought back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention/decode/decode.h"
#include "kernels/attention/prefill/sm80_prefill.h"
#include "kernels/runtime/buffer.h"
#include "tests/kernels/attention/gpu_attention_memory.h"
#include "tests/support/attention_oracle.h"

namespace longspan {

// Why the sm_80 line cannot be tested here; empty when it can.
std::string NoSm80Device();

class Sm80GpuProblem {
 public:
  // Copies the problem, which outlives this object, to the device. num_ctas (of decode): 0 is one
  // per SM.
  Sm80GpuProblem(PagedAttention& problem, bool decode, int32_t num_ctas = 0,
                 uint8_t workspace_fill = 0xff);

  KernelStatus status() const { return status_; }  // of the set-up
  AttentionParams& device_params() { return params_; }
  GpuStream& stream() { return memory_.stream(); }
  const DecodeSetup& decode_setup() const { return decode_setup_; }
  const Sm80PrefillSetup& prefill_setup() const { return prefill_setup_; }
  DecodeLaunch& decode_launch() { return decode_launch_; }
  Sm80PrefillLaunch& prefill_launch() { return prefill_launch_; }

  // Plans for the problem's lengths as they are now and copies the plan.
  void Plan();
  void Upload() { memory_.Upload(); }
  KernelStatus Enqueue();
  // Waits, copies o and lse to the host problem. Empty, or what is wrong: a device error, a changed
  // guard word, an arrival count that was not reset.
  std::string Download();
  // Plan, Enqueue, Download; empty or what is wrong.
  std::string Run();

 private:
  PagedAttention& problem_;
  bool decode_;
  GpuAttentionMemory memory_;
  AttentionParams params_;  // device pointers
  KernelStatus status_ = KernelStatus::kOk;
  DecodeSetup decode_setup_;
  DecodeLaunch decode_launch_;
  Sm80PrefillSetup prefill_setup_;
  Sm80PrefillLaunch prefill_launch_;
  DeviceBuffer sinks_, slopes_, plan_, workspace_;
  std::vector<std::byte> host_plan_;
};

// Empty when o and lse of the problem are the oracle's. Else the first element that is not (with
// its sequence, query, head and column), how many are not, and the worst.
std::string Differences(PagedAttention& problem, const OracleOutput& oracle, double o_tolerance,
                        double lse_tolerance);
// The same with the line's tolerances: the output is rounded to 16 bits, and weights are before
// they are multiplied.
std::string AgainstOracle(PagedAttention& problem, const OracleOutput& oracle);

// Relative Frobenius norm of the output's difference from the oracle's.
double RelativeError(PagedAttention& problem, const OracleOutput& oracle);

// Empty, or where two runs of a problem differ first.
std::string FirstByteApart(const std::vector<std::byte>& a, const std::vector<std::byte>& b);

}  // namespace longspan
