// A thread in sigwait. All threads block these signals (BlockSignals runs before the first is
// made), so that none is ever handled in the middle of other code.
#include "server/signals.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace longspan {
namespace {

constexpr int kWakeUp =
    SIGUSR2;  // makes the thread look at is_stopping_; a stray one means nothing

sigset_t WaitedSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, kWakeUp}) sigaddset(&set, signal);
  return set;
}

}  // namespace

void BlockSignals() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a full quota is a failed write, not the end
  const sigset_t set = WaitedSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

SignalThread::SignalThread(std::function<void(int)> on_signal) : on_signal_(std::move(on_signal)) {
  thread_ = std::thread([this] {
    const sigset_t set = WaitedSignals();
    int number = 0;
    while (sigwait(&set, &number) == 0 && !is_stopping_.load()) {
      if (number != kWakeUp) on_signal_(number);
    }
  });
}

SignalThread::~SignalThread() {
  is_stopping_.store(true);
  pthread_kill(thread_.native_handle(), kWakeUp);
  thread_.join();
}

}  // namespace longspan
