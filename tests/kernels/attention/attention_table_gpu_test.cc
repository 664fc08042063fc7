// The table of attention problems on a GPU: each row through the kernel that the dispatch picks for
// the card and through the sm_80 line, decode also on a small grid; what no kernel serves is
// counted and said.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <future>
#include <map>
#include <memory>
#include <thread>

#include "tests/kernels/attention/attn_gpu_problem.h"
#include "tests/kernels/attention/gpu_decode_problem.h"
#include "tests/kernels/attention/sm80_gpu_problem.h"
#include "tests/support/attention_table.h"

namespace longspan {
namespace {

// Problems and oracles, made ahead by other threads in the table's order.
class Preparation {
 public:
  struct Made {
    std::unique_ptr<PagedAttention> problem;
    OracleOutput oracle;
  };

  explicit Preparation(const std::vector<AttentionTableRow>& table)
      : table_(table), made_(table.size()) {
    const unsigned num_threads = std::clamp(std::thread::hardware_concurrency(), 1u, 32u);
    for (unsigned i = 0; i < num_threads; ++i) {
      threads_.emplace_back([this] {
        for (size_t at; (at = next_++) < table_.size();) made_[at].set_value(Make(at));
      });
    }
  }
  ~Preparation() {
    next_ = table_.size();
    for (std::thread& thread : threads_) thread.join();
  }
  Made Take(size_t index) { return made_[index].get_future().get(); }

 private:
  Made Make(size_t index) const {
    Made made;
    made.problem = std::make_unique<PagedAttention>(table_[index].spec);
    made.oracle = AttentionOracle(made.problem->params());
    return made;
  }

  const std::vector<AttentionTableRow>& table_;
  std::vector<std::promise<Made>> made_;
  std::atomic<size_t> next_{0};
  std::vector<std::thread> threads_;
};

class AttentionTableOnGpu : public testing::Test {
 protected:
  static constexpr int kMaxFailures = 10;

  void SetUp() override {
    if (const std::string reason = NoSm80Device(); !reason.empty()) GTEST_SKIP() << reason;
  }

  // False when the rest of the table is not worth running.
  bool Expect(const std::string& wrong, const AttentionTableRow& row, const std::string& kernel) {
    ++counts_[kernel];
    if (wrong.empty()) return true;
    ADD_FAILURE() << kernel << ", " << row.name << ": " << wrong;
    // After an error of the device nothing answers.
    return ++num_failures_ < kMaxFailures && wrong.find("device error") == std::string::npos;
  }

  // Through the C functions. False as above. choice->line: what served it, 0 when nothing did.
  bool RunCall(Preparation::Made& made, const AttentionTableRow& row, int32_t line,
               longspan_attn_choice* choice) {
    AttnGpuProblem device(*made.problem, {AttnFamilyOf(row.family), line, row.keys});
    *choice = device.choice();
    if (device.status() != LONGSPAN_ATTN_OK) {
      ++counts_["skipped: " + device.reason()];
      choice->line = 0;
      return row.reach > AttentionReach::kGpu || Expect(device.reason(), row, "refused");
    }
    const char* family = choice->family == LONGSPAN_ATTN_DECODE ? "decode" : "prefill";
    std::string wrong = device.Run();
    if (wrong.empty()) wrong = AgainstOracle(*made.problem, made.oracle);
    return Expect(wrong, row, std::string(family) + "_sm" + std::to_string(choice->line));
  }

  // Decode through its launcher, on a grid that cuts even short problems.
  bool RunSmallGrid(Preparation::Made& made, const AttentionTableRow& row, int32_t line) {
    PagedAttention& problem = *made.problem;
    problem.ResetOutput();
    std::string wrong;
    if (line == 80) {
      Sm80GpuProblem device(problem, true, row.num_ctas);
      wrong = device.Run();
    } else {
      GpuDecodeProblem device(problem, {.num_ctas = row.num_ctas});
      if (!device.Run()) wrong = "a device error or a changed guard word (stderr says which)";
    }
    if (wrong.empty()) wrong = AgainstOracle(problem, made.oracle);
    return Expect(wrong, row, "small_grid_decode_sm" + std::to_string(line));
  }

  bool RunRow(Preparation::Made& made, const AttentionTableRow& row) {
    longspan_attn_choice choice, other;
    if (!RunCall(made, row, 0, &choice)) return false;
    if (choice.line == 0) return true;
    if (choice.line != 80 && !RunCall(made, row, LONGSPAN_ATTN_SM80, &other)) return false;
    // The launchers take blocks of 16 tokens and more alone, and masks as they are named.
    const bool direct = choice.family == LONGSPAN_ATTN_DECODE &&
                        row.keys == AttentionTableKeys::kBlocks && row.spec.block_size % 16 == 0;
    if (!direct) return true;
    const bool sm90 = choice.line == 90 && (row.spec.causal || row.spec.window_right == -1);
    return (!sm90 || RunSmallGrid(made, row, 90)) && RunSmallGrid(made, row, 80);
  }

  std::map<std::string, int> counts_;  // runs by kernel, skipped rows by reason
  int num_failures_ = 0;
};

TEST_F(AttentionTableOnGpu, EveryRowAgreesWithTheOracleOnEveryLineThatServesIt) {
  const std::vector<AttentionTableRow> table = MakeAttentionTable();
  Preparation preparation(table);
  int num_run = 0, num_for_gpus = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    Preparation::Made made = preparation.Take(i);
    if (!RunRow(made, table[i])) break;
    ++num_run;
    num_for_gpus += table[i].reach <= AttentionReach::kGpu ? 1 : 0;
  }
  for (const auto& [what, count] : counts_) {
    std::printf("%6d %s\n", count, what.c_str());
    std::string key = what;
    std::replace_if(
        key.begin(), key.end(), [](char c) { return !std::isalnum(c); }, '_');
    RecordProperty(key, count);
  }
  RecordProperty("rows", num_run);
  RecordProperty("rows_for_gpus", num_for_gpus);
  EXPECT_EQ(num_run, static_cast<int>(table.size()));
  EXPECT_GE(num_for_gpus, kAttentionTableGpuRows);
  // Each of those runs on the sm_80 line, whatever the dispatch picked.
  EXPECT_GE(counts_["decode_sm80"] + counts_["prefill_sm80"], num_for_gpus);
  if (longspan_attn_compute_capability(AttnTestDevice()) == 90) {
    EXPECT_GE(counts_["decode_sm90"], 60);
    EXPECT_GE(counts_["prefill_sm90"], 60);
  }
}

}  // namespace
}  // namespace longspan
