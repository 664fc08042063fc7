// A clock that tests move by hand.
#pragma once

#include <atomic>

#include "core/clock.h"

namespace longspan {

// Thread-safe.
class FakeClock final : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(Duration(now_.load())); }
  void Advance(Duration d) { now_.fetch_add(d.count()); }

 private:
  std::atomic<Duration::rep> now_{
      std::chrono::duration_cast<Duration>(std::chrono::hours(1)).count()};
};

}  // namespace longspan
