// Signals as values: one thread waits for them, so that nothing runs in a handler.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace longspan {

// Blocks SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 for every thread made later, and ignores
// SIGPIPE. Call first in main.
void BlockSignals();

// Calls on_signal(number) on its own thread for each of them until destroyed; SIGUSR2 is ignored.
class SignalThread {
 public:
  explicit SignalThread(std::function<void(int)> on_signal);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  std::function<void(int)> on_signal_;
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace longspan
