// Every pair of option values of CPU attention, in several hundred small problems, against the
// oracle.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <set>

#include "tests/support/attention_oracle.h"
#include "tests/support/paged_attention.h"

namespace longspan {
namespace {

// One value index per option.
constexpr std::array<int, 11> kNumValues = {5, 8, 8, 9, 8, 2, 2, 2, 3, 5, 4};
using Choice = std::array<int, kNumValues.size()>;
using Pair = std::array<int, 4>;  // option, value, option, value

std::vector<Pair> PairsOf(const Choice& choice) {
  std::vector<Pair> pairs;
  for (size_t a = 0; a < choice.size(); ++a) {
    for (size_t b = a + 1; b < choice.size(); ++b) {
      pairs.push_back({static_cast<int>(a), choice[a], static_cast<int>(b), choice[b]});
    }
  }
  return pairs;
}

size_t NumPairs() {
  size_t count = 0;
  for (size_t a = 0; a < kNumValues.size(); ++a) {
    for (size_t b = a + 1; b < kNumValues.size(); ++b) count += kNumValues[a] * kNumValues[b];
  }
  return count;
}

// Greedy: of some random choices the one with the most new pairs, until nothing is missing.
std::vector<Choice> CoverAllPairs() {
  std::mt19937 rng(20);
  std::set<Pair> seen;
  std::vector<Choice> choices;
  while (seen.size() < NumPairs()) {
    Choice best{};
    size_t best_new = 0;
    for (int attempt = 0; attempt < 30; ++attempt) {
      Choice choice;
      for (size_t i = 0; i < choice.size(); ++i)
        choice[i] = static_cast<int>(rng() % kNumValues[i]);
      size_t num_new = 0;
      for (const Pair& pair : PairsOf(choice)) num_new += !seen.contains(pair);
      if (num_new > best_new || attempt == 0) {
        best = choice;
        best_new = num_new;
      }
    }
    for (const Pair& pair : PairsOf(best)) seen.insert(pair);
    choices.push_back(best);
  }
  for (int extra = 0; extra < 150; ++extra) {
    Choice choice;
    for (size_t i = 0; i < choice.size(); ++i) choice[i] = static_cast<int>(rng() % kNumValues[i]);
    choices.push_back(choice);
  }
  return choices;
}

AttentionCase MakeCase(const Choice& c, uint32_t seed) {
  const DType f32 = DType::kFloat32, f16 = DType::kFloat16, bf16 = DType::kBFloat16;
  const std::array<std::pair<DType, DType>, 5> types = {
      {{f32, f32}, {f32, f16}, {f32, bf16}, {f16, f16}, {bf16, bf16}}};
  const std::array<std::pair<int, int>, 8> heads = {
      {{1, 1}, {9, 3}, {14, 2}, {10, 2}, {15, 5}, {8, 1}, {6, 6}, {33, 1}}};
  const std::array<int, 8> head_dims = {16, 24, 40, 64, 80, 96, 128, 256};
  const std::array<int, 9> block_sizes = {1, 3, 8, 16, 24, 64, 100, 255, 256};
  AttentionCase spec;
  std::tie(spec.q_dtype, spec.kv_dtype) = types[c[0]];
  std::tie(spec.num_q_heads, spec.num_kv_heads) = heads[c[1]];
  spec.head_dim = head_dims[c[2]];
  spec.block_size = block_sizes[c[3]];
  const std::array<std::tuple<bool, int, int>, 8> masks = {{{true, -1, -1},
                                                            {false, -1, -1},
                                                            {true, 7, -1},
                                                            {false, 3, 5},
                                                            {false, 0, 0},
                                                            {false, -1, 2},
                                                            {true, 70, 9},
                                                            {false, 66, 130}}};
  std::tie(spec.causal, spec.window_left, spec.window_right) = masks[c[4]];
  spec.softcap = c[5] != 0 ? 4.0f : 0.0f;
  spec.sinks = c[6] != 0;
  spec.alibi = c[7] != 0;
  const float unit = 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
  spec.scale = std::array{1.0f, -2.4f, 8.0f}[c[8]] * unit;
  const std::array<std::vector<int32_t>, 5> q_lens = {{{1}, {1, 1, 1}, {17}, {0, 2, 0, 5}, {9, 1}}};
  const std::array<std::vector<int32_t>, 5> kv_lens = {
      {{67}, {130, 1, 33}, {17}, {4, 70, 0, 3}, {40, 0}}};
  spec.q_lens = q_lens[c[9]];
  spec.kv_lens = kv_lens[c[9]];
  spec.heads_first = (c[10] & 1) != 0;
  spec.fill = (c[10] & 2) != 0 ? KvFill::kNan : KvFill::kInf;
  spec.block_order_seed = seed;
  return spec;
}

// The error of a weight grows with the size of its score: 1, 2.4 or 8 standard deviations of noise.
double Tolerance(DType dtype, const Choice& choice) {
  if (dtype == DType::kFloat16) return 6e-4;
  if (dtype == DType::kBFloat16) return 4.5e-3;
  return choice[8] == 2 ? 6e-5 : 2e-5;
}

TEST(AttentionOptions, EveryPairOfOptionsAgreesWithTheOracle) {
  const std::vector<Choice> choices = CoverAllPairs();
  EXPECT_GE(choices.size(), 200u);
  ThreadPool pool(2);
  uint32_t seed = 1;
  for (const Choice& choice : choices) {
    PagedAttention problem(MakeCase(choice, ++seed));
    const OracleOutput oracle = AttentionOracle(problem.params());
    for (const CpuAttentionIsa isa : SupportedAttentionIsas()) {
      ASSERT_TRUE(problem.Run(pool, {.num_splits = static_cast<int>(seed % 3), .isa = isa}));
      ASSERT_EQ(CompareWithOracle(problem.params(), oracle,
                                  Tolerance(problem.params().q_dtype, choice), 2e-5),
                "")
          << AttentionIsaName(isa) << ", problem " << seed << " of " << choices.size();
    }
  }
}

}  // namespace
}  // namespace longspan
