// Rows are taken greedily: of a few random candidates the one with most pairs not seen before.
#include "tests/support/attention_table.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

namespace longspan {
namespace {

using Row = AttentionTableRow;
constexpr AttentionReach kSm90 = AttentionReach::kSm90;
constexpr AttentionReach kGpu = AttentionReach::kGpu;
constexpr AttentionReach kCpu = AttentionReach::kCpu;

struct Value {
  std::string name;
  AttentionReach reach;
  std::function<void(Row&)> apply;
};
// A new value is one more entry of its option. Options are applied in order: a later one may look
// at what earlier ones have set.
struct Option {
  const char* name;
  std::vector<Value> values;
};

// Products of one query row and one key, heads included, that a sequence may cost: keeps the table
// quick for the oracle.
constexpr int64_t kMaxWork = 5'000'000;
constexpr int32_t kMaxQueries = 257;
int32_t MostQueries(const AttentionCase& spec, int32_t length) {
  const int64_t row = int64_t{std::max(1, length)} * spec.num_q_heads * spec.head_dim;
  return static_cast<int32_t>(std::clamp<int64_t>(kMaxWork / row, 1, kMaxQueries));
}

Option Types() {
  auto types = [](const char* name, AttentionReach reach, DType q, DType kv) {
    return Value{name, reach, [=](Row& row) {
                   row.spec.q_dtype = q;
                   row.spec.kv_dtype = kv;
                 }};
  };
  const DType f32 = DType::kFloat32, f16 = DType::kFloat16, bf16 = DType::kBFloat16;
  return {"types",
          {types("bf16_on_bf16", kSm90, bf16, bf16), types("f16_on_f16", kSm90, f16, f16),
           types("f32_on_f32", kCpu, f32, f32), types("f32_on_f16", kCpu, f32, f16),
           types("f32_on_bf16", kCpu, f32, bf16)}};
}

Option Masks() {
  auto mask = [](const char* name, AttentionReach reach, bool causal, int32_t left, int32_t right) {
    return Value{name, reach, [=](Row& row) {
                   row.spec.causal = causal;
                   row.spec.window_left = left;
                   row.spec.window_right = right;
                 }};
  };
  constexpr int32_t kHuge = 2'000'000'000;
  return {
      "mask",
      {mask("causal", kSm90, true, -1, -1), mask("full", kSm90, false, -1, -1),
       mask("causal_left7", kSm90, true, 7, -1), mask("causal_left70", kSm90, true, 70, -1),
       mask("full_left20", kSm90, false, 20, -1), mask("full_left100_0", kSm90, false, 100, 0),
       mask("causal_left70_right9", kSm90, true, 70, 9),
       mask("causal_huge", kSm90, true, kHuge, kHuge),
       mask("full_left0_right0", kSm90, false, 0, 0), mask("full_left3_right5", kGpu, false, 3, 5),
       mask("full_left66_right130", kGpu, false, 66, 130),
       mask("full_right2", kGpu, false, -1, 2)}};
}

Option Softcap() {
  return {"softcap",
          {{"", kSm90, [](Row&) {}},
           {"softcap", kGpu, [](Row& row) { row.spec.softcap = 4.0f; }},
           {"softcap50", kGpu, [](Row& row) { row.spec.softcap = 50.0f; }}}};
}

Option Sinks() {
  return {"sinks",
          {{"", kSm90, [](Row&) {}}, {"sinks", kGpu, [](Row& row) { row.spec.sinks = true; }}}};
}

Option Alibi() {
  return {"alibi",
          {{"", kSm90, [](Row&) {}}, {"alibi", kGpu, [](Row& row) { row.spec.alibi = true; }}}};
}

Option HeadDims() {
  Option option = {"head_dim", {}};
  for (const auto& [head_dim, reach] : {std::pair{64, kSm90},
                                        {128, kSm90},
                                        {192, kSm90},
                                        {256, kSm90},
                                        {80, kGpu},
                                        {96, kGpu},
                                        {16, kGpu},
                                        {40, kGpu},
                                        {136, kGpu}}) {
    option.values.push_back({"d" + std::to_string(head_dim), reach,
                             [d = head_dim](Row& row) { row.spec.head_dim = d; }});
  }
  return option;
}

// In units of the usual 1 / sqrt(head_dim).
Option Scales() {
  auto scale = [](const char* name, AttentionReach reach, float units) {
    return Value{name, reach, [=](Row& row) {
                   row.spec.scale = units / std::sqrt(static_cast<float>(row.spec.head_dim));
                 }};
  };
  return {"scale",
          {scale("scale1", kSm90, 1.0f), scale("scale4", kSm90, 4.0f),
           scale("scale_negative", kGpu, -2.4f)}};
}

Option BlockSizes() {
  Option option = {"block_size", {}};
  for (const auto& [size, reach] : {std::pair{16, kSm90},
                                    {32, kSm90},
                                    {48, kSm90},
                                    {64, kSm90},
                                    {80, kSm90},
                                    {128, kSm90},
                                    {240, kSm90},
                                    {256, kSm90},
                                    {1, kCpu},
                                    {3, kCpu},
                                    {24, kCpu},
                                    {100, kCpu},
                                    {255, kCpu}}) {
    option.values.push_back(
        {"block" + std::to_string(size), reach, [b = size](Row& row) { row.spec.block_size = b; }});
  }
  return option;
}

Option Groups() {
  Option option = {"group", {}};
  for (const int32_t group : {1, 2, 3, 4, 5, 7, 8, 16, 32}) {
    option.values.push_back(
        {"group" + std::to_string(group), kSm90, [=](Row& row) { row.spec.num_q_heads = group; }});
  }
  return option;
}

Option KvHeads() {
  Option option = {"kv_heads", {}};
  for (const int32_t heads : {1, 2, 3}) {
    option.values.push_back({"kv" + std::to_string(heads), kSm90, [=](Row& row) {
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
        {name, kSm90, [=](Row& row) { row.spec.kv_lens = of_block(row.spec.block_size); }});
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
    option.values.push_back({name, kSm90, [=](Row& row) {
                               AttentionCase& spec = row.spec;
                               spec.q_lens.clear();
                               for (size_t i = 0; i < spec.kv_lens.size(); ++i) {
                                 const int32_t length = spec.kv_lens[i];
                                 spec.q_lens.push_back(
                                     of_sequence(i, length, MostQueries(spec, length)));
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
          {{"shuffled", kSm90, [](Row&) {}},
           {"heads_first", kSm90, [](Row& row) { row.spec.heads_first = true; }},
           {"one_piece", kSm90, pieces(AttentionTableKeys::kOnePiece)},
           {"rows", kSm90, pieces(AttentionTableKeys::kRows)}}};
}

Option Families() {
  auto family = [](AttentionTableFamily which) { return [=](Row& row) { row.family = which; }; };
  return {"family",
          {{"by_shape", kSm90, family(AttentionTableFamily::kByShape)},
           {"decode", kSm90, family(AttentionTableFamily::kDecode)},
           {"prefill", kSm90, family(AttentionTableFamily::kPrefill)}}};
}

Option Poison() {
  return {"poison",
          {{"nan", kSm90, [](Row& row) { row.spec.fill = KvFill::kNan; }},
           {"inf", kSm90, [](Row& row) { row.spec.fill = KvFill::kInf; }}}};
}

std::vector<Option> Options() {
  return {Types(),  Masks(),   Softcap(), Sinks(),   Alibi(),   HeadDims(), Scales(), BlockSizes(),
          Groups(), KvHeads(), Lengths(), Queries(), Layouts(), Families(), Poison()};
}

using Choice = std::vector<int32_t>;

// Which pairs of values are still missing.
class Pairs {
 public:
  // All pairs of values that are in reach.
  Pairs(const std::vector<Option>& options, AttentionReach reach) : options_(options) {
    for (const Option& option : options) {
      begin_.push_back(num_values_);
      num_values_ += static_cast<int32_t>(option.values.size());
    }
    missing_.assign(static_cast<size_t>(num_values_) * num_values_, false);
    for (size_t a = 0; a < options.size(); ++a) {
      for (size_t b = a + 1; b < options.size(); ++b) {
        for (size_t x = 0; x < options[a].values.size(); ++x) {
          for (size_t y = 0; y < options[b].values.size(); ++y) {
            if (options[a].values[x].reach > reach || options[b].values[y].reach > reach) continue;
            missing_[At(a, static_cast<int32_t>(x), b, static_cast<int32_t>(y))] = true;
            ++num_missing_;
          }
        }
      }
    }
  }

  int64_t num_missing() const { return num_missing_; }
  int32_t NumNew(const Choice& choice) const {
    int32_t num = 0;
    for (size_t a = 0; a < choice.size(); ++a) {
      for (size_t b = a + 1; b < choice.size(); ++b) {
        num += missing_[At(a, choice[a], b, choice[b])];
      }
    }
    return num;
  }
  void Take(const Choice& choice) {
    for (size_t a = 0; a < choice.size(); ++a) {
      for (size_t b = a + 1; b < choice.size(); ++b) {
        const size_t at = At(a, choice[a], b, choice[b]);
        num_missing_ -= missing_[at];
        missing_[at] = false;
      }
    }
  }
  // Puts the first missing pair into a choice.
  void PutFirst(Choice* choice) const {
    for (size_t a = 0; a < choice->size(); ++a) {
      for (size_t b = a + 1; b < choice->size(); ++b) {
        for (size_t x = 0; x < options_[a].values.size(); ++x) {
          for (size_t y = 0; y < options_[b].values.size(); ++y) {
            if (!missing_[At(a, static_cast<int32_t>(x), b, static_cast<int32_t>(y))]) continue;
            (*choice)[a] = static_cast<int32_t>(x);
            (*choice)[b] = static_cast<int32_t>(y);
            return;
          }
        }
      }
    }
  }

 private:
  size_t At(size_t a, int32_t x, size_t b, int32_t y) const {
    return static_cast<size_t>(begin_[a] + x) * num_values_ + begin_[b] + y;
  }

  const std::vector<Option>& options_;
  std::vector<int32_t> begin_;  // by option: the number of its first value
  int32_t num_values_ = 0;
  std::vector<bool> missing_;
  int64_t num_missing_ = 0;
};

Choice RandomChoice(const std::vector<Option>& options, AttentionReach reach,
                    std::mt19937* random) {
  Choice choice;
  for (const Option& option : options) {
    int32_t value;
    do value = static_cast<int32_t>((*random)() % option.values.size());
    while (option.values[value].reach > reach);
    choice.push_back(value);
  }
  return choice;
}

Row MakeRow(const std::vector<Option>& options, const Choice& choice, size_t index) {
  Row row;
  row.values = choice;
  row.spec.block_order_seed = static_cast<uint32_t>(index) + 1;
  row.spec.extra_table_entries = static_cast<int32_t>(index % 3);
  constexpr int32_t kCtas[] = {1, 2, 3, 7, 40};
  row.num_ctas = kCtas[index % std::size(kCtas)];
  for (size_t i = 0; i < options.size(); ++i) {
    const Value& value = options[i].values[choice[i]];
    value.apply(row);
    row.reach = std::max(row.reach, value.reach);
    if (value.name.empty()) continue;
    row.name += (row.name.empty() ? "" : "_") + value.name;
  }
  std::replace(row.name.begin(), row.name.end(), '-', 'm');
  std::replace(row.name.begin(), row.name.end(), '+', 'p');
  return row;
}

}  // namespace

std::vector<AttentionOption> AttentionTableOptions() {
  std::vector<AttentionOption> list;
  for (const Option& option : Options()) {
    list.push_back({option.name, {}});
    for (const Value& value : option.values) list.back().reach.push_back(value.reach);
  }
  return list;
}

std::vector<AttentionTableRow> MakeAttentionTable() {
  const std::vector<Option> options = Options();
  std::mt19937 random(7);
  std::vector<Row> rows;
  const struct {
    AttentionReach reach;
    size_t num_rows;  // of this reach and less, at least
  } passes[] = {{kSm90, 240}, {kGpu, kAttentionTableGpuRows}, {kCpu, 0}};
  for (const auto& pass : passes) {
    Pairs pairs(options, pass.reach);
    for (const Row& row : rows) pairs.Take(row.values);
    while (pairs.num_missing() > 0 || rows.size() < pass.num_rows) {
      Choice best;
      int32_t most = -1;
      for (int candidate = 0; candidate < 40; ++candidate) {
        Choice choice = RandomChoice(options, pass.reach, &random);
        if (pairs.num_missing() > 0) pairs.PutFirst(&choice);
        const int32_t num = pairs.NumNew(choice);
        if (num <= most) continue;
        most = num;
        best = choice;
      }
      pairs.Take(best);
      rows.push_back(MakeRow(options, best, rows.size()));
    }
  }
  return rows;
}

}  // namespace longspan
