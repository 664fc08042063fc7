// Classes are walked by their next sequence's virtual arrival. Cursors are positions by value, so
// the visitor may change the queue.
#include "scheduler/waiting_queue.h"

#include <algorithm>
#include <limits>

#include "core/check.h"

namespace longspan {

WaitingQueue::WaitingQueue(Duration ageing_period) : ageing_period_(ageing_period) {
  // Keeps VirtualArrival far from overflow for every int32 priority.
  CHECK(ageing_period >= std::chrono::microseconds(1) && ageing_period <= std::chrono::hours(1),
        "ageing_period {} s", Seconds(ageing_period));
}

void WaitingQueue::Insert(Sequence& sequence, TimePoint now) {
  CHECK(!sequence.queued, "sequence {}", ToInt(sequence.id));
  sequence.queued = true;
  sequence.queued_since = now;
  const bool only_forks = sequence.index > 0 && !sequence.started;
  sequence.queued_tokens = only_forks ? 1 : sequence.num_known();
  classes_[sequence.group->params.priority].insert(&sequence);
  ++size_;
  num_tokens_ += sequence.queued_tokens;
}

void WaitingQueue::Erase(Sequence& sequence) {
  CHECK(sequence.queued, "sequence {}", ToInt(sequence.id));
  sequence.queued = false;
  const auto its_class = classes_.find(sequence.group->params.priority);
  its_class->second.erase(&sequence);
  if (its_class->second.empty()) classes_.erase(its_class);
  --size_;
  num_tokens_ -= sequence.queued_tokens;
}

int64_t WaitingQueue::VirtualArrival(const Sequence& sequence) const {
  using std::chrono::duration_cast;
  using std::chrono::microseconds;
  const Duration since = sequence.queued_since.time_since_epoch() - sequence.waited;
  return duration_cast<microseconds>(since).count() -
         sequence.group->params.priority * duration_cast<microseconds>(ageing_period_).count();
}

int32_t WaitingQueue::AgedPriority(const Sequence& sequence, TimePoint now) const {
  const Duration waited = sequence.waited + (now - sequence.queued_since);
  const int64_t aged = sequence.group->params.priority + waited / ageing_period_;
  return static_cast<int32_t>(std::min<int64_t>(aged, std::numeric_limits<int32_t>::max()));
}

void WaitingQueue::ForEach(const std::function<Visit(Sequence&)>& visit) const {
  std::vector<Cursor>& cursors = cursors_;  // a heap, the earliest on top
  cursors.clear();
  for (const auto& [priority, its_class] : classes_) {
    Sequence* first = *its_class.begin();
    cursors.push_back({VirtualArrival(*first), priority, first});
  }
  const auto later = [](const Cursor& a, const Cursor& b) {
    return a.arrival != b.arrival ? a.arrival > b.arrival : a.priority < b.priority;
  };
  std::make_heap(cursors.begin(), cursors.end(), later);
  while (!cursors.empty()) {
    std::pop_heap(cursors.begin(), cursors.end(), later);
    Cursor cursor = cursors.back();
    cursors.pop_back();
    const int64_t order = cursor.next->order;
    const Visit go_on = visit(*cursor.next);
    if (go_on == Visit::kStop) return;
    const auto its_class = classes_.find(cursor.priority);
    if (go_on == Visit::kEndClass || its_class == classes_.end()) continue;
    const auto next = its_class->second.upper_bound(order);
    if (next == its_class->second.end()) continue;
    cursors.push_back({VirtualArrival(**next), cursor.priority, *next});
    std::push_heap(cursors.begin(), cursors.end(), later);
  }
}

}  // namespace longspan
