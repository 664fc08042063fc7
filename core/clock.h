// Monotonic time as an argument: everything that waits, ages or measures asks a Clock, so that
// tests drive time by hand and a jump of the wall clock changes nothing. Wall time appears in log
// stamps only.
#pragma once

#include <chrono>

namespace longspan {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
};

// The machine's monotonic clock.
class SteadyClock final : public Clock {
 public:
  TimePoint Now() const override;
};

// Seconds as a double, for metrics and messages.
inline double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace longspan
