// Attention with bfloat16 products: how far it may be from the oracle, and that it is as
// batch-invariant and as blind to poison as the float kernels. Skipped where the processor has no
// such products.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/attention_oracle.h"
#include "tests/support/paged_attention.h"

namespace longspan {
namespace {

class AttentionBFloat16 : public testing::Test {
 protected:
  void SetUp() override {
    if (!CpuAttentionHasBFloat16()) GTEST_SKIP() << "this processor has no AVX512_BF16";
  }
  CpuAttentionOptions Options(int num_splits = 0) const {
    return {.num_splits = num_splits, .precision = CpuAttentionPrecision::kBFloat16};
  }
  std::vector<std::byte> Bits(const AttentionCase& spec, int num_splits = 0) {
    PagedAttention problem(spec);
    EXPECT_TRUE(problem.Run(pool_, Options(num_splits)));
    return problem.AllBits();
  }
  ThreadPool pool_{2};
};

TEST_F(AttentionBFloat16, IsWithinTheRoundingOfItsInputs) {
  for (const int32_t head_dim : {16, 24, 64, 72, 80, 128, 256}) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      AttentionCase spec;
      spec.q_lens = {1, 40, 0, 3};
      spec.kv_lens = {700, 90, 5, 2};
      spec.head_dim = head_dim;
      spec.kv_dtype = dtype;
      spec.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
      PagedAttention problem(spec);
      ASSERT_TRUE(problem.Run(pool_, Options()));
      // Inputs carry 2^-9 each; the sums over keys and d average it.
      EXPECT_EQ(CompareWithOracle(problem.params(), AttentionOracle(problem.params()), 8e-3, 6e-3),
                "")
          << head_dim;
    }
  }
}

TEST_F(AttentionBFloat16, MasksOptionsAndWindowsHold) {
  for (const int32_t window : {-1, 0, 1, 9, 63, 64, 65}) {
    for (const bool causal : {true, false}) {
      AttentionCase spec;
      spec.q_lens = {33, 2};
      spec.kv_lens = {130, 600};
      spec.window_left = window;
      spec.window_right = window == 9 ? 4 : -1;
      spec.causal = causal;
      spec.sinks = window == 0;
      spec.alibi = window == 63;
      spec.softcap = window == 64 ? 3.0f : 0.0f;
      spec.fill = KvFill::kInf;
      PagedAttention problem(spec);
      ASSERT_TRUE(problem.Run(pool_, Options()));
      // A weight and a value may each be off by 2^-8 of themselves; over few keys nothing averages
      // it.
      const double tolerance = window >= 0 && window < 9 ? 2e-2 : 1e-2;
      EXPECT_EQ(
          CompareWithOracle(problem.params(), AttentionOracle(problem.params()), tolerance, 1e-2),
          "")
          << window;
    }
  }
}

TEST_F(AttentionBFloat16, Trap_01_PoisonGivesTheSameBitsAsZeros) {
  for (const int32_t length : {1, 2, 63, 64, 65, 513}) {
    AttentionCase spec;
    spec.q_lens = {std::min(length, 9)};
    spec.kv_lens = {length};
    spec.head_dim = 72;
    spec.fill = KvFill::kZeros;
    const auto zeros = Bits(spec);
    spec.fill = KvFill::kNan;
    EXPECT_EQ(Bits(spec), zeros) << length;
    spec.fill = KvFill::kInf;
    EXPECT_EQ(Bits(spec), zeros) << length;
  }
}

TEST_F(AttentionBFloat16, Trap_13_BitsDoNotDependOnSplitsThreadsOrBlocks) {
  AttentionCase spec;
  spec.q_lens = {1, 40};
  spec.kv_lens = {2100, 600};
  const auto expected = Bits(spec);
  for (const int splits : {1, 2, 7, 16}) EXPECT_EQ(Bits(spec, splits), expected) << splits;
  for (const int32_t block_size : {1, 3, 64, 256}) {
    spec.block_size = block_size;
    spec.heads_first = block_size == 64;
    EXPECT_EQ(Bits(spec), expected) << block_size;
  }
}

TEST_F(AttentionBFloat16, Trap_19_ChunksAndSingleStepsGiveTheBitsOfOneShot) {
  for (const int32_t window : {-1, 50}) {
    AttentionCase spec;
    spec.q_lens = {300};
    spec.kv_lens = {300};
    spec.content = {3};
    spec.window_left = window;
    const auto whole = Bits(spec);
    for (const int32_t chunk : {1, 7, 64, 100}) {
      std::vector<std::byte> chunked;
      for (int32_t done = 0; done < 300;) {
        const int32_t now = std::min(300 - done, chunk);
        done += now;
        spec.q_lens = {now};
        spec.kv_lens = {done};
        const auto bits = Bits(spec);
        chunked.insert(chunked.end(), bits.begin(), bits.end());
      }
      EXPECT_EQ(chunked, whole) << chunk;
    }
  }
}

TEST_F(AttentionBFloat16, FloatKeysAreNeverRounded) {
  AttentionCase spec;
  spec.q_lens = {9};
  spec.kv_lens = {100};
  spec.kv_dtype = DType::kFloat32;
  PagedAttention rounded(spec), exact(spec);
  ASSERT_TRUE(rounded.Run(pool_, Options()));
  ASSERT_TRUE(exact.Run(pool_, {}));
  EXPECT_EQ(rounded.AllBits(), exact.AllBits());
}

}  // namespace
}  // namespace longspan
