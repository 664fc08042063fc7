// The outside of the scheduler, and how a step is put together: expire, admit, plan prefills and
// decodes under the token budget, then write what was planned into the output.
#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace longspan {

namespace {

// EOS ends a sequence like any stop token, unless ignored; one list serves sampler and scheduler.
void ResolveStopTokens(SequenceParams& params) {
  std::vector<TokenId>& ids = params.sampling.stop_token_ids;
  ids = params.stop_token_ids;
  if (!params.ignore_eos) {
    ids.insert(ids.end(), params.eos_token_ids.begin(), params.eos_token_ids.end());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config, KvCacheManager& kv_cache)
    : config_(config), kv_cache_(kv_cache), waiting_(config.ageing_period) {
  CHECK(config.max_num_seqs > 0 && config.max_num_batched_tokens > 0 &&
            config.max_prefill_chunk > 0 && config.min_prefill_tokens > 0,
        "seqs {} tokens {} chunk {} minimum {}", config.max_num_seqs, config.max_num_batched_tokens,
        config.max_prefill_chunk, config.min_prefill_tokens);
  CHECK(config.max_model_len > 0 && config.max_preemptions > 0, "max_model_len {} preemptions {}",
        config.max_model_len, config.max_preemptions);
  CHECK(config.max_steps_in_flight == 1 || config.max_steps_in_flight == 2,
        "max_steps_in_flight {}", config.max_steps_in_flight);
  running_.reserve(static_cast<size_t>(config.max_num_seqs));
  for (int32_t slot = config.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

Sequence* Scheduler::Find(SeqId id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : found->second;
}

void Scheduler::Add(std::span<const SeqId> ids, SequenceParams params, TimePoint now) {
  const auto num_prompt = static_cast<int32_t>(params.prompt.size());
  const int64_t pool_tokens = MaxFittingTokens(kv_cache_.num_blocks(), kv_cache_.block_size());
  const int64_t limit = std::min<int64_t>(config_.max_model_len, pool_tokens);
  CHECK(!ids.empty() && static_cast<int32_t>(ids.size()) == params.n, "{} ids", ids.size());
  CHECK(num_prompt > 0 && num_prompt <= limit && params.max_tokens >= 0, "prompt {} of {}",
        num_prompt, limit);
  auto group = std::make_unique<SequenceGroup>();
  ResolveStopTokens(params);
  group->params = std::move(params);
  const SequenceParams& its = group->params;
  group->max_total_tokens =
      static_cast<int32_t>(std::min<int64_t>(int64_t{num_prompt} + its.max_tokens, limit));
  group->root = kv_cache_.Root(AdapterId{}, its.cache_salt);
  group->root.closed |= !its.use_prefix_cache;
  group->sequences.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    Sequence& sequence = group->sequences.emplace_back(*group, ids[i], kv_cache_.NewTable());
    sequence.index = static_cast<int32_t>(i);
    sequence.order = next_order_++;
    const bool is_new = sequences_.emplace(sequence.id, &sequence).second;
    CHECK(is_new, "sequence {}", ToInt(sequence.id));
    waiting_.Insert(sequence, now);
  }
  group->num_alive = its.n;
  if (its.deadline) deadlines_.emplace(*its.deadline, ids[0]);
  groups_.emplace(ids[0], std::move(group));
}

bool Scheduler::Abort(SeqId id, FinishReason reason) {
  Sequence* sequence = Find(id);
  if (sequence == nullptr) return false;
  Finish(*sequence, reason);
  return true;
}

bool Scheduler::Stop(SeqId id, int32_t num_tokens_kept) {
  Sequence* sequence = Find(id);
  if (sequence == nullptr) return false;
  const size_t kept = static_cast<size_t>(std::max(0, num_tokens_kept));
  if (kept < sequence->generated.size()) sequence->generated.resize(kept);
  Finish(*sequence, FinishReason::kStop);
  return true;
}

bool Scheduler::Pause(SeqId id, TimePoint now) {
  Sequence* sequence = Find(id);
  if (sequence == nullptr || sequence->paused) return false;
  sequence->paused = true;
  sequence->paused_until = now + config_.slow_reader_timeout;
  slow_readers_.emplace(sequence->paused_until, id);
  if (sequence->queued) {
    waiting_.Erase(*sequence);
    sequence->waited += now - sequence->queued_since;
  }
  return true;
}

bool Scheduler::Resume(SeqId id, TimePoint now) {
  Sequence* sequence = Find(id);
  if (sequence == nullptr || !sequence->paused) return false;
  sequence->paused = false;
  slow_readers_.erase({sequence->paused_until, id});
  if (!sequence->running()) waiting_.Insert(*sequence, now);
  return true;
}

void Scheduler::Expire(TimePoint now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    SequenceGroup& group = *groups_.at(deadlines_.begin()->second);
    for (size_t i = 0, alive = static_cast<size_t>(group.num_alive); alive > 0; ++i) {
      if (group.sequences[i].finished) continue;
      --alive;  // the last one's end destroys the group
      Finish(group.sequences[i], FinishReason::kDeadline);
    }
  }
  while (!slow_readers_.empty() && slow_readers_.begin()->first <= now) {
    Finish(*Find(slow_readers_.begin()->second), FinishReason::kSlowReader);
  }
}

void Scheduler::Schedule(TimePoint now, SchedulerOutput& output) {
  CHECK(static_cast<int32_t>(in_flight_.size()) < config_.max_steps_in_flight, "{} in flight",
        in_flight_.size());
  output.Clear();
  Expire(now);
  // What one candidate could not use of the room made for it another one may: an empty step must
  // leave nothing that could run, because then the engine sleeps. Every turn gives something up.
  bool planned = false;
  made_room_ = true;
  while (!planned && made_room_) {
    made_room_ = false;
    planned = Plan(now);
  }

  StepInFlight step{StepId{next_step_}, {}, {}};
  for (const bool decodes : {true, false}) {  // decodes first
    for (Sequence* sequence : running_) {
      if (sequence->planned_tokens > 0 && (sequence->planned_tokens == 1) == decodes) {
        Emit(*sequence, output, step);
      }
    }
  }
  if (output.scheduled.empty()) return;
  output.step = step.step;
  output.released_slots.swap(released_slots_);
  released_slots_.clear();
  in_flight_.push_back(std::move(step));
  ++next_step_;
}

// Admits and decides who runs how much; false when nobody does.
bool Scheduler::Plan(TimePoint now) {
  ++num_plans_;
  int32_t num_decodes = 0;
  for (Sequence* sequence : running_) {
    sequence->planned_tokens = 0;
    num_decodes += sequence->num_to_compute() == 1;
  }
  // Both sides have their minimum: prefill of the budget (a budget of one goes to each in turn),
  // decodes by the chunk's length.
  const int32_t budget = config_.max_num_batched_tokens;
  const int32_t prefill_minimum = budget > 1 ? std::clamp(budget / 2, 1, config_.min_prefill_tokens)
                                             : static_cast<int32_t>(num_plans_ % 2);
  int32_t prefill_budget = std::max(budget - num_decodes, prefill_minimum);
  if (num_decodes > 0) prefill_budget = std::min(prefill_budget, config_.max_prefill_chunk);
  Admit(now, prefill_budget);
  PlanPrefills(prefill_budget);
  PlanDecodes(budget, now);
  return std::any_of(running_.begin(), running_.end(),
                     [](const Sequence* s) { return s->planned_tokens > 0; });
}

void Scheduler::PlanPrefills(int32_t budget) {
  std::vector<Sequence*>& prefills = scratch_;
  prefills.clear();
  for (Sequence* sequence : running_) {
    if (sequence->num_to_compute() > 1) prefills.push_back(sequence);
  }
  std::sort(prefills.begin(), prefills.end(), RanksHigher);
  const int32_t share = prefills.size() > 1 ? PrefillShare(budget) : budget;
  for (const int32_t limit : {share, budget}) {  // then what the shares leave over, in order
    for (Sequence* sequence : prefills) {
      const int32_t planned = sequence->planned_tokens;
      int32_t most = std::min({sequence->num_to_compute(), config_.max_prefill_chunk,
                               std::max(limit, planned), planned + budget});
      // Rows with prompt log-probabilities and rows without do not share a chunk.
      const int32_t prompt_left = sequence->num_prompt_tokens() - sequence->num_computed;
      if (sequence->wants_prompt_logprobs() && prompt_left > 0) most = std::min(most, prompt_left);
      sequence->planned_tokens = most;
      budget -= most - planned;
    }
  }
}

void Scheduler::PlanDecodes(int32_t budget, TimePoint now) {
  for (const Sequence* sequence : running_) budget -= sequence->planned_tokens;
  std::vector<Sequence*>& growing = scratch_;
  growing.clear();
  bool all = true;
  for (Sequence* sequence : running_) {
    if (sequence->num_to_compute() != 1) continue;
    if (budget == 0) {
      all = false;
      break;
    }
    --budget;
    sequence->planned_tokens = 1;
    if (kv_cache_.BlocksFor(sequence->num_computed + 1) > sequence->table.num_blocks()) {
      growing.push_back(sequence);
    }
  }
  if (!all) {  // in turns: who was left out goes first next time
    std::stable_partition(running_.begin(), running_.end(),
                          [](const Sequence* s) { return s->planned_tokens == 0; });
  }
  std::sort(growing.begin(), growing.end(), RanksHigher);
  for (Sequence* sequence : growing) {
    if (sequence->running()) GrowOrPreempt(*sequence, now);
  }
}

void Scheduler::GrowOrPreempt(Sequence& sequence, TimePoint now) {
  const bool guaranteed = sequence.group->params.guaranteed;
  while (!kv_cache_.Grow(sequence.table, sequence.num_computed + 1, &sequence.reservation)) {
    CHECK(!guaranteed, "sequence {} reserved too little", ToInt(sequence.id));
    if (DropHeldPrompts(nullptr)) continue;
    Sequence* victim = &sequence;
    for (Sequence* other : running_) {
      if (!other->group->params.guaranteed && YieldsBefore(other, victim)) victim = other;
    }
    Preempt(*victim, now);
    if (victim == &sequence) return;
  }
}

void Scheduler::Emit(Sequence& sequence, SchedulerOutput& output, StepInFlight& step) {
  if (!sequence.admission_told) EmitAdmission(sequence, output);
  if (sequence.copy) {
    output.copies.push_back({sequence.copy->src, sequence.copy->dst, sequence.copy->num_tokens});
    step.retired.push_back(std::move(*sequence.copy_source));
    sequence.copy.reset();
    sequence.copy_source.reset();
  }
  const int32_t begin = sequence.num_computed;
  const int32_t count = std::exchange(sequence.planned_tokens, 0);
  const auto num_values =
      sequence.num_prompt_tokens() + static_cast<int32_t>(sequence.generated.size());
  ScheduledSequence entry;
  entry.id = sequence.id;
  entry.slot = sequence.slot;
  entry.num_computed_tokens = begin;
  entry.num_scheduled_tokens = count;
  entry.num_token_ids = std::min(begin + count, num_values) - begin;
  entry.samples = begin + count == sequence.num_known() &&
                  sequence.num_known() < sequence.group->max_total_tokens;
  const bool prompt_logprobs =
      sequence.wants_prompt_logprobs() && begin < sequence.num_prompt_tokens();
  entry.num_logits = prompt_logprobs ? count : (entry.samples ? 1 : 0);
  const auto blocks =
      sequence.table.blocks().subspan(static_cast<size_t>(sequence.num_blocks_told));
  CHECK(sequence.table.num_blocks() >= kv_cache_.BlocksFor(begin + count),
        "{} blocks for {} tokens", sequence.table.num_blocks(), begin + count);
  entry.num_new_blocks = static_cast<int32_t>(blocks.size());
  output.scheduled.push_back(entry);
  sequence.tokens().Copy(begin, entry.num_token_ids, std::back_inserter(output.token_ids));
  output.new_blocks.insert(output.new_blocks.end(), blocks.begin(), blocks.end());
  step.logprobs.push_back(sequence.group->params.sampling.num_logprobs >= 0);

  sequence.num_blocks_told = sequence.table.num_blocks();
  sequence.num_computed += count;
  sequence.num_kv_tokens_read += sequence.num_computed;
  sequence.num_pending_samples += entry.samples;
  sequence.last_step = step.step;
}

void Scheduler::EmitAdmission(Sequence& sequence, SchedulerOutput& output) {
  AdmittedSequence admitted;
  admitted.id = sequence.id;
  admitted.slot = sequence.slot;
  admitted.sampling = sequence.group->params.sampling;
  admitted.sampling.sequence_index = sequence.index;
  if (!sequence.wants_prompt_logprobs()) admitted.sampling.num_prompt_logprobs = -1;
  admitted.num_prompt_tokens = sequence.num_prompt_tokens();
  if (admitted.sampling.NeedsHistory()) {
    const TokenView tokens = sequence.tokens();
    admitted.num_history_tokens = static_cast<int32_t>(tokens.size());
    tokens.Copy(0, tokens.size(), std::back_inserter(output.history));
  }
  output.admitted.push_back(std::move(admitted));
  sequence.admission_told = true;
  if (std::exchange(sequence.started, true)) return;
  SequenceEvent event;
  event.kind = SequenceEvent::Kind::kStarted;
  event.id = sequence.id;
  event.index = sequence.index;
  event.num_prompt_tokens = sequence.num_prompt_tokens();
  event.num_cached_tokens = sequence.num_cached_tokens;
  events_.push_back(std::move(event));
}

}  // namespace longspan
