// A ModelRunner without arithmetic: the token after t is t + 1 (modulo the vocabulary). It checks
// what the seam promises (slots, new blocks, token spans) and can be made to fail. For tests of the
// engine and above.
#pragma once

#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/check.h"
#include "model/model_runner.h"

namespace longspan {

class FakeRunner final : public ModelRunner {
 public:
  explicit FakeRunner(int32_t vocab_size = 512) : vocab_size_(vocab_size) {}

  // Called in Launch with the step, before anything else.
  std::function<void(const SchedulerOutput&)> on_launch;
  // Collect fails at this step (1 is the first); 0: never.
  int64_t fail_at_step = 0;
  // Logits of a sequence whose next token would be one of these are not finite.
  std::unordered_set<int32_t> nonfinite_tokens;

  void Launch(const SchedulerOutput& output) override {
    CHECK(!launched_);
    launched_ = true;
    ++num_steps_;
    if (on_launch) on_launch(output);
    for (const int32_t slot : output.released_slots)
      CHECK(slots_.erase(slot) == 1, "slot {}", slot);
    for (const AdmittedSequence& admitted : output.admitted) {
      CHECK(slots_.count(admitted.slot) == 0, "slot {} is taken", admitted.slot);
      slots_[admitted.slot] = Slot{admitted.sampling, kInvalidToken};
    }
    result_.Clear();
    result_.step = output.step;
    size_t next_id = 0;
    for (const ScheduledSequence& scheduled : output.scheduled)
      RunSequence(output, scheduled, next_id);
  }

  Status Collect(StepResult& result) override {
    CHECK(launched_);
    launched_ = false;
    if (num_steps_ == fail_at_step)
      return MakeStatus(absl::StatusCode::kInternal, "injected fault");
    result = result_;
    return Status();
  }

  int64_t num_steps() const { return num_steps_; }

 private:
  struct Slot {
    SamplingParams sampling;
    TokenId last_sample = kInvalidToken;
  };

  void RunSequence(const SchedulerOutput& output, const ScheduledSequence& scheduled,
                   size_t& next_id) {
    const auto it = slots_.find(scheduled.slot);
    CHECK(it != slots_.end(), "slot {} was never admitted", scheduled.slot);
    TokenId last = it->second.last_sample;
    for (int32_t i = 0; i < scheduled.num_token_ids; ++i) last = output.token_ids[next_id++];
    if (!scheduled.samples) {
      result_.num_tokens.push_back(0);
      return;
    }
    const TokenId next{(ToInt(last) + 1) % vocab_size_};
    if (nonfinite_tokens.count(ToInt(next)) > 0) {
      result_.num_tokens.push_back(0);
      result_.nonfinite.push_back(scheduled.id);
      return;
    }
    it->second.last_sample = next;
    result_.num_tokens.push_back(1);
    result_.token_ids.push_back(next);
    if (it->second.sampling.num_logprobs >= 0) result_.logprobs.push_back({next, 0.0f, {}, {}});
  }

  const int32_t vocab_size_;
  bool launched_ = false;
  int64_t num_steps_ = 0;
  std::unordered_map<int32_t, Slot> slots_;
  StepResult result_;
};

}  // namespace longspan
