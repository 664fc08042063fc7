// Sockets by hand: binding without taking over a live address, socket files with mode 0600 before
// the first connection, and an accept loop that survives a full file table by means of a spare
// descriptor.
#include "server/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "core/log.h"
#include "server/bind_address.h"

namespace longspan {
namespace {

constexpr int kBacklog = 1024;
// File descriptors kept for the process itself: log and model files, scrapes, gRPC's own.
constexpr int kReservedFds = 16;
// How long the loop rests when not even the spare descriptor helped.
constexpr int kTableFullPauseMs = 100;

Status SystemError(const std::string& address, const char* what, int error) {
  const auto code =
      error == EADDRINUSE ? absl::StatusCode::kAlreadyExists : absl::StatusCode::kUnavailable;
  return MakeStatus(code, "{}: {}: {}", address, what, std::strerror(error));
}

int OpenSpare() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

// A socket that closes itself unless released.
class ScopedFd {
 public:
  explicit ScopedFd(int fd) : fd_(fd) {}
  ~ScopedFd() {
    if (fd_ >= 0) ::close(fd_);
  }
  ScopedFd(const ScopedFd&) = delete;
  ScopedFd& operator=(const ScopedFd&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

std::string BoundAddress(int fd, const std::string& host) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
  char numeric_host[NI_MAXHOST] = "";
  char port[NI_MAXSERV] = "";
  if (::getnameinfo(reinterpret_cast<sockaddr*>(&bound), size, numeric_host, sizeof numeric_host,
                    port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return host;
  }
  const bool is_v6 = bound.ss_family == AF_INET6;
  return is_v6 ? fmt::format("[{}]:{}", numeric_host, port)
               : fmt::format("{}:{}", numeric_host, port);
}

struct Bound {
  int fd;
  std::string address;
  std::string socket_path;
};

// One of the addresses that a name stands for.
StatusOr<Bound> BindOne(const std::string& address, const addrinfo& info) {
  ScopedFd fd(::socket(info.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return SystemError(address, "socket", errno);
  // REUSEADDR takes over a port in TIME_WAIT, never one that somebody listens on. No REUSEPORT.
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), info.ai_addr, info.ai_addrlen) != 0) {
    return SystemError(address, "cannot bind", errno);
  }
  if (::listen(fd.get(), kBacklog) != 0) return SystemError(address, "cannot listen", errno);
  std::string bound = BoundAddress(fd.get(), address);
  return Bound{fd.release(), std::move(bound), ""};
}

// IPv4 first: "localhost" is what clients mean by 127.0.0.1. A port in use ends the search, since a
// second server on the other address of a name would never be found.
StatusOr<Bound> BindTcp(const std::string& address, const BindAddress& parts) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(parts.host.c_str(), parts.port.c_str(), &hints, &found)) {
    return InvalidArgument("{}: {}", Escaped(address), ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, &::freeaddrinfo);
  std::vector<const addrinfo*> candidates;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    candidates.push_back(info);
  }
  std::stable_partition(candidates.begin(), candidates.end(),
                        [](const addrinfo* info) { return info->ai_family == AF_INET; });
  Status first_error;
  for (const addrinfo* info : candidates) {
    StatusOr<Bound> bound = BindOne(address, *info);
    if (bound.ok() || bound.status().code() == absl::StatusCode::kAlreadyExists) return bound;
    if (first_error.ok()) first_error = bound.status();
  }
  return first_error;
}

StatusOr<Bound> BindUnix(const std::string& address, const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);

  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) {
      return MakeStatus(absl::StatusCode::kAlreadyExists, "{}: exists and is not a socket",
                        Escaped(address));
    }
    if (IsSocketAnswered(path)) {
      return MakeStatus(absl::StatusCode::kAlreadyExists, "{}: another process listens there",
                        Escaped(address));
    }
    ::unlink(path.c_str());  // its owner is dead
  }
  ScopedFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return SystemError(address, "socket", errno);
  // The mode is the credential: it is right before the first connection can come.
  ::fchmod(fd.get(), 0600);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
    return SystemError(address, "cannot bind", errno);
  }
  if (::chmod(path.c_str(), 0600) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    ::unlink(path.c_str());
    return SystemError(address, "cannot listen", error);
  }
  return Bound{fd.release(), address, path};
}

// The number of a new descriptor is the lowest free one, so it tells how full the table is.
bool IsTableNearlyFull(int fd) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  return static_cast<rlim_t>(fd) + kReservedFds >= limit.rlim_cur;
}

}  // namespace

StatusOr<std::unique_ptr<Listener>> Listener::Bind(const std::string& address) {
  ASSIGN_OR_RETURN(const BindAddress parts, ParseBindAddress(address));
  StatusOr<Bound> bound =
      parts.is_unix() ? BindUnix(address, parts.socket_path) : BindTcp(address, parts);
  if (!bound.ok()) return std::move(bound).status();
  const int wake_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return std::unique_ptr<Listener>(
      new Listener(bound->fd, wake_fd, OpenSpare(), bound->address, bound->socket_path));
}

Listener::Listener(int fd, int wake_fd, int spare_fd, std::string address, std::string socket_path)
    : fd_(fd),
      wake_fd_(wake_fd),
      spare_fd_(spare_fd),
      address_(std::move(address)),
      socket_path_(std::move(socket_path)) {}

Listener::~Listener() {
  Close();
  if (spare_fd_ >= 0) ::close(spare_fd_);
  ::close(wake_fd_);
}

void Listener::Start(Sink sink) {
  sink_ = std::move(sink);
  thread_ = std::thread([this] { Loop(); });
}

void Listener::Close() {
  if (closed_.exchange(true)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_fd_, &one, sizeof one);
  if (thread_.joinable()) thread_.join();
  if (!socket_path_.empty()) ::unlink(socket_path_.c_str());
  ::close(fd_);
}

void Listener::Loop() {
  pollfd waits[2] = {{fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  while (!closed_.load()) {
    const int ready = ::poll(waits, 2, -1);
    if (ready < 0 && errno != EINTR) return;
    if (ready > 0 && (waits[0].revents & POLLIN) != 0 && waits[1].revents == 0) AcceptOne();
  }
}

void Listener::AcceptOne() {
  const int fd = ::accept4(fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) OnTableFull();
    return;  // ECONNABORTED and the like: that peer has gone already
  }
  if (IsTableNearlyFull(fd)) {
    ::close(fd);
    if (!std::exchange(has_warned_, true)) {
      spdlog::warn("{}: the file table is nearly full, refusing connections", address_);
    }
    return;
  }
  if (socket_path_.empty()) {
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  sink_(fd_, fd);
}

// Without this the waiting connection would keep the loop spinning. Closing it tells the peer to
// try again.
void Listener::OnTableFull() {
  if (spare_fd_ >= 0) {
    ::close(spare_fd_);
    const int fd = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) ::close(fd);
    spare_fd_ = OpenSpare();
    if (fd >= 0 && spare_fd_ >= 0) return;
  }
  pollfd stop{wake_fd_, POLLIN, 0};
  ::poll(&stop, 1, kTableFullPauseMs);
  if (spare_fd_ < 0) spare_fd_ = OpenSpare();
}

}  // namespace longspan
