// The values behind attention_table_options.h, one function an option.
#include "tests/support/attention_table_options.h"

#include <algorithm>
#include <cmath>

namespace longspan {
namespace {

using Row = AttentionTableRow;
constexpr uint8_t kAll = kOnSm90 | kOnGpu | kOnCpu;
constexpr uint8_t kSlow = kOnGpu | kOnCpu;

using Value = AttentionTableValue;
using Option = AttentionTableOption;

// Products of one query row and one key, heads included, that a sequence may cost: keeps the table
// quick for the oracle.
constexpr int64_t kMaxWork = 5'000'000;
constexpr int32_t kMaxQueries = 257;
int32_t MostQueries(const AttentionCase& spec, int32_t length) {
  const int64_t row = int64_t{std::max(1, length)} * spec.num_q_heads * spec.head_dim;
  return static_cast<int32_t>(std::clamp<int64_t>(kMaxWork / row, 1, kMaxQueries));
}

Option Types() {
  auto types = [](const char* name, uint8_t servers, DType q, DType kv) {
    return Value{name, servers, [=](Row& row) {
                   row.spec.q_dtype = q;
                   row.spec.kv_dtype = kv;
                 }};
  };
  // 8-bit ones with how many scales they have.
  auto scaled = [](const char* name, DType q, DType kv, KvScaling scaling) {
    return Value{name, kOnGpu, [=](Row& row) {
                   row.spec.q_dtype = q;
                   row.spec.kv_dtype = kv;
                   row.spec.scaling = scaling;
                 }};
  };
  const DType f32 = DType::kFloat32, f16 = DType::kFloat16, bf16 = DType::kBFloat16;
  const DType e4m3 = DType::kFloat8E4M3, int8 = DType::kInt8;
  return {"types",
          {types("bf16_on_bf16", kAll, bf16, bf16), types("f16_on_f16", kAll, f16, f16),
           scaled("bf16_on_e4m3_tensor", bf16, e4m3, KvScaling::kTensor),
           scaled("bf16_on_e4m3_head", bf16, e4m3, KvScaling::kHead),
           scaled("bf16_on_e4m3_block", bf16, e4m3, KvScaling::kBlockAndHead),
           scaled("bf16_on_int8_block", bf16, int8, KvScaling::kBlockAndHead),
           scaled("f16_on_e4m3_block", f16, e4m3, KvScaling::kBlockAndHead),
           scaled("f16_on_int8_tensor", f16, int8, KvScaling::kTensor),
           scaled("f16_on_int8_head", f16, int8, KvScaling::kHead),
           types("f32_on_f32", kOnCpu, f32, f32), types("f32_on_f16", kOnCpu, f32, f16),
           types("f32_on_bf16", kOnCpu, f32, bf16)}};
}

Option Masks() {
  auto mask = [](const char* name, uint8_t servers, bool causal, int32_t left, int32_t right) {
    return Value{name, servers, [=](Row& row) {
                   row.spec.causal = causal;
                   row.spec.window_left = left;
                   row.spec.window_right = right;
                 }};
  };
  // In place of causal; of decode alone, and of few new tokens.
  auto tree = [](const char* name, TreeMask which, int32_t left, int32_t right) {
    return Value{name, kOnGpu, [=](Row& row) {
                   row.spec.tree = which;
                   row.spec.window_left = left;
                   row.spec.window_right = right;
                 }};
  };
  constexpr int32_t kHuge = 2'000'000'000;
  return {
      "mask",
      {mask("causal", kAll, true, -1, -1), mask("full", kAll, false, -1, -1),
       mask("causal_left7", kAll, true, 7, -1), mask("causal_left70", kAll, true, 70, -1),
       mask("full_left20", kAll, false, 20, -1), mask("full_left100_0", kAll, false, 100, 0),
       mask("causal_left70_right9", kAll, true, 70, 9),
       mask("causal_huge", kAll, true, kHuge, kHuge), mask("full_left0_right0", kAll, false, 0, 0),
       mask("full_left3_right5", kSlow, false, 3, 5),
       mask("full_left66_right130", kSlow, false, 66, 130),
       mask("full_right2", kSlow, false, -1, 2), tree("tree", TreeMask::kAncestors, -1, -1),
       tree("tree_left70", TreeMask::kAncestors, 70, -1), tree("any_tree", TreeMask::kAny, -1, -1),
       tree("any_tree_left5_right2", TreeMask::kAny, 5, 2)}};
}

Option Softcap() {
  return {"softcap",
          {{"", kAll, [](Row&) {}},
           {"softcap", kSlow, [](Row& row) { row.spec.softcap = 4.0f; }},
           {"softcap50", kSlow, [](Row& row) { row.spec.softcap = 50.0f; }}}};
}

Option Sinks() {
  return {"sinks",
          {{"", kAll, [](Row&) {}}, {"sinks", kSlow, [](Row& row) { row.spec.sinks = true; }}}};
}

Option Alibi() {
  return {"alibi",
          {{"", kAll, [](Row&) {}}, {"alibi", kSlow, [](Row& row) { row.spec.alibi = true; }}}};
}

Option HeadDims() {
  Option option = {"head_dim", {}};
  for (const auto& [head_dim, servers] : {std::pair{64, kAll},
                                          {128, kAll},
                                          {192, kAll},
                                          {256, kAll},
                                          {80, kSlow},
                                          {96, kSlow},
                                          {16, kSlow},
                                          {40, kSlow},
                                          {136, kSlow}}) {
    option.values.push_back({"d" + std::to_string(head_dim), servers,
                             [d = head_dim](Row& row) { row.spec.head_dim = d; }});
  }
  return option;
}

// In units of the usual 1 / sqrt(head_dim).
Option Scales() {
  auto scale = [](const char* name, uint8_t servers, float units) {
    return Value{name, servers, [=](Row& row) {
                   row.spec.scale = units / std::sqrt(static_cast<float>(row.spec.head_dim));
                 }};
  };
  return {"scale",
          {scale("scale1", kAll, 1.0f), scale("scale4", kAll, 4.0f),
           scale("scale_negative", kSlow, -2.4f)}};
}

Option BlockSizes() {
  Option option = {"block_size", {}};
  for (const auto& [size, servers] : {std::pair{16, kAll},
                                      {32, kAll},
                                      {48, kAll},
                                      {64, kAll},
                                      {80, kAll},
                                      {128, kAll},
                                      {240, kAll},
                                      {256, kAll},
                                      {1, kOnCpu},
                                      {3, kOnCpu},
                                      {24, kOnCpu},
                                      {100, kOnCpu},
                                      {255, kOnCpu}}) {
    option.values.push_back({"block" + std::to_string(size), servers,
                             [b = size](Row& row) { row.spec.block_size = b; }});
  }
  return option;
}

Option Groups() {
  Option option = {"group", {}};
  for (const int32_t group : {1, 2, 3, 4, 5, 7, 8, 16, 32}) {
    option.values.push_back(
        {"group" + std::to_string(group), kAll, [=](Row& row) { row.spec.num_q_heads = group; }});
  }
  return option;
}

Option KvHeads() {
  Option option = {"kv_heads", {}};
  for (const int32_t heads : {1, 2, 3}) {
    option.values.push_back({"kv" + std::to_string(heads), kAll, [=](Row& row) {
                               row.spec.num_kv_heads = heads;
                               row.spec.num_q_heads *= heads;  // was the group
                             }});
  }
  return option;
}

// Around a block b, a tile of 64, a part of 512; primes; one sequence and very unequal ones.
Option Lengths() {
  Option option = {"lengths", {}};
  auto lengths = [&](const char* name, auto of_block) {
    option.values.push_back(
        {name, kAll, [=](Row& row) { row.spec.kv_lens = of_block(row.spec.block_size); }});
  };
  using L = std::vector<int32_t>;
  lengths("len_0_1_b-1", [](int32_t b) { return L{0, 1, b - 1}; });
  lengths("len_b_b+1_63", [](int32_t b) { return L{b, b + 1, 63}; });
  lengths("len_2b-1_2b_2b+1", [](int32_t b) { return L{2 * b - 1, 2 * b, 2 * b + 1}; });
  lengths("len_64_65_127_7", [](int32_t) { return L{64, 65, 127, 7}; });
  lengths("len_211_3_128", [](int32_t) { return L{211, 3, 128}; });
  lengths("len_509", [](int32_t) { return L{509}; });
  lengths("len_513_0_2", [](int32_t) { return L{513, 0, 2}; });
  lengths("len_257_129_31", [](int32_t) { return L{257, 129, 31}; });
  lengths("len_1_1009", [](int32_t) { return L{1, 1009}; });
  lengths("len_4099", [](int32_t) { return L{4099}; });
  return option;
}

Option Queries() {
  Option option = {"queries", {}};
  auto queries = [&](const char* name, auto of_sequence) {
    option.values.push_back(
        {name, kAll, [=](Row& row) {
           AttentionCase& spec = row.spec;
           spec.q_lens.clear();
           for (size_t i = 0; i < spec.kv_lens.size(); ++i) {
             const int32_t length = spec.kv_lens[i];
             const int32_t q_len = of_sequence(i, length, MostQueries(spec, length));
             const bool tree = spec.tree != TreeMask::kNone;
             spec.q_lens.push_back(tree ? std::min(q_len, kMaxTreeTokens) : q_len);
           }
         }});
  };
  queries("q1", [](size_t, int32_t, int32_t) { return 1; });
  queries("q3", [](size_t, int32_t, int32_t) { return 3; });
  queries("q16", [](size_t, int32_t, int32_t most) { return std::min(16, most); });
  // A whole prompt, or the end of one.
  queries("prompt", [](size_t, int32_t length, int32_t most) { return std::min(length, most); });
  // With the short ones: rows that see no key.
  queries("prompt+3",
          [](size_t, int32_t length, int32_t most) { return std::min(length, most) + 3; });
  queries("uneven", [](size_t i, int32_t length, int32_t most) {
    return i == 0 && length < 500 ? 0 : std::min({length, 66, most});
  });
  queries("mixed",
          [](size_t i, int32_t, int32_t most) { return i % 2 == 0 ? 1 : std::min(43, most); });
  return option;
}

Option Layouts() {
  auto pieces = [](AttentionTableKeys keys) {
    return [=](Row& row) {
      row.keys = keys;
      row.spec.rows = keys == AttentionTableKeys::kRows;
      row.spec.block_order_seed = 0;
    };
  };
  return {"layout",
          {{"shuffled", kAll, [](Row&) {}},
           {"heads_first", kAll, [](Row& row) { row.spec.heads_first = true; }},
           {"one_piece", kAll, pieces(AttentionTableKeys::kOnePiece)},
           {"rows", kAll, pieces(AttentionTableKeys::kRows)}}};
}

Option Families() {
  auto family = [](AttentionTableFamily which) {
    return [=](Row& row) {
      const bool tree = row.spec.tree != TreeMask::kNone;  // of decode alone
      row.family =
          tree && which == AttentionTableFamily::kPrefill ? AttentionTableFamily::kDecode : which;
    };
  };
  return {"family",
          {{"by_shape", kAll, family(AttentionTableFamily::kByShape)},
           {"decode", kAll, family(AttentionTableFamily::kDecode)},
           {"prefill", kAll, family(AttentionTableFamily::kPrefill)}}};
}

Option Poison() {
  return {"poison",
          {{"nan", kAll, [](Row& row) { row.spec.fill = KvFill::kNan; }},
           {"inf", kAll, [](Row& row) { row.spec.fill = KvFill::kInf; }}}};
}

}  // namespace

std::vector<AttentionTableOption> AttentionTableOptionsWithValues() {
  return {Types(),  Masks(),   Softcap(), Sinks(),   Alibi(),   HeadDims(), Scales(), BlockSizes(),
          Groups(), KvHeads(), Lengths(), Queries(), Layouts(), Families(), Poison()};
}

}  // namespace longspan
