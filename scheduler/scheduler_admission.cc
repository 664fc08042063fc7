// Who gets a slot and blocks, and who loses them. An admission takes all blocks for the tokens that
// a sequence has so far, and leaves headroom for the growth of those that run, so that it is not
// undone in the next steps.
#include <algorithm>
#include <utility>

#include "core/check.h"
#include "scheduler/scheduler.h"

namespace longspan {

namespace {

// A candidate whose blocks were short is looked up in the prefix cache again after so many steps;
// in between, only when there would be room for it as it was.
constexpr int64_t kLookupInterval = 16;

}  // namespace

void Scheduler::Admit(TimePoint now, int32_t prefill_budget) {
  using Visit = WaitingQueue::Visit;
  AdmitReservedSiblings(now, prefill_budget);
  if (waiting_.empty()) return;
  // Without room and without anybody to preempt, the line is not even looked at.
  const bool can_preempt =
      std::any_of(running_.begin(), running_.end(), [&](const Sequence* other) {
        return !other->group->params.guaranteed &&
               (other->paused || other->rank_priority < waiting_.highest_priority());
      });
  if (!can_preempt && free_slots_.empty()) return;
  bool blocked = false;
  waiting_.ForEach([&](Sequence& sequence) {
    if (!can_preempt && (blocked || free_slots_.empty())) return Visit::kStop;
    if (MustWaitForSibling(sequence)) return Visit::kNext;
    if (sequence.num_pending_samples > 0 || sequence.preempted_in == num_plans_) {
      return Visit::kEndClass;
    }
    if (PrefillDemand(sequence, prefill_budget, now) >= prefill_budget) return Visit::kEndClass;
    if (TryAdmit(sequence, blocked, now)) return Visit::kNext;
    // A guaranteed one may be overtaken, but not for longer than one ageing period.
    const Duration waited = sequence.waited + (now - sequence.queued_since);
    if (sequence.group->params.guaranteed && waited < config_.ageing_period) return Visit::kNext;
    blocked = true;
    return Visit::kEndClass;
  });
}

// Siblings whose blocks are reserved are not in the line: those ahead of them may be waiting for
// the very blocks.
void Scheduler::AdmitReservedSiblings(TimePoint now, int32_t prefill_budget) {
  for (SequenceGroup* group : reserved_groups_) {
    for (Sequence& sequence : group->sequences) {
      if (!sequence.queued || group->reservation.count() < BlocksToReserve(*group)) continue;
      if (MustWaitForSibling(sequence)) break;
      if (PrefillDemand(sequence, prefill_budget, now) >= prefill_budget) break;
      if (!TryAdmit(sequence, /*victims_only=*/false, now)) break;
    }
  }
  std::erase_if(reserved_groups_,
                [](const SequenceGroup* group) { return group->reservation.count() == 0; });
}

// Siblings wait until one that is ahead of them has computed the prompt.
bool Scheduler::MustWaitForSibling(const Sequence& sequence) const {
  if (sequence.admitted_before || ForkSource(sequence) != nullptr) return false;
  for (const Sequence& sibling : sequence.group->sequences) {
    if (&sibling == &sequence) return false;
    if (!sibling.finished && !sibling.paused) return true;
  }
  return false;
}

const BlockTable* Scheduler::ForkSource(const Sequence& sequence) const {
  const SequenceGroup& group = *sequence.group;
  if (sequence.admitted_before || group.sequences.size() == 1) return nullptr;
  if (sequence.wants_prompt_logprobs()) return nullptr;  // they come from all of the prompt's rows
  if (group.prompt_blocks) return &*group.prompt_blocks;
  for (const Sequence& sibling : group.sequences) {
    if (!sibling.finished && sibling.has_prompt_collected()) return &sibling.table;
  }
  return nullptr;
}

// Its own priority; but one that gets ahead of higher ones by its age is not thrown out by them
// again.
int32_t Scheduler::RankPriority(const Sequence& sequence, TimePoint now) const {
  const int32_t own = sequence.group->params.priority;
  const int32_t highest = waiting_.highest_priority();
  return highest <= own ? own : std::min(highest, waiting_.AgedPriority(sequence, now));
}

// What one prefill takes at most while others want to run as well, so that a short prompt does not
// wait for all of a long one.
int32_t Scheduler::PrefillShare(int32_t prefill_budget) {
  return std::max(1, prefill_budget - prefill_budget / 4);
}

// Prefill tokens of this step that go before those of a newcomer.
int64_t Scheduler::PrefillDemand(const Sequence& newcomer, int32_t prefill_budget,
                                 TimePoint now) const {
  const int32_t rank_priority = RankPriority(newcomer, now);
  const int32_t most = std::min(config_.max_prefill_chunk, PrefillShare(prefill_budget));
  int64_t demand = 0;
  for (const Sequence* sequence : running_) {
    const bool is_new = !sequence->admission_told;
    const int32_t count = sequence->num_to_compute();
    if (sequence->rank_priority >= rank_priority && (count > 1 || is_new)) {
      demand += std::min(count, most);
    }
  }
  return demand;
}

int32_t Scheduler::RemainingBlocks(const Sequence& sequence) const {
  return std::max(0, kv_cache_.BlocksFor(sequence.max_kv_tokens()) - sequence.table.num_blocks());
}

// Blocks that stay available besides the candidate's own: some growth for everybody it cannot
// preempt. The more often it was preempted, the more; after max_preemptions all they may ever need.
// The same holds for newcomers while such a sequence runs, so it is not preempted by equals again.
// Paused ones give way: they do not count.
int32_t Scheduler::Headroom(const Sequence& sequence) const {
  const int32_t priority = sequence.group->params.priority;
  bool all = sequence.num_preemptions >= config_.max_preemptions;
  for (const Sequence* other : running_) {
    all |= other->rank_priority >= priority && other->num_preemptions >= config_.max_preemptions;
  }
  const int32_t growth =
      all ? kv_cache_.num_blocks() : 1 << std::min(2 * sequence.num_preemptions, 30);
  const int32_t known = kv_cache_.BlocksFor(sequence.num_known());
  int64_t headroom = sequence.group->params.guaranteed
                         ? 0
                         : std::min(growth, kv_cache_.BlocksFor(sequence.max_kv_tokens()) - known);
  if (sequence.group->params.guaranteed && !all) return 0;
  for (const Sequence* other : running_) {
    if (other->group->params.guaranteed || other->paused) continue;
    if (other->rank_priority < priority) continue;
    headroom += std::min(growth, RemainingBlocks(*other));
  }
  return static_cast<int32_t>(std::min<int64_t>(headroom, kv_cache_.num_blocks()));
}

int32_t Scheduler::BlocksToReserve(const SequenceGroup& group) const {
  return kv_cache_.BlocksFor(group.max_total_tokens);
}

bool Scheduler::TryAdmit(Sequence& sequence, bool victims_only, TimePoint now) {
  Room room{now, victims_only, {}, sequence.group};
  const int32_t priority = sequence.group->params.priority;
  for (Sequence* other : running_) {
    if (other->group->params.guaranteed || other->group == sequence.group) continue;
    if (other->paused || other->rank_priority < priority) room.victims.push_back(other);
  }
  if ((victims_only || free_slots_.empty()) && room.victims.empty()) return false;
  std::sort(room.victims.begin(), room.victims.end(), YieldsBefore);

  const BlockTable* source = ForkSource(sequence);
  bool admitted = source != nullptr && AdmitFork(sequence, *source, room);
  if (!admitted && sequence.group->prompt_blocks) {
    DropHeldPrompts(nullptr);  // what is kept for forks may be what is short
    source = nullptr;
  }
  if (!admitted && source == nullptr) {
    admitted = sequence.group->params.guaranteed ? AdmitReserved(sequence, room)
                                                 : AdmitFresh(sequence, room);
  }
  if (admitted) TakeSlot(sequence, /*forked=*/source != nullptr, now);
  return admitted;
}

bool Scheduler::MakeRoom(Room& room, int32_t num_blocks, int32_t headroom) {
  const int64_t needed = int64_t{num_blocks} + headroom;
  const auto available = [&, out_of_reach = room.victims_only ? kv_cache_.num_available() : 0] {
    return kv_cache_.num_available() - out_of_reach;
  };
  if (available() < needed) DropHeldPrompts(room.group);
  int32_t slots = room.victims_only ? 0 : static_cast<int32_t>(free_slots_.size());
  if (slots == 0 && room.victims.empty()) return false;
  if (available() < needed) {
    int64_t most = available();
    for (const Sequence* victim : room.victims) most += victim->table.num_blocks();
    if (most < needed) return false;  // cheap, and nearly always right
    std::vector<const BlockTable*> tables;
    for (const Sequence* victim : room.victims) tables.push_back(&victim->table);
    if (available() + kv_cache_.NumFreedBy(tables) < needed) return false;
  }
  for (auto victim = room.victims.begin(); slots == 0 || available() < needed; ++victim, ++slots) {
    CHECK(victim != room.victims.end(), "{} blocks of {}", available(), needed);
    Preempt(**victim, room.now);
  }
  return true;
}

// A guaranteed sequence's share of its group's reservation, which is made for all at once. Siblings
// for which the pool is too small wait for theirs.
bool Scheduler::ReserveShare(Sequence& sequence, Room& room) {
  SequenceGroup& group = *sequence.group;
  const int32_t share = BlocksToReserve(group);
  int32_t wanted = 0;
  if (group.reservation.count() < share) {
    wanted =
        group.reserved ? share : share * std::min(group.num_alive, kv_cache_.num_blocks() / share);
  }
  if (!MakeRoom(room, wanted, wanted > 0 ? Headroom(sequence) : 0)) return false;
  if (wanted > 0) {
    group.reservation = *kv_cache_.Reserve(wanted);
    group.reserved = true;
    if (wanted > share) reserved_groups_.push_back(&group);
  }
  sequence.reservation = group.reservation.Split(share);
  return true;
}

// Blocks that others hold too were not taken from the reservation and never will be.
void Scheduler::ReleaseSurplus(Sequence& sequence) const {
  const int32_t surplus = sequence.reservation.count() - RemainingBlocks(sequence);
  if (surplus > 0) sequence.reservation.Split(surplus).Release();
}

// The new block takes a copy of the source's partial one; only the last prompt token is computed
// again, for its logits.
bool Scheduler::AdmitFork(Sequence& sequence, const BlockTable& source, Room& room) {
  const bool has_room = sequence.group->params.guaranteed ? ReserveShare(sequence, room)
                                                          : MakeRoom(room, 1, Headroom(sequence));
  if (!has_room) return false;
  PartialBlockCopy copy;
  const int32_t num_kept = sequence.num_prompt_tokens() - 1;
  const bool forked = kv_cache_.Fork(source, num_kept, sequence.table, copy, &sequence.reservation);
  CHECK(forked, "sequence {}", ToInt(sequence.id));
  ReleaseSurplus(sequence);
  if (copy.num_tokens > 0) {
    sequence.copy = copy;
    sequence.copy_source = kv_cache_.Hold(copy.src);
  }
  sequence.num_computed = sequence.num_collected = num_kept;
  return true;
}

PrefixMatch Scheduler::FindPrefix(const Sequence& sequence) const {
  // One token is computed for its logits. Prompt log-probabilities need the row before the first
  // one that was not told yet.
  int64_t limit = sequence.num_known() - 1;
  if (sequence.wants_prompt_logprobs()) {
    limit = std::max(0, sequence.num_prompt_logprobs_told - 1);
  }
  return kv_cache_.FindPrefix(sequence.group->root, sequence.tokens(), limit);
}

bool Scheduler::AdmitReserved(Sequence& sequence, Room& room) {
  if (!ReserveShare(sequence, room)) return false;
  const PrefixMatch match = FindPrefix(sequence);
  const bool allocated =
      kv_cache_.Allocate(sequence.table, match, sequence.num_known(), &sequence.reservation);
  CHECK(allocated, "sequence {}", ToInt(sequence.id));
  ReleaseSurplus(sequence);
  sequence.num_computed = sequence.num_collected =
      static_cast<int32_t>(match.blocks.size()) * kv_cache_.block_size();
  return true;
}

bool Scheduler::AdmitFresh(Sequence& sequence, Room& room) {
  const int32_t known = kv_cache_.BlocksFor(sequence.num_known());
  const int32_t headroom = Headroom(sequence);
  // A long prompt that has to wait is not hashed in every step.
  const bool others_run = std::any_of(running_.begin(), running_.end(),
                                      [](const Sequence* other) { return !other->paused; });
  if (others_run && num_plans_ < sequence.last_lookup + kLookupInterval) {
    int64_t most = room.victims_only ? 0 : kv_cache_.num_available();
    for (const Sequence* victim : room.victims) most += victim->table.num_blocks();
    for (const SequenceGroup* group : held_prompts_) most += group->prompt_blocks->num_blocks();
    if (most < int64_t{sequence.last_blocks_needed} + headroom) return false;
  }
  const PrefixMatch match = FindPrefix(sequence);
  const auto num_matched = static_cast<int32_t>(match.blocks.size());
  sequence.last_blocks_needed = kv_cache_.BlocksNeeded(match, sequence.num_known());
  sequence.last_lookup = num_plans_;
  // The cached blocks are held first, so that making room cannot take them.
  const int32_t num_cached_tokens = num_matched * kv_cache_.block_size();
  const int32_t available_before = kv_cache_.num_available();
  BlockTable table = kv_cache_.NewTable();
  if (!kv_cache_.Allocate(table, match, num_cached_tokens)) return false;
  const int32_t held_now = available_before - kv_cache_.num_available();
  if (!MakeRoom(room, known - num_matched + (room.victims_only ? held_now : 0), headroom)) {
    return false;
  }
  const bool grown = kv_cache_.Grow(table, sequence.num_known());
  CHECK(grown, "sequence {}", ToInt(sequence.id));
  sequence.table = std::move(table);
  sequence.num_computed = sequence.num_collected = num_cached_tokens;
  return true;
}

void Scheduler::TakeSlot(Sequence& sequence, bool forked, TimePoint now) {
  sequence.rank_priority = RankPriority(sequence, now);
  waiting_.Erase(sequence);
  sequence.waited += now - sequence.queued_since;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  running_.push_back(&sequence);
  sequence.last_blocks_needed = 0;
  SequenceGroup& group = *sequence.group;
  if (!std::exchange(sequence.admitted_before, true) && sequence.index == 0 && !forked) {
    sequence.num_cached_tokens = sequence.num_computed;
    if (!group.root.closed && !sequence.wants_prompt_logprobs()) {
      kv_cache_.RecordQuery(sequence.num_prompt_tokens(), sequence.num_cached_tokens);
    }
  }
  const bool forks_left =
      std::any_of(group.sequences.begin(), group.sequences.end(),
                  [](const Sequence& s) { return !s.finished && !s.admitted_before; });
  if (group.prompt_blocks && !forks_left) {
    group.prompt_blocks.reset();
    std::erase(held_prompts_, &group);
  }
}

bool Scheduler::DropHeldPrompts(const SequenceGroup* except) {
  bool dropped = false;
  for (SequenceGroup* group : held_prompts_) {
    if (group == except) continue;
    group->prompt_blocks.reset();
    dropped = true;
  }
  std::erase_if(held_prompts_, [](const SequenceGroup* g) { return !g->prompt_blocks; });
  made_room_ |= dropped;
  return dropped;
}

// Recompute: the tokens stay, prompt and generated ones become the prefix that is computed again.
void Scheduler::Preempt(Sequence& sequence, TimePoint now) {
  CHECK(sequence.running() && !sequence.group->params.guaranteed, "sequence {}",
        ToInt(sequence.id));
  sequence.table.Clear();
  ReleaseSlot(sequence);
  ++sequence.num_preemptions;
  ++num_preemptions_;
  made_room_ = true;
  sequence.preempted_in = num_plans_;
  if (!sequence.paused) waiting_.Insert(sequence, now);
}

}  // namespace longspan
