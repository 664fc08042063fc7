// CPU attention against the naive oracle: lengths, types, head ratios, cases and faults. One
// instruction set after the other. Traps of shared kernels are in attention_traps_test.cc.
#include "kernels/attention/attention_cpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/attention_oracle.h"
#include "tests/support/paged_attention.h"

namespace longspan {
namespace {

// Tolerances are relative to 1 + |expected|; outputs of 16 bits carry their own rounding.
double OutputTolerance(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return 6e-4;
    case DType::kBFloat16:
      return 4.5e-3;
    default:
      return 1e-5;
  }
}

class AttentionCpuTest : public testing::TestWithParam<CpuAttentionIsa> {
 protected:
  void ExpectOracle(const AttentionCase& spec, double tolerance = 0.0) {
    PagedAttention problem(spec);
    ASSERT_TRUE(problem.Run(pool_, {.isa = GetParam()}));
    const double o_tolerance = tolerance > 0.0 ? tolerance : OutputTolerance(spec.q_dtype);
    EXPECT_EQ(
        CompareWithOracle(problem.params(), AttentionOracle(problem.params()), o_tolerance, 1e-5),
        "");
  }
  ThreadPool pool_{2};
};

TEST_P(AttentionCpuTest, AgreesAtEveryLengthAroundABlockATileAndAPart) {
  for (const int32_t length : {1, 15, 16, 17, 63, 64, 65, 97, 511, 512, 513, 1021}) {
    SCOPED_TRACE(length);
    AttentionCase spec;
    spec.kv_lens = {length};
    ExpectOracle(spec);
    spec.q_lens = {std::min(length, 5)};
    spec.kv_dtype = DType::kBFloat16;
    ExpectOracle(spec);
  }
}

TEST_P(AttentionCpuTest, AgreesAt131073And1048576Tokens) {
  AttentionCase spec;
  spec.num_q_heads = 2;
  spec.num_kv_heads = 1;
  spec.head_dim = 16;
  spec.scale = 0.25f;
  for (const int32_t length : {131073, 1 << 20}) {
    SCOPED_TRACE(length);
    spec.kv_lens = {length};
    ExpectOracle(spec);
  }
}

TEST_P(AttentionCpuTest, AgreesOnABatchOfVeryUnequalLengths) {
  AttentionCase spec;
  spec.q_lens = {1, 1, 1, 33, 1, 2};
  spec.kv_lens = {9001, 1, 3, 33, 130, 700};
  ExpectOracle(spec);
}

TEST_P(AttentionCpuTest, AgreesInEveryPairOfTypes) {
  const DType f32 = DType::kFloat32, f16 = DType::kFloat16, bf16 = DType::kBFloat16;
  for (const auto& [q, kv] :
       {std::pair{f32, f32}, {f32, f16}, {f32, bf16}, {f16, f16}, {bf16, bf16}}) {
    SCOPED_TRACE(std::string(DTypeName(q)) + " on " + std::string(DTypeName(kv)));
    AttentionCase spec;
    spec.q_lens = {3, 20};
    spec.kv_lens = {100, 70};
    spec.q_dtype = q;
    spec.kv_dtype = kv;
    ExpectOracle(spec);
  }
}

TEST_P(AttentionCpuTest, AgreesWithASinkSoftcapAlibiAndNegativeScaleTogether) {
  AttentionCase spec;
  spec.q_lens = {4, 40};
  spec.kv_lens = {600, 90};
  spec.sinks = spec.alibi = true;
  spec.softcap = 3.0f;
  spec.scale = -0.4f;
  ExpectOracle(spec);
}

TEST_P(AttentionCpuTest, AScaleOfZeroIsTheMeanOfVisibleValues) {
  AttentionCase spec;
  spec.q_lens = {3};
  spec.kv_lens = {70};
  spec.scale = 0.0f;
  ExpectOracle(spec);
}

TEST_P(AttentionCpuTest, TwoSequencesMayShareABlock) {
  AttentionCase spec;
  spec.q_lens = {1, 1};
  spec.kv_lens = {40, 40};
  spec.content = {7, 7};
  PagedAttention problem(spec);
  problem.block_table(1)[0] = problem.block_table(0)[0];
  problem.block_table(1)[1] = problem.block_table(0)[1];
  ASSERT_TRUE(problem.Run(pool_, {.isa = GetParam()}));
  EXPECT_EQ(problem.RowBits(0, 0, 1), problem.RowBits(1, 0, 1));
  EXPECT_EQ(CompareWithOracle(problem.params(), AttentionOracle(problem.params()), 1e-5, 1e-5), "");
}

TEST_P(AttentionCpuTest, TheOutputMayOverwriteNothingButItsRowsWhenStridesDiffer) {
  // Run() checks guard words between heads, rows and behind the end; here with every row width.
  for (int32_t head_dim = 16; head_dim <= 256; head_dim += 8) {
    AttentionCase spec;
    spec.head_dim = head_dim;
    spec.q_lens = {2};
    spec.kv_lens = {20};
    spec.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    ExpectOracle(spec);
  }
}

TEST_P(AttentionCpuTest, Case_035_EmptySequencesInABatch) {
  AttentionCase spec;
  spec.q_lens = {0, 1, 0, 1};
  spec.kv_lens = {0, 3, 0, 5};
  ExpectOracle(spec);
  spec.q_lens = {0, 0};
  spec.kv_lens = {4, 0};
  ExpectOracle(spec);
  spec.q_lens = {1};
  spec.kv_lens = {0};
  PagedAttention problem(spec);
  ASSERT_TRUE(problem.Run(pool_, {.isa = GetParam()}));
  for (int32_t head = 0; head < 9; ++head) {
    EXPECT_EQ(problem.lse(0, head), -std::numeric_limits<float>::infinity());
    for (int32_t d = 0; d < 64; ++d) EXPECT_EQ(problem.output(0, head, d), 0.0f);
  }
}

TEST_P(AttentionCpuTest, Case_040_AnyRatioOfHeads) {
  const std::pair<int32_t, int32_t> ratios[] = {{9, 3},  {14, 2}, {28, 4}, {40, 8}, {24, 4},
                                                {64, 4}, {8, 8},  {8, 1},  {15, 5}, {130, 1}};
  for (const auto& [q_heads, kv_heads] : ratios) {
    SCOPED_TRACE(q_heads);
    AttentionCase spec;
    spec.num_q_heads = q_heads;
    spec.num_kv_heads = kv_heads;
    spec.head_dim = 32;
    spec.q_lens = {1, 9};
    spec.kv_lens = {70, 40};
    ExpectOracle(spec);
  }
  AttentionParams params = PagedAttention(AttentionCase{}).params();
  params.num_q_heads = 10;
  params.num_kv_heads = 4;
  EXPECT_EQ(CheckCpuAttention(params), KernelStatus::kUnsupportedHeads);
}

TEST_P(AttentionCpuTest, Case_042_HeadDimsThatAreNoMultipleOfAVector) {
  for (const int32_t head_dim : {40, 64, 72, 80, 96, 112, 128, 192, 256}) {
    SCOPED_TRACE(head_dim);
    AttentionCase spec;
    spec.head_dim = head_dim;
    spec.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    spec.q_lens = {1, 8};
    spec.kv_lens = {130, 66};
    ExpectOracle(spec);
  }
  AttentionParams params = PagedAttention(AttentionCase{}).params();
  for (const int32_t head_dim : {63, 8, 264, 0}) {
    params.head_dim = head_dim;
    EXPECT_EQ(CheckCpuAttention(params), KernelStatus::kUnsupportedHeadDim);
  }
}

TEST_P(AttentionCpuTest, Case_047_ScoresBeyondTheRangeOfHalf) {
  for (const bool one_key_differs : {false, true}) {
    AttentionCase spec;
    spec.q_dtype = spec.kv_dtype = DType::kFloat16;
    spec.head_dim = 128;
    spec.num_q_heads = spec.num_kv_heads = 1;
    spec.scale = 0.08838834764f;
    spec.magnitude = 0.0f;
    spec.kv_lens = {one_key_differs ? 4096 : 300};
    PagedAttention problem(spec);
    auto* q = static_cast<uint16_t*>(const_cast<void*>(problem.params().q));
    for (int d = 0; d < 128; ++d) q[d] = FloatToFloat16(23.0f);
    for (int32_t key = 0; key < spec.kv_lens[0]; ++key) {
      problem.SetKv(0, key, 0, false, one_key_differs && key != 1000 ? -23.0f : 23.0f);
    }
    ASSERT_TRUE(problem.Run(pool_, {.isa = GetParam()}));
    EXPECT_EQ(CompareWithOracle(problem.params(), AttentionOracle(problem.params()), 1e-3, 1e-5),
              "");
  }
}

TEST_P(AttentionCpuTest, Fault_R8_AFullyMaskedRowIsZeroWithMinusInfinity) {
  AttentionCase spec;
  spec.q_lens = {6};  // more queries than keys: the first four see nothing
  spec.kv_lens = {2};
  spec.sinks = true;
  PagedAttention problem(spec);
  ASSERT_TRUE(problem.Run(pool_, {.isa = GetParam()}));
  for (int64_t token = 0; token < 4; ++token) {
    EXPECT_EQ(problem.lse(token, 0), -std::numeric_limits<float>::infinity());
    for (int32_t d = 0; d < 64; ++d) EXPECT_EQ(problem.output(token, 0, d), 0.0f);
  }
  EXPECT_EQ(CompareWithOracle(problem.params(), AttentionOracle(problem.params()), 1e-5, 1e-5), "");
}

TEST_P(AttentionCpuTest, Fault_R7_ANanKeyStaysInItsSequence) {
  AttentionCase spec;
  spec.q_lens = {2, 3};
  spec.kv_lens = {90, 80};
  PagedAttention clean(spec);
  ASSERT_TRUE(clean.Run(pool_, {.isa = GetParam()}));
  PagedAttention bad(spec);
  bad.SetKv(0, 11, 1, false, std::numeric_limits<float>::quiet_NaN());
  bad.SetKv(0, 40, 2, true, std::numeric_limits<float>::infinity());
  ASSERT_TRUE(bad.Run(pool_, {.isa = GetParam()}));
  EXPECT_EQ(bad.RowBits(1, 0, 3), clean.RowBits(1, 0, 3));
  EXPECT_TRUE(std::isnan(bad.output(0, 3, 0)));
  EXPECT_TRUE(std::isnan(bad.lse(0, 3)));
  EXPECT_TRUE(std::isinf(bad.output(0, 6, 0)));
  EXPECT_EQ(bad.output(0, 0, 5), clean.output(0, 0, 5));  // KV head 0 has no bad row
}

TEST(AttentionCpu, RefusesWhatItCannotDo) {
  PagedAttention problem{AttentionCase{}};
  const AttentionParams good = problem.params();
  EXPECT_EQ(CheckCpuAttention(good), KernelStatus::kOk);
  AttentionParams params = good;
  params.kv_dtype = DType::kInt8;
  EXPECT_EQ(CheckCpuAttention(params), KernelStatus::kUnsupportedDType);
  params = good;
  params.q_dtype = DType::kBFloat16;  // mixed 16-bit pair
  EXPECT_EQ(CheckCpuAttention(params), KernelStatus::kUnsupportedDType);
  params = good;
  params.block_size = 257;
  EXPECT_EQ(CheckCpuAttention(params), KernelStatus::kUnsupportedBlockSize);
  params = good;
  params.scale = std::numeric_limits<float>::infinity();
  EXPECT_EQ(CheckCpuAttention(params), KernelStatus::kUnsupportedOption);
  const uint64_t word = 1;
  params = good;
  params.tree_mask = &word;
  EXPECT_EQ(CheckCpuAttention(params), KernelStatus::kUnsupportedTreeMask);
  params = good;
  params.window_left = -2;
  EXPECT_EQ(CheckCpuAttention(params), KernelStatus::kUnsupportedOption);
}

TEST(AttentionCpu, AWorkspaceThatIsTooSmallIsRefusedBeforeAnythingIsWritten) {
  AttentionCase spec;
  spec.kv_lens = {5000};
  PagedAttention problem(spec);
  ThreadPool pool(2);
  const int64_t bytes = CpuAttentionWorkspaceBytes(problem.params(), 1, 1, 5000, 2);
  std::vector<std::byte> memory(bytes + 64);
  std::byte* workspace = memory.data();
  while (reinterpret_cast<uintptr_t>(workspace) % 64 != 0) ++workspace;
  EXPECT_EQ(AttentionCpu(pool, problem.params(), {}, {workspace, static_cast<size_t>(bytes - 1)}),
            KernelStatus::kWorkspaceTooSmall);
  EXPECT_EQ(AttentionCpu(pool, problem.params(), {}, {workspace + 4, static_cast<size_t>(bytes)}),
            KernelStatus::kMisaligned);
}

TEST(AttentionCpu, TheWorkspaceGrowsWithItsBounds) {
  const AttentionParams shape = PagedAttention(AttentionCase{}).params();
  int64_t last = 0;
  for (const int64_t total_q : {1, 8, 64, 512, 4096}) {
    for (const int64_t length : {1, 600, 8192, 131072}) {
      const int64_t bytes = CpuAttentionWorkspaceBytes(shape, 32, total_q, length, 2);
      EXPECT_GE(bytes, CpuAttentionWorkspaceBytes(shape, 32, total_q, length / 2, 2));
      EXPECT_GE(bytes, CpuAttentionWorkspaceBytes(shape, 16, total_q, length, 2));
    }
    const int64_t bytes = CpuAttentionWorkspaceBytes(shape, 32, total_q, 8192, 2);
    EXPECT_GE(bytes, last);
    last = bytes;
  }
  EXPECT_LT(last, int64_t{8} << 20);  // a serving step of 4,096 tokens at 8k context
}

INSTANTIATE_TEST_SUITE_P(Isa, AttentionCpuTest, testing::ValuesIn(SupportedAttentionIsas()),
                         [](const auto& param_info) {
                           return std::string(AttentionIsaName(param_info.param));
                         });

}  // namespace
}  // namespace longspan
