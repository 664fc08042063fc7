// The draw itself: distributions by chi-square with fixed seeds, the filters against a naive double
// precision oracle, and the edges that made other samplers return ids outside the vocabulary.
#include "model/token_draw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/random_stream.h"

namespace longspan {
namespace {

std::vector<float> RandomLogits(int32_t vocab_size, uint32_t seed, float spread) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> logits(static_cast<size_t>(vocab_size));
  for (float& logit : logits) logit = normal(engine);
  return logits;
}

// Probabilities after all filters, by sorting everything in double precision.
std::vector<double> Oracle(const std::vector<float>& logits, const SamplingParams& params) {
  const size_t n = logits.size();
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const double max = logits[order[0]];
  std::vector<double> weight(n);
  for (size_t i = 0; i < n; ++i) weight[i] = std::exp((logits[i] - max) / params.temperature);
  size_t kept = n;
  while (kept > 1 && weight[order[kept - 1]] < params.min_p) --kept;
  if (params.top_k > 0) kept = std::min(kept, static_cast<size_t>(params.top_k));
  double total = 0;
  for (size_t i = 0; i < kept; ++i) total += weight[order[i]];
  if (params.top_p < 1.0f) {
    double mass = 0;
    size_t i = 0;
    while (i < kept && (i == 0 || mass < params.top_p * total)) mass += weight[order[i++]];
    kept = i;
    total = mass;
  }
  std::vector<double> probability(n, 0.0);
  for (size_t i = 0; i < kept; ++i) probability[order[i]] = weight[order[i]] / total;
  return probability;
}

// How far chi-square of the draws lies from its mean, in standard deviations; an id that must not
// appear counts as infinitely far. Cells with few expected draws are pooled.
double ChiSquareDeviations(const std::vector<float>& logits, const SamplingParams& params,
                           int draws) {
  const std::vector<double> probability = Oracle(logits, params);
  std::vector<int> seen(logits.size(), 0);
  TokenDraw draw(static_cast<int32_t>(logits.size()));
  draw.SetRow(logits);
  for (int i = 0; i < draws; ++i) {
    const int32_t id = ToInt(draw.Draw(params, UniformAt(params.seed, 0, i)));
    if (id < 0 || id >= static_cast<int32_t>(logits.size()) ||
        probability[static_cast<size_t>(id)] == 0) {
      ADD_FAILURE() << "drew id " << id;
      return std::numeric_limits<double>::infinity();
    }
    ++seen[static_cast<size_t>(id)];
  }
  double chi = 0, pooled_expected = 0, pooled_seen = 0;
  int cells = 0;
  const auto add = [&](double expected, double count) {
    chi += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (size_t i = 0; i < logits.size(); ++i) {
    pooled_expected += probability[i] * draws;
    pooled_seen += seen[i];
    if (pooled_expected < 8) continue;
    add(pooled_expected, pooled_seen);
    pooled_expected = pooled_seen = 0;
  }
  if (pooled_expected > 0) add(pooled_expected + 1e-9, pooled_seen);
  const double freedom = cells - 1;
  return cells > 1 ? (chi - freedom) / std::sqrt(2 * freedom) : 0.0;
}

TEST(TokenDraw, DrawsFollowTheDistribution) {
  constexpr int kDraws = 60'000;
  struct Filters {
    float temperature;
    int32_t top_k;
    float top_p, min_p;
  };
  for (const Filters& f : {Filters{1.0f, 0, 1.0f, 0.0f},
                           {0.7f, 0, 1.0f, 0.0f},
                           {2.5f, 0, 1.0f, 0.0f},
                           {1.0f, 7, 1.0f, 0.0f},
                           {1.0f, 100, 1.0f, 0.0f},
                           {1.0f, 0, 0.9f, 0.0f},
                           {1.0f, 0, 1.0f, 0.05f},
                           {1.3f, 40, 0.8f, 0.01f},
                           {100.0f, 0, 0.99f, 0.0f}}) {
    SamplingParams params;
    params.temperature = f.temperature;
    params.top_k = f.top_k;
    params.top_p = f.top_p;
    params.min_p = f.min_p;
    for (const uint64_t seed : {17, 18}) {
      params.seed = seed;
      // 333 logits: five whole blocks and a part of one. Too good is wrong as well.
      const double deviations = ChiSquareDeviations(RandomLogits(333, 5, 2.0f), params, kDraws);
      EXPECT_LT(std::abs(deviations), 3.5) << f.temperature << ' ' << f.top_k << ' ' << f.top_p
                                           << ' ' << f.min_p << " seed " << seed;
    }
  }
}

// The set of tokens that can be drawn is exactly the oracle's: the first and last of them in order
// of ids appear at the ends of the uniform range, and nothing else in between.
TEST(TokenDraw, FiltersKeepExactlyTheOraclesTokens) {
  for (const int32_t vocab_size : {70, 3000}) {
    TokenDraw draw(vocab_size);
    for (uint32_t shape = 0; shape < 40; ++shape) {
      std::vector<float> logits =
          RandomLogits(vocab_size, shape, 0.5f + static_cast<float>(shape % 8));
      if (shape % 5 == 0) {
        for (float& logit : logits) logit = std::round(logit);  // ties at every border
      }
      SamplingParams params;
      params.temperature = shape % 3 == 0 ? 1.0f : 0.4f * static_cast<float>(1 + shape % 6);
      params.top_p = shape % 2 == 0 ? 0.9f : 0.3f + 0.0999f * static_cast<float>(shape % 8);
      params.top_k = shape % 4 == 1 ? static_cast<int32_t>(1 + shape * 13) : 0;
      params.min_p = shape % 4 == 2 ? 0.01f : 0.0f;
      const std::vector<double> probability = Oracle(logits, params);
      draw.SetRow(logits);
      int32_t before = -1;
      double mass = 0;
      for (int32_t id = 0; id < vocab_size; ++id) {
        const double p = probability[static_cast<size_t>(id)];
        if (p < 1e-5) continue;  // too small to be hit by its middle for sure
        while (before + 1 < id) mass += probability[static_cast<size_t>(++before)];
        EXPECT_EQ(draw.Draw(params, mass + p / 2), TokenId{id}) << vocab_size << ' ' << shape;
      }
    }
  }
}

TEST(TokenDraw, BestAgreesWithSortingForEveryCount) {
  for (const int32_t vocab_size : {1, 5, 64, 65, 512, 4999}) {
    std::vector<float> logits = RandomLogits(vocab_size, 9, 1.0f);
    for (float& logit : logits) logit = std::round(logit * 4) / 4;  // many ties
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    TokenDraw draw(vocab_size);
    draw.SetRow(logits);
    for (const int32_t k : {0, 1, 2, 20, 64, 79, 80, 1000, vocab_size, vocab_size + 1}) {
      const auto best = draw.Best(k);
      ASSERT_EQ(best.size(), static_cast<size_t>(std::min(k, vocab_size)));
      for (size_t i = 0; i < best.size(); ++i)
        ASSERT_EQ(best[i], order[i]) << vocab_size << ' ' << k;
    }
  }
}

TEST(TokenDraw, LogSumExpAgreesWithDoublePrecision) {
  for (const int32_t vocab_size : {1, 63, 512, 49152}) {
    const std::vector<float> logits = RandomLogits(vocab_size, 3, 6.0f);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double{logit});
    TokenDraw draw(vocab_size);
    draw.SetRow(logits);
    EXPECT_NEAR(draw.LogSumExp(), std::log(sum), 2e-6) << vocab_size;
  }
}

TEST(TokenDraw, ZeroTemperatureTakesTheLowestIdOfTies) {
  std::vector<float> logits(200, -1.0f);
  logits[70] = logits[71] = logits[199] = 2.0f;
  TokenDraw draw(200);
  draw.SetRow(logits);
  SamplingParams params;
  params.temperature = 0.0f;
  EXPECT_EQ(draw.Draw(params, 0.999), TokenId{70});
}

TEST(TokenDraw, SummaryReportsEveryKindOfNonFiniteLogitAnywhere) {
  for (const int32_t vocab_size : {1, 64, 100, 512}) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      for (int32_t at = 0; at < vocab_size; at += 7) {
        std::vector<float> logits = RandomLogits(vocab_size, 1, 1.0f);
        TokenDraw draw(vocab_size);
        EXPECT_TRUE(draw.SetRow(logits).all_finite);
        logits[static_cast<size_t>(at)] = bad;
        EXPECT_FALSE(draw.SetRow(logits).all_finite) << vocab_size << ' ' << at;
      }
    }
  }
}

