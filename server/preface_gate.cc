// A poll over the connections that have not said anything yet. Clients begin at once, so there are
// few of them; those that are silent for long are closed, and beyond a number the oldest one goes
// on to gRPC unseen.
#include "server/preface_gate.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "core/log.h"

namespace longspan {
namespace {

using std::chrono::steady_clock;

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kMaxWaiting = 1024;
constexpr std::chrono::seconds kLogInterval{10};

}  // namespace

bool IsHttp2Preface(std::string_view first_bytes) {
  return first_bytes.substr(0, kPreface.size()) == kPreface.substr(0, first_bytes.size());
}

PrefaceGate::PrefaceGate(std::string address, Listener::Sink sink, std::chrono::seconds max_silence)
    : address_(std::move(address)),
      sink_(std::move(sink)),
      max_silence_(max_silence),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      log_limit_(kLogInterval) {
  thread_ = std::thread([this] { Loop(); });
}

PrefaceGate::~PrefaceGate() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_fd_, &one, sizeof one);
  thread_.join();
  for (const auto* connections : {&waiting_, &arrived_}) {
    for (const Waiting& connection : *connections) ::close(connection.fd);
  }
  ::close(wake_fd_);
}

void PrefaceGate::Take(int listener_fd, int fd) {
  {
    const std::lock_guard lock(mutex_);
    arrived_.push_back({listener_fd, fd, steady_clock::now()});
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_fd_, &one, sizeof one);
}

void PrefaceGate::Loop() {
  std::vector<pollfd> polls;
  while (TakeArrived()) {
    polls.assign(1, {wake_fd_, POLLIN, 0});
    for (const Waiting& connection : waiting_) polls.push_back({connection.fd, POLLIN, 0});
    if (::poll(polls.data(), polls.size(), PollTimeoutMs()) < 0 && errno != EINTR) return;
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t drained = ::read(wake_fd_, &count, sizeof count);
    std::erase_if(waiting_, [this](const Waiting& connection) { return Look(connection); });
  }
}

bool PrefaceGate::TakeArrived() {
  const std::lock_guard lock(mutex_);
  waiting_.insert(waiting_.end(), arrived_.begin(), arrived_.end());
  arrived_.clear();
  while (waiting_.size() > kMaxWaiting) {
    sink_(waiting_.front().listener_fd, waiting_.front().fd);
    waiting_.erase(waiting_.begin());
  }
  return !ending_;
}

int PrefaceGate::PollTimeoutMs() const {
  if (waiting_.empty()) return -1;
  const auto left = waiting_.front().since + max_silence_ - steady_clock::now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::max<int64_t>(ms, 0));
}

bool PrefaceGate::Look(const Waiting& connection) {
  char bytes[kPreface.size()];
  const ssize_t size = ::recv(connection.fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
  if (size > 0 && IsHttp2Preface({bytes, static_cast<size_t>(size)})) {
    sink_(connection.listener_fd, connection.fd);
    return true;
  }
  const bool is_silent = size < 0 && (errno == EAGAIN || errno == EINTR);
  if (is_silent && steady_clock::now() < connection.since + max_silence_) return false;
  ::close(connection.fd);
  if (size > 0) {
    if (const int64_t dropped = log_limit_.Take(); dropped >= 0) {
      spdlog::warn("{}: closed a connection that is not HTTP/2{}", address_,
                   dropped > 0 ? fmt::format(" ({} more before)", dropped) : "");
    }
  }
  return true;
}

}  // namespace longspan
