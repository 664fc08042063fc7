// Says when somebody has set the wall clock. Our own waits are on monotonic time and do not care;
// gRPC 1.51 sleeps until wall-clock times, and after a jump back its timers (keepalive, deadlines)
// would come an hour late: they are woken to look again.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

namespace grpc {
class Alarm;
}

namespace longspan {

// One thread of its own from construction to destruction; it sleeps until the clock is set.
class WallClockWatch {
 public:
  // on_jump: called on the watch's thread. Where the system has no such notice it is never called.
  explicit WallClockWatch(std::function<void()> on_jump);
  ~WallClockWatch();
  WallClockWatch(const WallClockWatch&) = delete;
  WallClockWatch& operator=(const WallClockWatch&) = delete;

 private:
  void Loop();

  const std::function<void()> on_jump_;
  const int fd_;  // a timer that is cancelled when the clock is set; -1: none
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

// Makes gRPC's timer thread compute anew how long it sleeps. One thread at a time.
class GrpcTimerWaker {
 public:
  GrpcTimerWaker();
  ~GrpcTimerWaker();
  void Wake();

 private:
  std::unique_ptr<grpc::Alarm> alarm_;
};

}  // namespace longspan
