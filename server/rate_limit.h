// Lets one line of a kind through in so much time and counts the rest. It writes nothing itself.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace longspan {

// Thread-safe.
class RateLimit {
 public:
  explicit RateLimit(std::chrono::nanoseconds interval) : interval_ns_(interval.count()) {}

  // The number of lines dropped since the last one, or -1: drop this one too.
  int64_t Take() {
    const int64_t now =
        std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
    int64_t next = next_ns_.load();
    if (now < next || !next_ns_.compare_exchange_strong(next, now + interval_ns_)) {
      ++dropped_;
      return -1;
    }
    return dropped_.exchange(0);
  }

 private:
  const int64_t interval_ns_;
  std::atomic<int64_t> next_ns_{0};  // of the clock; the first line comes at once
  std::atomic<int64_t> dropped_{0};
};

}  // namespace longspan
