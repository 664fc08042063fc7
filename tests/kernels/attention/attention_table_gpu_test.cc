// The table of attention problems on a GPU: each row through the kernel that the dispatch picks for
// the card and through the sm_80 line, decode also on a small grid. A row for GPUs that no kernel
// serves is a failure; others are counted and said.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <future>
#include <map>
#include <memory>
#include <thread>

#include "kernels/attention/dropin/attn_choice.h"
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

  // Counts a run. False when the rest of the table is not worth running.
  bool Expect(const std::string& wrong, const AttentionTableRow& row, const std::string& kernel) {
    ++counts_[kernel];
    if (wrong.empty()) return true;
    ADD_FAILURE() << kernel << ", " << row.name << ": " << wrong;
    // After an error of the device nothing answers.
    return ++num_failures_ < kMaxFailures && wrong.find("device error") == std::string::npos;
  }

  // Through the C functions; *line: what served the row, 0 when nothing did.
  bool RunCall(Preparation::Made& made, const AttentionTableRow& row, int32_t asked,
               int32_t* line) {
    AttnGpuProblem device(*made.problem, {AttnFamilyOf(row.family), asked, row.keys});
    *line = device.status() == LONGSPAN_ATTN_OK ? device.choice().line : 0;
    if (*line == 0) {
      ++counts_["refused by the dispatch: " + device.reason()];
      return true;
    }
    const char* family = device.choice().family == LONGSPAN_ATTN_DECODE ? "decode" : "prefill";
    std::string wrong = device.Run();
    if (wrong.empty()) wrong = AgainstOracle(*made.problem, made.oracle);
    return Expect(wrong, row, std::string(family) + "_sm" + std::to_string(*line));
  }

  // Through the launchers: decode on a grid that cuts even short problems; prefill only where the
  // C functions do not know the row's types.
  bool RunLaunchers(Preparation::Made& made, const AttentionTableRow& row, bool refused,
                    bool* on_sm80) {
    PagedAttention& problem = *made.problem;
    const int32_t group = row.spec.num_q_heads / row.spec.num_kv_heads;
    const int32_t most = *std::max_element(row.spec.q_lens.begin(), row.spec.q_lens.end());
    const bool by_shape = row.family == AttentionTableFamily::kByShape;
    const bool decode = row.spec.tree != TreeMask::kNone ||
                        row.family == AttentionTableFamily::kDecode ||
                        (by_shape && most * group <= AttnTuningRow().decode_rows);
    if (!decode && !refused) return true;
    if (decode) {
      problem.ResetOutput();
      GpuDecodeProblem device(problem, {.num_ctas = row.num_ctas});
      if (device.status() == KernelStatus::kOk && DecodeNeedsKvMaps(device.setup())) {
        std::string wrong = device.Run() ? "" : "a device error or a changed guard word (stderr)";
        if (wrong.empty()) wrong = AgainstOracle(problem, made.oracle);
        if (!Expect(wrong, row, "launcher_decode_sm90")) return false;
      }
    }
    problem.ResetOutput();
    Sm80GpuProblem device(problem, decode, row.num_ctas);
    if (device.status() != KernelStatus::kOk) return true;
    *on_sm80 = true;
    std::string wrong = device.Run();
    if (wrong.empty()) wrong = AgainstOracle(problem, made.oracle);
    return Expect(wrong, row, decode ? "launcher_decode_sm80" : "launcher_prefill_sm80");
  }

  bool RunRow(Preparation::Made& made, const AttentionTableRow& row) {
    int32_t line = 0, forced = 0;
    if (!RunCall(made, row, 0, &line)) return false;
    if (line == 90 && !RunCall(made, row, LONGSPAN_ATTN_SM80, &forced)) return false;
    bool on_sm80 = line == 80 || forced == 80;
    if (!RunLaunchers(made, row, line == 0, &on_sm80)) return false;
    if (on_sm80) return true;
    ++counts_["rows that no kernel here serves"];
    // That is an answer for what GPUs need not serve.
    return (row.servers & kOnGpu) == 0 || Expect("no kernel serves it", row, "unserved");
  }

  std::map<std::string, int> counts_;  // runs by kernel, refusals by reason
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
    num_for_gpus += (table[i].servers & kOnGpu) != 0 ? 1 : 0;
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
  if (longspan_attn_compute_capability(AttnTestDevice()) == 90) {
    EXPECT_GE(counts_["decode_sm90"], 60);
    EXPECT_GE(counts_["prefill_sm90"], 60);
  }
}

}  // namespace
}  // namespace longspan
