// Between the accept loop and gRPC: a connection goes on when its first bytes are HTTP/2's, and is
// closed, with a log line now and then, when they are something else. gRPC 1.51 closes those too,
// but says nothing. What follows the first bytes is gRPC's matter; nothing is read here, only
// looked at.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/listener.h"
#include "server/rate_limit.h"

namespace longspan {

// Whether an HTTP/2 connection may begin so; some bytes at least.
bool IsHttp2Preface(std::string_view first_bytes);

// One thread of its own, which sleeps while no connection is new.
class PrefaceGate {
 public:
  // As long as gRPC itself would wait for the first settings.
  static constexpr std::chrono::seconds kMaxSilence{20};

  // address: for log lines. sink: gets what passed, on the gate's thread, and owns it.
  PrefaceGate(std::string address, Listener::Sink sink,
              std::chrono::seconds max_silence = kMaxSilence);
  // Closes what is still being waited for.
  ~PrefaceGate();
  PrefaceGate(const PrefaceGate&) = delete;
  PrefaceGate& operator=(const PrefaceGate&) = delete;

  // Any thread; owns fd from here on.
  void Take(int listener_fd, int fd);

 private:
  struct Waiting {
    int listener_fd;
    int fd;
    std::chrono::steady_clock::time_point since;
  };
  void Loop();
  bool TakeArrived();  // false: the end
  int PollTimeoutMs() const;
  bool Look(const Waiting& connection);  // false: it waits on

  const std::string address_;
  const Listener::Sink sink_;
  const std::chrono::seconds max_silence_;
  const int wake_fd_;  // eventfd: something arrived, or the end
  RateLimit log_limit_;
  std::vector<Waiting> waiting_;  // gate's thread only, oldest first
  std::mutex mutex_;
  std::vector<Waiting> arrived_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace longspan
