// Finds an engine that hangs in a step: a device that neither answers nor fails. Looks a few times
// per limit and says so once; what then happens to the process is the caller's.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "core/clock.h"

namespace longspan {

// One thread of its own from construction to destruction.
class StepWatchdog {
 public:
  // age: how long the running step has taken, any thread. on_stuck: called on the watchdog's thread
  // with the age, at most once. limit 0: does nothing.
  StepWatchdog(std::function<Duration()> age, Duration limit,
               std::function<void(Duration)> on_stuck);
  ~StepWatchdog();
  StepWatchdog(const StepWatchdog&) = delete;
  StepWatchdog& operator=(const StepWatchdog&) = delete;

 private:
  void Loop();

  const std::function<Duration()> age_;
  const Duration limit_;
  const std::function<void(Duration)> on_stuck_;
  std::mutex mutex_;
  std::condition_variable ending_changed_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace longspan