// 100,000 draws each (10,000 beside the case's own limits of k) of a one-hot row and of a row whose
// rounded sum is not 1 never leave the vocabulary; the first draw of each is the largest number
// below 1.
TEST(TokenDraw, Case_032_NeverAnIdOutsideTheVocabulary) {
  constexpr int32_t kVocab = 512;
  std::vector<float> one_hot(kVocab, -1e4f);
  one_hot[1] = 10.0f;
  std::vector<float> flat(kVocab, std::log(1.0f / kVocab));
  flat[0] += std::log1p(-1e-7f * kVocab);  // the probabilities sum to 1 - 1e-7
  TokenDraw draw(kVocab);
  for (const int32_t top_k : {1 << 30, 0, -1, 1, kVocab, kVocab - 1}) {
    const int num_draws = top_k == 1 << 30 || top_k == 0 ? 100'000 : 10'000;
    for (const float top_p : {1.0f, 0.999999f, 1e-7f, 0.0f}) {
      SamplingParams params;
      params.top_k = top_k;
      params.top_p = top_p;
      draw.SetRow(one_hot);
      for (int i = 0; i < num_draws; ++i) {
        const double uniform = i == 0 ? 1.0 - 0x1p-53 : UniformAt(1, top_k, i);
        ASSERT_EQ(draw.Draw(params, uniform), TokenId{1}) << top_k << ' ' << top_p;
      }
      draw.SetRow(flat);
      for (int i = 0; i < num_draws; ++i) {
        const double uniform = i == 0 ? 1.0 - 0x1p-53 : UniformAt(2, top_k, i);
        const int32_t id = ToInt(draw.Draw(params, uniform));
        ASSERT_TRUE(id >= 0 && id < kVocab) << id;
      }
    }
  }
}

