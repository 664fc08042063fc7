// The table of attention problems: what it covers, what of it a GPU's kernels would get, and all of
// it on the CPU's kernels against the oracle.
#include "tests/support/attention_table.h"

#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <set>
#include <tuple>

#include "kernels/attention/dropin/attn_choice.h"
#include "tests/support/attention_oracle.h"
#include "tests/support/attn_call.h"

namespace longspan {
namespace {

const std::vector<AttentionTableRow>& Table() {
  static const std::vector<AttentionTableRow> table = MakeAttentionTable();
  return table;
}

int64_t NumServedBy(AttentionServer server) {
  int64_t num = 0;
  for (const AttentionTableRow& row : Table()) num += (row.servers & server) != 0 ? 1 : 0;
  return num;
}

TEST(AttentionTable, CoversEveryPairOfValuesForEveryServer) {
  const std::vector<AttentionOption> options = AttentionTableOptions();
  for (const AttentionServer server : {kOnSm90, kOnGpu, kOnCpu}) {
    std::set<std::tuple<size_t, int32_t, size_t, int32_t>> seen;
    for (const AttentionTableRow& row : Table()) {
      if ((row.servers & server) == 0) continue;
      ASSERT_EQ(row.values.size(), options.size());
      for (size_t a = 0; a < options.size(); ++a) {
        EXPECT_NE(options[a].servers[row.values[a]] & server, 0) << row.name;
        for (size_t b = a + 1; b < options.size(); ++b) {
          seen.insert({a, row.values[a], b, row.values[b]});
        }
      }
    }
    for (size_t a = 0; a < options.size(); ++a) {
      for (size_t b = a + 1; b < options.size(); ++b) {
        for (size_t x = 0; x < options[a].servers.size(); ++x) {
          for (size_t y = 0; y < options[b].servers.size(); ++y) {
            if ((options[a].servers[x] & options[b].servers[y] & server) == 0) continue;
            EXPECT_TRUE(seen.contains({a, static_cast<int32_t>(x), b, static_cast<int32_t>(y)}))
                << options[a].name << " " << x << ", " << options[b].name << " " << y << ", server "
                << server;
          }
        }
      }
    }
  }
}

// The same claim about what the problems are, whatever the generator thinks that it has set.
TEST(AttentionTable, ItsProblemsHaveTheValuesThatTheIssueNames) {
  std::set<std::tuple<int32_t, int32_t, int32_t>> shapes;  // head_dim with group; with block_size
  std::set<std::tuple<bool, int32_t, int32_t, int32_t>> masks;
  std::set<std::tuple<bool, bool, bool, DType>> extras;
  for (const AttentionTableRow& row : Table()) {
    const AttentionCase& spec = row.spec;
    ASSERT_EQ(spec.q_lens.size(), spec.kv_lens.size()) << row.name;
    ASSERT_EQ(spec.num_q_heads % spec.num_kv_heads, 0) << row.name;
    if ((row.servers & kOnGpu) == 0) continue;
    shapes.insert({spec.head_dim, spec.num_q_heads / spec.num_kv_heads, 0});
    shapes.insert({spec.head_dim, 0, spec.block_size});
    masks.insert({spec.causal, spec.window_left, spec.window_right, spec.head_dim});
    extras.insert({spec.softcap > 0.0f, spec.sinks, spec.alibi, spec.q_dtype});
  }
  for (const int32_t head_dim : {64, 80, 96, 128, 192, 256}) {
    for (const int32_t group : {1, 2, 3, 4, 5, 7, 8, 16, 32}) {
      EXPECT_TRUE(shapes.contains({head_dim, group, 0})) << head_dim << " " << group;
    }
    for (const int32_t block : {16, 32, 48, 64, 128, 240, 256}) {
      EXPECT_TRUE(shapes.contains({head_dim, 0, block})) << head_dim << " " << block;
    }
    for (const auto& [causal, left, right] :
         {std::tuple{true, -1, -1}, {false, -1, -1}, {true, 70, -1}, {false, 66, 130}}) {
      EXPECT_TRUE(masks.contains({causal, left, right, head_dim})) << left << " " << right;
    }
  }
  EXPECT_EQ(extras.size(), 16u);
}

TEST(AttentionTable, IsTheSameEveryTimeAndNamesEachRow) {
  const std::vector<AttentionTableRow> again = MakeAttentionTable();
  ASSERT_EQ(again.size(), Table().size());
  std::set<std::string> names;
  for (size_t i = 0; i < again.size(); ++i) {
    EXPECT_EQ(again[i].name, Table()[i].name);
    EXPECT_EQ(again[i].values, Table()[i].values);
    EXPECT_EQ(again[i].spec.q_lens, Table()[i].spec.q_lens);
    EXPECT_EQ(again[i].spec.block_order_seed, Table()[i].spec.block_order_seed);
    names.insert(again[i].name);
    for (const char c : again[i].name) EXPECT_TRUE(std::isalnum(c) || c == '_') << again[i].name;
  }
  EXPECT_GE(names.size(), again.size() * 99 / 100);
}

TEST(AttentionTable, HasAtLeast600RowsForGpusAndAsManyForTheCpu) {
  EXPECT_GE(NumServedBy(kOnGpu), 600);
  EXPECT_GE(NumServedBy(kOnCpu), 600);
  EXPECT_GE(NumServedBy(kOnSm90), 200);
  for (const AttentionTableRow& row : Table()) EXPECT_NE(row.servers, 0) << row.name;
}

// What attn_choice makes of the table, without a GPU.
TEST(AttentionTable, EveryRowForGpusFindsAKernelAndTheOthersAreRefusedWithTheReason) {
  std::map<std::string, int> counts;
  for (const AttentionTableRow& row : Table()) {
    PagedAttention problem(row.spec);
    longspan_attn_call call = AttnCallOf(problem, row.keys);
    call.family = AttnFamilyOf(row.family);
    AttnChoice choice;
    const int status = ChooseAttn(call, 90, &choice);
    const bool scales_of_blocks = DTypeBytes(row.spec.kv_dtype) == 1 &&
                                  row.spec.scaling == KvScaling::kBlockAndHead &&
                                  row.keys != AttentionTableKeys::kBlocks;
    if ((row.servers & kOnGpu) != 0) {
      ASSERT_EQ(status, scales_of_blocks ? LONGSPAN_ATTN_SCALES : LONGSPAN_ATTN_OK)
          << row.name << ": " << choice.reason;
    }
    if (status == LONGSPAN_ATTN_OK) {
      const AttnLengths lengths(problem, row.keys);
      EXPECT_EQ(CheckAttnLengths(call, lengths.lengths()), LONGSPAN_ATTN_OK) << row.name;
      const char* family = choice.family == AttnFamily::kDecode ? "decode" : "prefill";
      ++counts[family + std::to_string(choice.line)];
    } else {
      EXPECT_TRUE(status == LONGSPAN_ATTN_DTYPE || status == LONGSPAN_ATTN_BLOCK_SIZE ||
                  (status == LONGSPAN_ATTN_SCALES && scales_of_blocks))
          << row.name << ": " << choice.reason;
    }
    call.line = LONGSPAN_ATTN_SM80;
    EXPECT_EQ(ChooseAttn(call, 90, &choice), status) << row.name << ": " << choice.reason;
  }
  for (const auto& [name, count] : counts) RecordProperty(name, count);
  EXPECT_GE(counts["decode90"], 60);
  EXPECT_GE(counts["prefill90"], 60);
  EXPECT_GE(counts["decode80"], 150);
  EXPECT_GE(counts["prefill80"], 150);
}

// In parts, so that they can run side by side.
class AttentionTableOnCpu : public testing::TestWithParam<size_t> {};
constexpr size_t kNumParts = 4;

// The error of a weight grows with the size of its score: up to 4 standard deviations of noise.
double Tolerance(DType dtype) {
  if (dtype == DType::kFloat16) return 6e-4;
  return dtype == DType::kBFloat16 ? 4.5e-3 : 5e-5;
}

TEST_P(AttentionTableOnCpu, EveryRowAgreesWithTheOracle) {
  ThreadPool pool(2);
  const std::vector<CpuAttentionIsa> isas = SupportedAttentionIsas();
  int num_run = 0, num_refused = 0;
  for (size_t i = GetParam(); i < Table().size(); i += kNumParts) {
    const AttentionTableRow& row = Table()[i];
    PagedAttention problem(row.spec);
    const bool refused = CheckCpuAttention(problem.params()) != KernelStatus::kOk;
    EXPECT_EQ(refused, (row.servers & kOnCpu) == 0) << row.name;
    if (refused) {
      ++num_refused;
      continue;
    }
    const OracleOutput oracle = AttentionOracle(problem.params());
    for (const CpuAttentionIsa isa : isas) {
      problem.ResetOutput();
      ASSERT_TRUE(problem.Run(pool, {.num_splits = static_cast<int>(i % 3), .isa = isa}));
      ASSERT_EQ(CompareWithOracle(problem.params(), oracle, Tolerance(row.spec.q_dtype), 2e-5), "")
          << AttentionIsaName(isa) << ", row " << i << ": " << row.name;
    }
    ++num_run;
  }
  RecordProperty("rows_run", num_run);
  RecordProperty("rows_refused", num_refused);
  EXPECT_GE(num_run, 140);  // rows are not dealt out evenly
}

INSTANTIATE_TEST_SUITE_P(Part, AttentionTableOnCpu, testing::Range<size_t>(0, kNumParts));

}  // namespace
}  // namespace longspan
