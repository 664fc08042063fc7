// Rows are taken greedily: of a few random candidates the one with most pairs not seen before.
#include "tests/kernels/attention/sm80_cases.h"

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <tuple>

namespace longspan {
namespace {

enum Property {
  kFamily,
  kMask,
  kDType,
  kHeadDim,
  kBlock,
  kGroup,
  kLengths,
  kQueries,
  kLayout,
  kScaling,
  kNumProperties
};
constexpr std::array<int, kNumProperties> kNumValues = {2, 18, 6, 8, 7, 8, 9, 5, 3, 3};
constexpr size_t kMinCases = 170;
using Choice = std::array<int, kNumProperties>;

constexpr int kNumCommonMasks = 14;  // the others are trees, of decode alone

struct Types {
  const char* name;
  DType q, kv;
};
constexpr Types kTypes[] = {{"bf16", DType::kBFloat16, DType::kBFloat16},
                            {"fp16", DType::kFloat16, DType::kFloat16},
                            {"bf16_e4m3", DType::kBFloat16, DType::kFloat8E4M3},
                            {"bf16_int8", DType::kBFloat16, DType::kInt8},
                            {"fp16_e4m3", DType::kFloat16, DType::kFloat8E4M3},
                            {"fp16_int8", DType::kFloat16, DType::kInt8}};
constexpr int32_t kHeadDims[] = {64, 80, 96, 128, 192, 256, 16, 136};
constexpr int32_t kBlocks[] = {16, 32, 48, 64, 128, 240, 256};
constexpr int32_t kGroups[] = {1, 2, 3, 4, 5, 7, 8, 16};

const char* SetMask(int mask, AttentionCase* spec) {
  spec->causal = mask % 2 == 0;
  switch (mask) {
    case 0:
      return "causal";
    case 1:
      return "full";
    case 2:
      spec->window_left = 65;
      return "causal_left65";
    case 3:
      spec->window_left = 20;
      return "full_left20";
    case 4:
      spec->sinks = true;
      return "causal_sinks";
    case 5:
      spec->window_right = 3;
      return "full_right3";
    case 6:
      spec->softcap = 2.0f;
      return "causal_softcap";
    case 7:
      spec->window_left = 100;
      spec->window_right = 0;
      spec->softcap = 30.0f;
      return "full_left100_right0_softcap";
    case 8:
      spec->alibi = true;
      return "causal_alibi";
    case 9:
      spec->alibi = true;
      spec->window_right = 70;
      return "full_right70_alibi";
    case 10:
      spec->alibi = spec->sinks = true;
      spec->softcap = 5.0f;
      spec->window_left = 0;
      return "causal_left0_alibi_sinks_softcap";
    case 11:
      spec->scale = -0.1f;
      spec->sinks = true;
      return "full_negative_scale_sinks";
    case 12:
      spec->window_left = 2000000000;
      spec->window_right = 2000000000;
      return "causal_huge_windows";
    case 13:
      spec->window_left = 63;
      spec->window_right = 1;
      spec->sinks = true;
      return "full_left63_right1_sinks";
    case 14:
      spec->tree = TreeMask::kAncestors;
      return "tree";
    case 15:
      spec->tree = TreeMask::kAny;
      spec->sinks = true;
      return "any_sinks";
    case 16:
      spec->tree = TreeMask::kAncestors;
      spec->window_left = 5;
      spec->softcap = 20.0f;
      return "tree_left5_softcap";
    default:
      spec->tree = TreeMask::kAny;
      spec->window_left = 70;
      spec->window_right = 2;
      spec->alibi = true;
      return "any_left70_right2_alibi";
  }
}

std::vector<int32_t> Lengths(int lengths, int32_t block) {
  switch (lengths) {
    case 0:
      return {0, 1, block - 1};
    case 1:
      return {block, block + 1, 63};
    case 2:
      return {64, 65, 127, 7};
    case 3:
      return {211, 3, 128};
    case 4:
      return {509};
    case 5:
      return {4097};
    case 6:
      return {1009, 0, 2};
    case 7:
      return {257, 129, 31};
    default:
      return {0, 0};
  }
}

// The number of new tokens of a sequence of that length.
int32_t QueryLength(int queries, bool decode, size_t seq, int32_t length) {
  if (decode) {
    constexpr int32_t kLens[] = {1, 2, 5, 16, 64};
    return queries == 4 && seq == 1 ? 0 : kLens[queries];
  }
  const int32_t most = length > 1000 ? 20 : length > 256 ? 70 : 257;
  switch (queries) {
    case 0:
      return std::min(length, most);  // a whole prompt, or the end of one
    case 1:
      return std::min(length, 37);
    case 2:
      return std::min(length, most) + 3;  // with the short ones: rows that see no key
    case 3:
      return seq == 0 ? 0 : std::min(length, 66);
    default:
      return seq % 2 == 0 ? 1 : 43;
  }
}

Sm80Case Make(const Choice& choice, size_t index) {
  Sm80Case made;
  AttentionCase& spec = made.spec;
  made.decode = choice[kFamily] == 1;
  spec.scale = 0.125f;
  const std::string mask =
      SetMask(made.decode ? choice[kMask] : choice[kMask] % kNumCommonMasks, &spec);
  const Types& types = kTypes[choice[kDType]];
  spec.q_dtype = types.q;
  spec.kv_dtype = types.kv;
  spec.scaling = static_cast<KvScaling>(choice[kScaling]);
  spec.head_dim = kHeadDims[choice[kHeadDim]];
  spec.block_size = kBlocks[choice[kBlock]];
  const int32_t group = kGroups[choice[kGroup]];
  spec.num_kv_heads = group >= 5 ? 1 : group == 1 ? 3 : 2;
  spec.num_q_heads = group * spec.num_kv_heads;
  spec.kv_lens = Lengths(choice[kLengths], spec.block_size);
  spec.q_lens.clear();
  for (size_t seq = 0; seq < spec.kv_lens.size(); ++seq) {
    spec.q_lens.push_back(QueryLength(choice[kQueries], made.decode, seq, spec.kv_lens[seq]));
  }
  spec.heads_first = choice[kLayout] == 1;
  spec.block_order_seed = choice[kLayout] == 2 ? 0 : static_cast<uint32_t>(index) + 1;
  constexpr int32_t kCtas[] = {0, 1, 3, 7, 40};
  made.num_ctas = kCtas[index % 5];
  made.name = std::string(made.decode ? "decode_" : "prefill_") + mask + "_" + types.name + "_d" +
              std::to_string(spec.head_dim) + "_block" + std::to_string(spec.block_size) +
              "_group" + std::to_string(group) + "_lengths" + std::to_string(choice[kLengths]) +
              "_queries" + std::to_string(choice[kQueries]) + "_layout" +
              std::to_string(choice[kLayout]) +
              (DTypeBytes(types.kv) == 1 ? "_scaling" + std::to_string(choice[kScaling]) : "");
  return made;
}

}  // namespace

std::vector<Sm80Case> Sm80Cases() {
  std::set<std::tuple<int, int, int, int>> missing;
  for (int a = 0; a < kNumProperties; ++a) {
    for (int b = a + 1; b < kNumProperties; ++b) {
      for (int x = 0; x < kNumValues[a]; ++x) {
        for (int y = 0; y < kNumValues[b]; ++y) missing.insert({a, b, x, y});
      }
    }
  }
  auto pairs = [&](const Choice& choice, bool take) {
    int num = 0;
    for (int a = 0; a < kNumProperties; ++a) {
      for (int b = a + 1; b < kNumProperties; ++b) {
        const std::tuple pair{a, b, choice[a], choice[b]};
        num += static_cast<int>(missing.count(pair));
        if (take) missing.erase(pair);
      }
    }
    return num;
  };
  std::mt19937 random(7);
  std::vector<Sm80Case> cases;
  while (!missing.empty() || cases.size() < kMinCases) {
    Choice best{};
    int most = -1;
    for (int candidate = 0; candidate < 40; ++candidate) {
      Choice choice;
      for (int i = 0; i < kNumProperties; ++i) {
        choice[i] = static_cast<int>(random() % static_cast<unsigned>(kNumValues[i]));
      }
      if (!missing.empty()) {  // one pair that is missing is in every candidate
        const auto [a, b, x, y] = *missing.begin();
        choice[a] = x;
        choice[b] = y;
      }
      const int num = pairs(choice, false);
      if (num > most) {
        most = num;
        best = choice;
      }
    }
    pairs(best, true);
    cases.push_back(Make(best, cases.size()));
  }
  return cases;
}

}  // namespace longspan