TEST(TokenDraw, Fault_R5_ExtremeTemperaturesAreGreedyOrFlatWithoutInfinities) {
  const std::vector<float> logits = RandomLogits(512, 4, 1.0f);
  const int32_t best =
      static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  TokenDraw draw(512);
  draw.SetRow(logits);
  for (const float temperature : {1e-9f, 1e-30f, std::numeric_limits<float>::denorm_min()}) {
    SamplingParams params;
    params.temperature = temperature;
    for (const float top_p : {1.0f, 0.5f}) {
      params.top_p = top_p;
      for (const double uniform : {0.0, 0.5, 0.999999}) {
        EXPECT_EQ(draw.Draw(params, uniform), TokenId{best}) << temperature;
      }
    }
  }
  SamplingParams hot;
  hot.seed = 8;
  hot.temperature = 1e9f;
  EXPECT_LT(std::abs(ChiSquareDeviations(logits, hot, 100'000)), 3.5);
}

TEST(TokenDraw, Fault_R5_MinPOfOneKeepsOnlyTheBest) {
  std::vector<float> logits = RandomLogits(300, 4, 1.0f);
  logits[250] = 50.0f;
  TokenDraw draw(300);
  draw.SetRow(logits);
  SamplingParams params;
  params.min_p = 1.0f;
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(draw.Draw(params, UniformAt(3, 0, i)), TokenId{250});
}

TEST(TokenDraw, MaskedLogitsAreNeverDrawn) {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  std::vector<float> logits(300, kMasked);
  logits[3] = 1.0f;
  logits[299] = 0.0f;
  TokenDraw draw(300);
  draw.SetRow(logits);
  EXPECT_EQ(draw.Best(20).size(), 2u);
  for (const int32_t top_k : {0, 1, 2, 5}) {
    for (const float top_p : {1.0f, 0.9f}) {
      SamplingParams params;
      params.temperature = 100.0f;
      params.top_k = top_k;
      params.top_p = top_p;
      for (int i = 0; i < 1000; ++i) {
        const int32_t id = ToInt(draw.Draw(params, UniformAt(3, 0, i)));
        ASSERT_TRUE(id == 3 || id == 299) << id;
      }
    }
  }
}

TEST(RandomStream, IsUniformAndIndependentInEveryArgument) {
  constexpr int kCells = 64, kDraws = 64 * 4000;
  const auto chi_square = [&](auto draw) {
    std::vector<int> seen(kCells, 0);
    for (int i = 0; i < kDraws; ++i) {
      const double u = draw(i);
      EXPECT_TRUE(u >= 0.0 && u < 1.0);
      ++seen[static_cast<size_t>(u * kCells)];
    }
    double chi = 0;
    const double expected = double{kDraws} / kCells;
    for (const int count : seen) chi += (count - expected) * (count - expected) / expected;
    return chi / (kCells - 1);
  };
  const auto in_range = [](double chi) { return chi > 0.5 && chi < 1.6; };
  EXPECT_TRUE(in_range(chi_square([](int i) { return UniformAt(0, 0, i); })));
  EXPECT_TRUE(in_range(chi_square([](int i) { return UniformAt(42, i, 0); })));
  EXPECT_TRUE(
      in_range(chi_square([](int i) { return UniformAt(static_cast<uint64_t>(i), 0, 0); })));
  // Neighbouring streams share nothing: the difference of two is uniform as well.
  EXPECT_TRUE(in_range(chi_square([](int i) {
    const double d = UniformAt(7, 0, i) - UniformAt(7, 1, i);
    return d < 0 ? d + 1 : d;
  })));
  EXPECT_NE(UniformAt(1, 0, 0), UniformAt(0, 1, 0));
  EXPECT_NE(UniformAt(1, 0, 1), UniformAt(1, 1, 0));
}

}  // namespace
}  // namespace longspan
