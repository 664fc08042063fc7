// The order of admission: by priority with ageing between classes, by arrival within one. It knows
// who is next, not whether there is room.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "core/clock.h"
#include "scheduler/sequence.h"

namespace longspan {

// A class is all waiting sequences of one priority. Its first one counts as if it had come
// priority x ageing_period earlier than it did; of all classes the earliest is next. So one that
// waits is overtaken only by sequences that come at most (their priority - its own) x ageing_period
// later, and the order does not change while time passes. Time spent running or paused does not
// count.
class WaitingQueue {
 public:
  explicit WaitingQueue(Duration ageing_period);  // 1 us .. 1 h

  void Insert(Sequence& sequence, TimePoint now);
  void Erase(Sequence& sequence);

  enum class Visit : uint8_t {
    kNext,      // admitted (and erased), or passed over: its class goes on
    kEndClass,  // nobody behind it in its class is visited
    kStop,
  };
  // Calls visit(sequence) in order of admission. It may erase that sequence and insert others.
  void ForEach(const std::function<Visit(Sequence&)>& visit) const;

  bool empty() const { return size_ == 0; }
  int32_t size() const { return size_; }
  int64_t num_tokens() const { return num_tokens_; }  // that they have to compute first
  int32_t highest_priority() const { return classes_.begin()->first; }  // when not empty

  // priority + whole ageing periods waited, without overflow.
  int32_t AgedPriority(const Sequence& sequence, TimePoint now) const;

 private:
  struct ByOrder {
    using is_transparent = void;
    bool operator()(const Sequence* a, const Sequence* b) const { return a->order < b->order; }
    bool operator()(int64_t order, const Sequence* b) const { return order < b->order; }
    bool operator()(const Sequence* a, int64_t order) const { return a->order < order; }
  };
  using Class = std::set<Sequence*, ByOrder>;
  struct Cursor {
    int64_t arrival;
    int32_t priority;
    Sequence* next;
  };

  // Microseconds; smaller goes first.
  int64_t VirtualArrival(const Sequence& sequence) const;

  const Duration ageing_period_;
  std::map<int32_t, Class, std::greater<>> classes_;  // no empty ones
  int32_t size_ = 0;
  int64_t num_tokens_ = 0;
  mutable std::vector<Cursor> cursors_;  // of ForEach; kept for its capacity
};

}  // namespace longspan
