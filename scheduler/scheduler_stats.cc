// What can be asked about the scheduler (counts, positions, listings, the self-check of tests);
// nothing here changes it.
#include <algorithm>
#include <unordered_map>
#include <vector>

#include "core/check.h"
#include "scheduler/scheduler.h"

namespace longspan {

void Scheduler::TakeEvents(std::vector<SequenceEvent>& events) {
  events.insert(events.end(), std::make_move_iterator(events_.begin()),
                std::make_move_iterator(events_.end()));
  events_.clear();
}

std::optional<TimePoint> Scheduler::NextWakeup() const {
  std::optional<TimePoint> next;
  if (!deadlines_.empty()) next = deadlines_.begin()->first;
  if (!slow_readers_.empty()) {
    const TimePoint first = slow_readers_.begin()->first;
    next = next ? std::min(*next, first) : first;
  }
  return next;
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats;
  stats.num_running = static_cast<int32_t>(std::count_if(
      running_.begin(), running_.end(), [](const Sequence* s) { return !s->paused; }));
  stats.num_waiting = waiting_.size();
  stats.num_paused = static_cast<int32_t>(slow_readers_.size());
  stats.num_waiting_tokens = waiting_.num_tokens();
  stats.num_preemptions = num_preemptions_;
  stats.kv = kv_cache_.stats();
  if (idle() && in_flight_.empty()) stats.kv.num_leaked += stats.kv.num_held;
  return stats;
}

std::vector<int32_t> Scheduler::QueuePositions(std::span<const SeqId> ids) const {
  std::vector<int32_t> positions(ids.size(), -1);
  std::unordered_map<const Sequence*, size_t> wanted;
  for (size_t i = 0; i < ids.size(); ++i) {
    const Sequence* sequence = Find(ids[i]);
    if (sequence != nullptr && sequence->queued) wanted.emplace(sequence, i);
  }
  int32_t num_ahead = 0;
  waiting_.ForEach([&](const Sequence& sequence) {
    if (wanted.empty()) return WaitingQueue::Visit::kStop;
    if (const auto found = wanted.find(&sequence); found != wanted.end()) {
      positions[found->second] = num_ahead;
      wanted.erase(found);
    }
    num_ahead += sequence.index == 0 || sequence.started;  // a request counts once
    return WaitingQueue::Visit::kNext;
  });
  return positions;
}

std::vector<SequenceInfo> Scheduler::List() const {
  std::vector<SequenceInfo> list;
  list.reserve(sequences_.size());
  for (const auto& [id, sequence] : sequences_) {
    SequenceInfo info;
    info.id = id;
    info.index = sequence->index;
    info.state = sequence->paused      ? SequenceInfo::State::kPaused
                 : sequence->running() ? SequenceInfo::State::kRunning
                                       : SequenceInfo::State::kWaiting;
    info.priority = sequence->group->params.priority;
    info.num_prompt_tokens = sequence->num_prompt_tokens();
    info.num_completion_tokens = static_cast<int32_t>(sequence->generated.size());
    info.num_computed_tokens = sequence->num_collected;
    info.num_blocks = sequence->table.num_blocks();
    info.num_preemptions = sequence->num_preemptions;
    list.push_back(info);
  }
  std::sort(list.begin(), list.end(),
            [](const SequenceInfo& a, const SequenceInfo& b) { return a.id < b.id; });
  return list;
}

void Scheduler::CheckInvariants() const {
  std::vector<const BlockTable*> tables;
  std::vector<bool> slot_used(static_cast<size_t>(config_.max_num_seqs));
  int32_t num_reserved = 0;
  int32_t num_queued = 0;
  int32_t num_alive = 0;
  for (const auto& [id, group] : groups_) {
    num_reserved += group->reservation.count();
    num_alive += group->num_alive;
    if (group->prompt_blocks) tables.push_back(&*group->prompt_blocks);
    for (const Sequence& sequence : group->sequences) {
      tables.push_back(&sequence.table);
      if (sequence.copy_source) tables.push_back(&*sequence.copy_source);
      num_reserved += sequence.reservation.count();
      num_queued += sequence.queued;
      CHECK(sequence.running() || sequence.table.num_blocks() == 0, "sequence {}",
            ToInt(sequence.id));
      CHECK(sequence.finished == !sequences_.contains(sequence.id), "sequence {}",
            ToInt(sequence.id));
      // Alive: in exactly one place.
      const int places = sequence.running() + sequence.queued;
      CHECK(sequence.finished ? places == 0 : places == 1 || (places == 0 && sequence.paused),
            "sequence {} in {} places", ToInt(sequence.id), places);
      if (!sequence.running()) continue;
      CHECK(!slot_used[static_cast<size_t>(sequence.slot)], "slot {}", sequence.slot);
      slot_used[static_cast<size_t>(sequence.slot)] = true;
      CHECK(std::count(running_.begin(), running_.end(), &sequence) == 1);
      CHECK(sequence.num_collected <= sequence.num_computed &&
                sequence.num_computed <= sequence.num_known(),
            "sequence {}: {} {} {}", ToInt(sequence.id), sequence.num_collected,
            sequence.num_computed, sequence.num_known());
    }
  }
  for (const StepInFlight& step : in_flight_) {
    for (const BlockTable& table : step.retired) tables.push_back(&table);
  }
  CHECK(num_queued == waiting_.size(), "{} of {} queued", num_queued, waiting_.size());
  CHECK(num_alive == static_cast<int32_t>(sequences_.size()), "{} of {}", num_alive,
        sequences_.size());
  CHECK(static_cast<int32_t>(running_.size() + free_slots_.size()) == config_.max_num_seqs,
        "{} running, {} free slots", running_.size(), free_slots_.size());
  kv_cache_.CheckInvariants();
  kv_cache_.CheckHolders(tables, num_reserved);
}

}  // namespace longspan
