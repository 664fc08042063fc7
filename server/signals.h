// Signals as values: one thread waits for them, so that nothing runs in a handler.
#pragma once

#include <functional>
#include <thread>

namespace longspan {

// Blocks SIGTERM, SIGINT, SIGHUP and SIGUSR1 for every thread made later, and ignores SIGPIPE. Call
// first in main.
void BlockSignals();

// Calls on_signal(number) on its own thread for each of them until destroyed.
class SignalThread {
 public:
  explicit SignalThread(std::function<void(int)> on_signal);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  std::function<void(int)> on_signal_;
  std::thread thread_;
};

}  // namespace longspan
