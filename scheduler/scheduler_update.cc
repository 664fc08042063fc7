// What a step's result changes: tokens appended, full blocks published, sequences ended. Finish is
// the one function that ends a sequence, whatever the reason.
#include <algorithm>
#include <utility>

#include "core/check.h"
#include "scheduler/scheduler.h"

namespace longspan {

void Scheduler::Update(const SchedulerOutput& output, StepResult& result, TimePoint now) {
  CHECK(!in_flight_.empty() && in_flight_.front().step == output.step && result.step == output.step,
        "step {} result {}", ToInt(output.step), ToInt(result.step));
  CHECK(result.num_tokens.size() == output.scheduled.size(), "{} results of {}",
        result.num_tokens.size(), output.scheduled.size());
  const StepInFlight step = std::move(in_flight_.front());  // its blocks are given back on return
  in_flight_.pop_front();
  size_t token = 0;
  size_t logprob = 0;
  size_t prompt_logprob = 0;
  for (size_t i = 0; i < output.scheduled.size(); ++i) {
    const ScheduledSequence& entry = output.scheduled[i];
    const auto num_samples = static_cast<size_t>(result.num_tokens[i]);
    const auto num_entries =
        static_cast<size_t>(result.num_prompt_logprobs.empty() ? 0 : result.num_prompt_logprobs[i]);
    CHECK(
        num_samples <= (entry.samples ? 1U : 0U) && token + num_samples <= result.token_ids.size(),
        "{} samples", num_samples);
    Sequence* sequence = Find(entry.id);  // null: ended meanwhile
    if (sequence != nullptr) {
      const bool finite = std::find(result.nonfinite.begin(), result.nonfinite.end(), entry.id) ==
                          result.nonfinite.end();
      CHECK(num_samples == (entry.samples ? 1U : 0U) || !finite, "{} samples", num_samples);
      if (CollectSequence(*sequence, entry, finite)) {
        CollectPromptLogprobs(
            *sequence, entry,
            std::span(result.prompt_logprobs).subspan(prompt_logprob, num_entries));
        if (num_samples > 0) {
          CollectSample(*sequence, result.token_ids[token],
                        step.logprobs[i] ? &result.logprobs[logprob] : nullptr);
        } else if (sequence->group->max_total_tokens == sequence->num_prompt_tokens() &&
                   sequence->has_prompt_collected()) {
          Finish(*sequence, FinishReason::kLength);
        }
      }
    }
    token += num_samples;
    if (step.logprobs[i]) logprob += num_samples;
    prompt_logprob += num_entries;
  }
  Expire(now);
}

bool Scheduler::CollectSequence(Sequence& sequence, const ScheduledSequence& entry, bool finite) {
  sequence.num_pending_samples -= entry.samples;
  if (!finite) {
    Finish(sequence, FinishReason::kNonFinite);
    return false;
  }
  if (sequence.running()) {  // else preempted meanwhile: the sample counts, the blocks are gone
    sequence.num_collected = entry.num_computed_tokens + entry.num_scheduled_tokens;
    kv_cache_.Publish(sequence.table, sequence.tokens(), sequence.num_collected);
  }
  return true;
}

void Scheduler::CollectPromptLogprobs(Sequence& sequence, const ScheduledSequence& entry,
                                      std::span<Logprobs> entries) {
  if (entries.empty()) return;
  // The entries belong to the last scheduled tokens. After a preemption some were told before.
  const int32_t end = entry.num_computed_tokens + entry.num_scheduled_tokens;
  const int32_t begin = end - static_cast<int32_t>(entries.size());
  const int32_t first = std::max({begin, sequence.num_prompt_logprobs_told, 1});
  CHECK(begin <= first, "entries from {}, told up to {}", begin, first);
  if (first >= end || end > sequence.num_prompt_tokens()) return;
  SequenceEvent event;
  event.kind = SequenceEvent::Kind::kPromptLogprobs;
  event.id = sequence.id;
  event.index = sequence.index;
  event.prompt_position = first;
  event.logprobs.assign(std::make_move_iterator(entries.begin() + (first - begin)),
                        std::make_move_iterator(entries.end()));
  events_.push_back(std::move(event));
  sequence.num_prompt_logprobs_told = end;
}

void Scheduler::CollectSample(Sequence& sequence, TokenId token, Logprobs* logprobs) {
  sequence.generated.push_back(token);
  SequenceEvent event;
  event.kind = SequenceEvent::Kind::kTokens;
  event.id = sequence.id;
  event.index = sequence.index;
  event.token = token;
  event.num_preemptions = sequence.num_preemptions;
  if (logprobs != nullptr) event.logprobs.push_back(std::move(*logprobs));
  events_.push_back(std::move(event));

  const SamplingParams& sampling = sequence.group->params.sampling;
  const auto num_generated = static_cast<int32_t>(sequence.generated.size());
  const bool is_stop =
      num_generated > sampling.min_tokens &&
      std::binary_search(sampling.stop_token_ids.begin(), sampling.stop_token_ids.end(), token);
  if (is_stop) {
    Finish(sequence, FinishReason::kStop, token);
  } else if (sequence.num_prompt_tokens() + num_generated >= sequence.group->max_total_tokens) {
    Finish(sequence, FinishReason::kLength);
  }
}

bool Scheduler::InFlight(const Sequence& sequence) const {
  return !in_flight_.empty() && sequence.last_step >= in_flight_.front().step;
}

void Scheduler::Finish(Sequence& sequence, FinishReason reason, TokenId stop_token) {
  CHECK(!sequence.finished, "sequence {}", ToInt(sequence.id));
  sequence.finished = true;
  SequenceEvent event;
  event.kind = SequenceEvent::Kind::kFinished;
  event.id = sequence.id;
  event.index = sequence.index;
  event.num_prompt_tokens = sequence.num_prompt_tokens();
  event.num_cached_tokens = sequence.num_cached_tokens;
  event.reason = reason;
  event.stop_token = stop_token;
  event.num_completion_tokens = static_cast<int32_t>(sequence.generated.size());
  event.num_preemptions = sequence.num_preemptions;
  event.num_kv_tokens_read = sequence.num_kv_tokens_read;
  events_.push_back(std::move(event));

  SequenceGroup& group = *sequence.group;
  if (sequence.queued) waiting_.Erase(sequence);
  if (sequence.paused) slow_readers_.erase({sequence.paused_until, sequence.id});
  if (sequence.running()) {
    GiveBackBlocks(sequence, reason);
    ReleaseSlot(sequence);
  }
  sequence.reservation.Release();
  sequences_.erase(sequence.id);
  if (--group.num_alive > 0) {
    const auto num_to_come =
        std::count_if(group.sequences.begin(), group.sequences.end(),
                      [](const Sequence& s) { return !s.finished && !s.admitted_before; });
    const auto wanted = static_cast<int32_t>(num_to_come) * BlocksToReserve(group);
    const int32_t excess = group.reservation.count() - wanted;
    if (excess > 0) group.reservation.Split(excess).Release();
    return;
  }
  const SeqId group_id = group.sequences.front().id;
  if (group.params.deadline) deadlines_.erase({*group.params.deadline, group_id});
  std::erase(held_prompts_, &group);
  std::erase(reserved_groups_, &group);
  groups_.erase(group_id);  // ends the sequence's life too
}

void Scheduler::GiveBackBlocks(Sequence& sequence, FinishReason reason) {
  SequenceGroup& group = *sequence.group;
  const bool in_flight = InFlight(sequence);
  if (reason == FinishReason::kNonFinite) {
    kv_cache_.Unpublish(sequence.table);
  } else if (sequence.has_prompt_collected() && !group.prompt_blocks) {
    // Siblings that still have to fork need the prompt's blocks from somebody.
    bool wanted = false;
    for (const Sequence& sibling : group.sequences) {
      if (sibling.finished || &sibling == &sequence) continue;
      if (sibling.has_prompt_collected()) {
        wanted = false;
        break;
      }
      wanted |= !sibling.admitted_before;
    }
    if (wanted) {
      if (!in_flight) kv_cache_.Truncate(sequence.table, sequence.num_prompt_tokens());
      group.prompt_blocks = std::move(sequence.table);
      held_prompts_.push_back(&group);
    }
  }
  if (in_flight) {
    in_flight_.back().retired.push_back(std::move(sequence.table));
  } else {
    sequence.table.Clear();
  }
}

void Scheduler::ReleaseSlot(Sequence& sequence) {
  if (sequence.admission_told) released_slots_.push_back(sequence.slot);
  free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
  sequence.admission_told = false;
  sequence.num_blocks_told = 0;
  sequence.planned_tokens = 0;
  sequence.num_computed = 0;
  sequence.num_collected = 0;
  sequence.copy.reset();
  sequence.copy_source.reset();
  std::erase(running_, &sequence);
}

}  // namespace longspan
