// Looks four times per limit, on its own thread, and calls back once. A limit of zero starts no
// thread. A step must be too old at two looks: when the whole process was stopped for a while
// (debugger, paused container), the first look after it sees a time in which nothing could move.
#include "server/step_watchdog.h"

#include <utility>

namespace longspan {
namespace {

constexpr int kLooksPerLimit = 4;

}  // namespace

StepWatchdog::StepWatchdog(std::function<Duration()> age, Duration limit,
                           std::function<void(Duration)> on_stuck)
    : age_(std::move(age)), limit_(limit), on_stuck_(std::move(on_stuck)) {
  if (limit > Duration::zero()) thread_ = std::thread([this] { Loop(); });
}

StepWatchdog::~StepWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ending_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StepWatchdog::Loop() {
  std::unique_lock lock(mutex_);
  bool was_too_old = false;
  while (!ending_changed_.wait_for(lock, limit_ / kLooksPerLimit, [this] { return ending_; })) {
    const Duration age = age_();
    const bool is_too_old = age > limit_;
    if (!is_too_old || !std::exchange(was_too_old, true)) {
      was_too_old = is_too_old;
      continue;
    }
    lock.unlock();
    return on_stuck_(age);
  }
}

}  // namespace longspan
