// Drives the pieces and folds events into outcomes, checking their order.
#include "tests/scheduler/scheduler_harness.h"

#include "core/check.h"

namespace longspan {

std::vector<TokenId> Prompt(int32_t length, int32_t first) {
  std::vector<TokenId> prompt;
  for (int32_t i = 0; i < length; ++i) prompt.push_back(TokenId{(first + i) % 512});
  return prompt;
}

SequenceParams Request(std::vector<TokenId> prompt, int32_t max_tokens) {
  SequenceParams params;
  params.prompt = std::move(prompt);
  params.max_tokens = max_tokens;
  params.sampling.temperature = 0.0f;
  params.ignore_eos = true;
  return params;
}

SchedulerHarness::SchedulerHarness(const HarnessConfig& config)
    : model(config.kv.num_blocks, config.kv.block_size, config.vocab_size),
      kv(config.kv),
      scheduler(config.scheduler, kv),
      config_(config) {
  kv.set_freed_listener([this](BlockId block) { model.Poison(block); });
}

SeqId SchedulerHarness::Submit(SequenceParams params) {
  const SeqId first{next_id_};
  std::vector<SeqId> ids;
  for (int32_t i = 0; i < params.n; ++i) {
    const SeqId id{next_id_++};
    ids.push_back(id);
    model.Register(id, params, i);
    outcomes_[id];
    submitted_[id] = {params, i};
  }
  scheduler.Add(ids, std::move(params), now_);
  return first;
}

bool SchedulerHarness::Step() {
  now_ += std::chrono::milliseconds(1);
  return StepAgain();
}

bool SchedulerHarness::StepAgain() {
  outputs_.emplace_back();
  scheduler.Schedule(now_, outputs_.back());
  TakeEvents();
  const bool scheduled = !outputs_.back().empty();
  if (scheduled) {
    ++num_steps_;
    CHECK(static_cast<int32_t>(outputs_.back().scheduled.size()) <= config_.scheduler.max_num_seqs);
    int64_t tokens = 0;
    for (const ScheduledSequence& entry : outputs_.back().scheduled) {
      tokens += entry.num_scheduled_tokens;
    }
    CHECK(tokens <= config_.scheduler.max_num_batched_tokens, "{} tokens", tokens);
    model.Launch(outputs_.back());
    ++num_in_flight_;
  } else {
    outputs_.pop_back();
  }
  if (num_in_flight_ == config_.scheduler.max_steps_in_flight ||
      (!scheduled && num_in_flight_ > 0)) {
    Collect();
  }
  if (config_.check_invariants) scheduler.CheckInvariants();
  return scheduled;
}

void SchedulerHarness::Collect() {
  const SchedulerOutput& output = outputs_[outputs_.size() - static_cast<size_t>(num_in_flight_)];
  StepResult result = model.Collect();
  scheduler.Update(output, result, now_);
  --num_in_flight_;
  while (static_cast<int32_t>(outputs_.size()) > num_in_flight_ + 1) outputs_.pop_front();
  TakeEvents();
}

void SchedulerHarness::Drain() {
  while (num_in_flight_ > 0) Collect();
}

void SchedulerHarness::RunUntilIdle(int max_steps) {
  for (int i = 0; i < max_steps; ++i) {
    const bool in_flight = num_in_flight_ > 0;
    if (!Step() && !in_flight) return;
    if (scheduler.idle() && num_in_flight_ == 0) return;
  }
  CHECK(false, "not idle after {} steps", max_steps);
}

void SchedulerHarness::TakeEvents() {
  std::vector<SequenceEvent> events;
  scheduler.TakeEvents(events);
  for (SequenceEvent& event : events) {
    SequenceOutcome& outcome = outcomes_.at(event.id);
    CHECK(!outcome.finished, "event after the end of {}", ToInt(event.id));
    CHECK(event.index == submitted_.at(event.id).second);
    switch (event.kind) {
      case SequenceEvent::Kind::kStarted:
        CHECK(!outcome.started);
        outcome.started = true;
        outcome.num_cached_tokens = event.num_cached_tokens;
        outcome.started_step = num_steps_;
        break;
      case SequenceEvent::Kind::kTokens:
        CHECK(outcome.started);
        outcome.tokens.push_back(event.token);
        for (Logprobs& entry : event.logprobs) outcome.logprobs.push_back(std::move(entry));
        break;
      case SequenceEvent::Kind::kPromptLogprobs:
        CHECK(outcome.started && outcome.tokens.empty());
        for (size_t i = 0; i < event.logprobs.size(); ++i) {
          const int32_t position = event.prompt_position + static_cast<int32_t>(i);
          const bool is_new =
              outcome.prompt_logprobs.emplace(position, std::move(event.logprobs[i])).second;
          CHECK(is_new, "position {} twice", position);
        }
        break;
      case SequenceEvent::Kind::kFinished:
        outcome.finished = true;
        outcome.reason = event.reason;
        outcome.stop_token = event.stop_token;
        outcome.num_completion_tokens = event.num_completion_tokens;
        outcome.num_preemptions = event.num_preemptions;
        outcome.finished_step = num_steps_;
        break;
    }
  }
}

std::vector<TokenId> SchedulerHarness::ExpectedTokens(SeqId id) const {
  const auto& [params, index] = submitted_.at(id);
  const auto pool = MaxFittingTokens(config_.kv.num_blocks, config_.kv.block_size);
  const auto limit = std::min<int64_t>(config_.scheduler.max_model_len, pool);
  return ScriptedModel::Expected(params, index, config_.vocab_size, static_cast<int32_t>(limit));
}

}  // namespace longspan
