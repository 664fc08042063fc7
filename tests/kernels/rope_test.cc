// Rotary embedding: frequencies by each rule against their definitions, angles at far positions,
// both pair layouts, and what stays untouched.
#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>
#include <vector>

#include "kernels/cpu/thread_pool.h"

namespace longspan {
namespace {

RopeFrequencies Make(const RopeFrequencyParams& params) {
  RopeFrequencies out;
  EXPECT_EQ(MakeRopeFrequencies(params, out), KernelStatus::kOk);
  return out;
}

TEST(RopeFrequencies, PlainAndLinear) {
  const RopeFrequencies plain = Make({.theta = 10000.0, .rotary_dim = 64});
  ASSERT_EQ(plain.inv_freq.size(), 32u);
  EXPECT_EQ(plain.inv_freq[0], 1.0f);
  EXPECT_FLOAT_EQ(plain.inv_freq[16], 0.01f);
  EXPECT_EQ(plain.magnitude, 1.0f);
  const RopeFrequencies linear =
      Make({.theta = 10000.0, .rotary_dim = 64, .rule = RopeRule::kLinear, .factor = 4.0});
  for (int i = 0; i < 32; ++i) EXPECT_FLOAT_EQ(linear.inv_freq[i], plain.inv_freq[i] / 4.0f);
}

TEST(RopeFrequencies, FactorsOfAFileDivide) {
  const std::vector<float> factors = {1.0f, 2.0f};
  const RopeFrequencies out = Make({.theta = 100.0, .rotary_dim = 4, .freq_factors = factors});
  EXPECT_FLOAT_EQ(out.inv_freq[0], 1.0f);
  EXPECT_FLOAT_EQ(out.inv_freq[1], 0.05f);
}

TEST(RopeFrequencies, Llama3KeepsFastStretchesSlowAndBlendsBetween) {
  // Llama 3.1: theta 500000, factor 8, low 1, high 4, original 8192, head 128.
  const RopeFrequencies out = Make({.theta = 500000.0,
                                    .rotary_dim = 128,
                                    .rule = RopeRule::kLlama3,
                                    .factor = 8.0,
                                    .original_context_length = 8192,
                                    .low_freq_factor = 1.0,
                                    .high_freq_factor = 4.0});
  int kept = 0, stretched = 0, blended = 0;
  for (int i = 0; i < 64; ++i) {
    const double base = std::pow(500000.0, -i / 64.0);
    const double wavelength = 2.0 * std::numbers::pi / base;
    if (wavelength < 8192.0 / 4.0) {
      ++kept;
      EXPECT_FLOAT_EQ(out.inv_freq[i], static_cast<float>(base));
    } else if (wavelength > 8192.0) {
      ++stretched;
      EXPECT_FLOAT_EQ(out.inv_freq[i], static_cast<float>(base / 8.0));
    } else {
      ++blended;
      const double smooth = (8192.0 / wavelength - 1.0) / 3.0;
      EXPECT_FLOAT_EQ(out.inv_freq[i],
                      static_cast<float>((1.0 - smooth) * base / 8.0 + smooth * base));
    }
  }
  EXPECT_EQ(kept, 29);
  EXPECT_EQ(blended, 6);
  EXPECT_EQ(stretched, 29);
}

TEST(RopeFrequencies, YarnRampsBetweenKeptAndStretchedAndScalesTheMagnitude) {
  // As Qwen2.5's long form: theta 1e6, factor 4, original 32768, head 128, beta 32 and 1.
  const RopeFrequencyParams params{.theta = 1e6,
                                   .rotary_dim = 128,
                                   .rule = RopeRule::kYarn,
                                   .factor = 4.0,
                                   .original_context_length = 32768};
  const RopeFrequencies out = Make(params);
  EXPECT_FLOAT_EQ(out.magnitude, 0.1f * std::log(4.0f) + 1.0f);
  // 128 ln(32768 / (beta 2 pi)) / (2 ln 1e6): 23.6 for beta 32, 39.7 for 1; outward: 23 and 40.
  for (int i = 0; i < 64; ++i) {
    const double base = std::pow(1e6, -i / 64.0);
    const double ramp = std::min(1.0, std::max(0.0, (i - 23.0) / (40.0 - 23.0)));
    EXPECT_FLOAT_EQ(out.inv_freq[i], static_cast<float>(base / 4.0 * ramp + base * (1.0 - ramp)))
        << i;
  }
  RopeFrequencyParams given = params;
  given.attention_factor = 1.25;
  EXPECT_EQ(Make(given).magnitude, 1.25f);
}

TEST(RopeFrequencies, NonsenseIsRefused) {
  RopeFrequencies out;
  EXPECT_EQ(MakeRopeFrequencies({.rotary_dim = 63}, out), KernelStatus::kBadShape);
  EXPECT_EQ(MakeRopeFrequencies({.theta = 0.0, .rotary_dim = 64}, out),
            KernelStatus::kUnsupportedOption);
  EXPECT_EQ(MakeRopeFrequencies({.theta = std::nan(""), .rotary_dim = 64}, out),
            KernelStatus::kUnsupportedOption);
  EXPECT_EQ(MakeRopeFrequencies({.rotary_dim = 64, .rule = RopeRule::kLinear, .factor = 0.0}, out),
            KernelStatus::kUnsupportedOption);
  EXPECT_EQ(MakeRopeFrequencies({.rotary_dim = 64, .rule = RopeRule::kLlama3, .factor = 8.0}, out),
            KernelStatus::kUnsupportedOption);
  const std::vector<float> factors(31, 1.0f);
  EXPECT_EQ(MakeRopeFrequencies({.rotary_dim = 64, .freq_factors = factors}, out),
            KernelStatus::kBadShape);
}

TEST(RopeTable, AnglesAreExactAtFarPositions) {
  ThreadPool pool(2);
  const RopeFrequencies frequencies = Make({.theta = 10000.0, .rotary_dim = 64});
  const std::vector<int32_t> positions = {0, 1, 7899, 131071, 1000000, 2147483647};
  std::vector<float> table(positions.size() * 64);
  FillRopeTableCpu(pool, frequencies, positions, table.data());
  for (size_t row = 0; row < positions.size(); ++row) {
    for (int pair = 0; pair < 32; ++pair) {
      const long double angle =
          static_cast<long double>(positions[row]) * frequencies.inv_freq[pair];
      EXPECT_NEAR(table[row * 64 + pair], std::cos(angle), 6e-7) << positions[row];
      EXPECT_NEAR(table[row * 64 + 32 + pair], std::sin(angle), 6e-7) << positions[row];
    }
  }
}

TEST(Rope, RotatesBothPairLayoutsAndNothingElse) {
  ThreadPool pool(2);
  std::mt19937 rng(4);
  std::normal_distribution<float> normal;
  for (const RopePairs pairs : {RopePairs::kInterleaved, RopePairs::kHalfSplit}) {
    for (const int32_t rotary_dim : {0, 2, 10, 32, 64}) {
      constexpr int32_t kHeadDim = 64, kHeads = 3, kTokens = 5, kStride = 200;
      std::vector<float> x(kTokens * kStride);
      for (float& value : x) value = normal(rng);
      const std::vector<float> before = x;
      const std::vector<int32_t> positions = {0, 3, 3, 500, 99999};
      const RopeFrequencies frequencies = Make({.theta = 10000.0, .rotary_dim = rotary_dim});
      std::vector<float> table(kTokens * rotary_dim + 1);
      FillRopeTableCpu(pool, frequencies, positions, table.data());
      ASSERT_EQ(RopeCpu(pool, {.x = x.data(),
                               .token_stride = kStride,
                               .head_stride = kHeadDim,
                               .num_tokens = kTokens,
                               .num_heads = kHeads,
                               .head_dim = kHeadDim,
                               .rotary_dim = rotary_dim,
                               .pairs = pairs,
                               .cos_sin = table.data()}),
                KernelStatus::kOk);
      std::vector<double> expected(before.begin(), before.end());
      for (int32_t token = 0; token < kTokens; ++token) {
        for (int32_t head = 0; head < kHeads; ++head) {
          for (int32_t i = 0; i < rotary_dim / 2; ++i) {
            const int32_t row = token * kStride + head * kHeadDim;
            const bool interleaved = pairs == RopePairs::kInterleaved;
            const int32_t a = row + (interleaved ? 2 * i : i);
            const int32_t b = row + (interleaved ? 2 * i + 1 : i + rotary_dim / 2);
            const double angle = double{frequencies.inv_freq[i]} * positions[token];
            expected[a] = before[a] * std::cos(angle) - before[b] * std::sin(angle);
            expected[b] = before[a] * std::sin(angle) + before[b] * std::cos(angle);
          }
        }
      }
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_NEAR(x[i], expected[i], 1e-6 * (1.0 + std::fabs(expected[i]))) << i;
      }
    }
  }
}

TEST(Rope, BadShapesAreRefused) {
  ThreadPool pool(1);
  EXPECT_EQ(RopeCpu(pool, {.num_tokens = 1, .num_heads = 1, .head_dim = 8, .rotary_dim = 16}),
            KernelStatus::kBadShape);
  EXPECT_EQ(RopeCpu(pool, {.num_tokens = 0, .num_heads = 1, .head_dim = 8, .rotary_dim = 8}),
            KernelStatus::kOk);
}

}  // namespace
}  // namespace longspan
