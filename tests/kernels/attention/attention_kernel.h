// A test that runs once for every kind of GPU attention kernel: decode and prefill, each of both
// lines, through the drop-in's C functions. Skips, with the reason, where a kind has no device.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/kernels/attention/attn_gpu_problem.h"
#include "tests/kernels/attention/sm80_gpu_problem.h"

namespace longspan {

struct AttentionKernelKind {
  const char* name;
  int32_t family;
  int32_t line;

  AttnGpuOptions options() const { return {family, line == LONGSPAN_ATTN_SM80 ? line : 0}; }
  bool is_decode() const { return family == LONGSPAN_ATTN_DECODE; }
};
inline constexpr AttentionKernelKind kAttentionKernels[] = {
    {"decode_sm90", LONGSPAN_ATTN_DECODE, LONGSPAN_ATTN_SM90},
    {"prefill_sm90", LONGSPAN_ATTN_PREFILL, LONGSPAN_ATTN_SM90},
    {"decode_sm80", LONGSPAN_ATTN_DECODE, LONGSPAN_ATTN_SM80},
    {"prefill_sm80", LONGSPAN_ATTN_PREFILL, LONGSPAN_ATTN_SM80},
};
inline std::string NoDeviceFor(const AttentionKernelKind& kind) {
  return kind.line == LONGSPAN_ATTN_SM90 ? NoHopperDevice() : NoSm80Device();
}

class AttentionKernel : public testing::TestWithParam<AttentionKernelKind> {
 public:
  static std::string Name(const testing::TestParamInfo<AttentionKernelKind>& kind) {
    return kind.param.name;
  }

 protected:
  void SetUp() override {
    if (const std::string reason = NoDeviceFor(GetParam()); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }

  // What all kinds serve.
  static AttentionCase Case(std::vector<int32_t> q_lens, std::vector<int32_t> kv_lens) {
    AttentionCase spec;
    spec.q_dtype = spec.kv_dtype = DType::kBFloat16;
    spec.head_dim = 128;
    spec.num_q_heads = 8;
    spec.num_kv_heads = 2;
    spec.scale = 0.1f;
    spec.q_lens = std::move(q_lens);
    spec.kv_lens = std::move(kv_lens);
    return spec;
  }

  // Empty when the kernel of this test, and no other, serves the problem.
  static std::string NotThisKernel(const AttnGpuProblem& device) {
    if (device.status() != LONGSPAN_ATTN_OK) return device.reason();
    const longspan_attn_choice& choice = device.choice();
    const bool same = choice.family == GetParam().family && choice.line == GetParam().line;
    return same ? "" : "another kernel serves it";
  }
  static std::string Run(AttnGpuProblem& device) {
    const std::string wrong = NotThisKernel(device);
    return wrong.empty() ? device.Run() : wrong;
  }
  static void ExpectOracle(const AttentionCase& spec) {
    PagedAttention problem(spec);
    AttnGpuProblem device(problem, GetParam().options());
    ASSERT_EQ(Run(device), "");
    EXPECT_EQ(AgainstOracle(problem, AttentionOracle(problem.params())), "");
  }
  static std::vector<std::byte> Bits(const AttentionCase& spec) {
    PagedAttention problem(spec);
    AttnGpuProblem device(problem, GetParam().options());
    EXPECT_EQ(Run(device), "");
    return problem.AllBits();
  }
};

}  // namespace longspan
