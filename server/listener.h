// One bound address and the thread that accepts on it. It owns what gRPC's own listener gets wrong:
// a second server on the same path or port, a full file table, socket modes. Accepted sockets go to
// a sink; it knows nothing of HTTP.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "core/status.h"

namespace longspan {

// Owns its sockets and its thread. Public methods are thread-safe.
class Listener {
 public:
  // Gets every accepted socket (non-blocking, close-on-exec) and owns it from then on. Accept
  // thread.
  using Sink = std::function<void(int listener_fd, int fd)>;

  // HOST:PORT, [IPV6]:PORT (port 0 picks one) or unix:PATH (mode 0600; a socket file whose owner is
  // dead is replaced, one that is answered is not). kAlreadyExists: the address is in use.
  static StatusOr<std::unique_ptr<Listener>> Bind(const std::string& address);
  // Closes; removes the socket file.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Begins to accept. Connections that came before wait in the kernel's queue.
  void Start(Sink sink);
  // No more connections; returns when the thread has ended. Idempotent.
  void Close();

  // What was bound: "127.0.0.1:43121", "[::1]:43121", "unix:/path".
  const std::string& address() const { return address_; }

 private:
  Listener(int fd, int wake_fd, int spare_fd, std::string address, std::string socket_path);
  void Loop();
  void AcceptOne();
  void OnTableFull();

  const int fd_;
  const int wake_fd_;  // eventfd: written once to end the loop
  int spare_fd_;  // given up for a moment to accept and close a connection when the table is full
  const std::string address_;
  const std::string socket_path_;  // empty for TCP
  Sink sink_;
  bool has_warned_ = false;  // of a nearly full file table; accept thread only
  std::atomic<bool> closed_{false};
  std::thread thread_;
};

}  // namespace longspan
