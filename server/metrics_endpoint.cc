// Starts and stops the metrics library's HTTP server. It throws when it cannot bind, which is
// caught here, and looks at its stop flag only when somebody connects, which is why the destructor
// knocks.
#include "server/metrics_endpoint.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <prometheus/exposer.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

namespace longspan {
namespace {

constexpr auto kKnockInterval = std::chrono::milliseconds(10);

// Connects to HOST:PORT and leaves again. An address that stands for all is reached as well.
void Knock(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found) != 0) return;
  const int fd =
      ::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, found->ai_protocol);
  if (fd >= 0) {
    (void)::connect(fd, found->ai_addr, found->ai_addrlen);
    ::close(fd);
  }
  freeaddrinfo(found);
}

}  // namespace

MetricsEndpoint::MetricsEndpoint(std::unique_ptr<prometheus::Exposer> exposer, std::string address)
    : exposer_(std::move(exposer)), address_(std::move(address)) {}

// The library looks at its stop flag when somebody connects, else every two seconds: too long for a
// process that is asked to end or refuses to start. So it gets visitors until it has stopped.
MetricsEndpoint::~MetricsEndpoint() {
  std::atomic<bool> has_stopped{false};
  std::thread visitor([&] {
    while (!has_stopped.load()) {
      Knock(address_);
      std::this_thread::sleep_for(kKnockInterval);
    }
  });
  exposer_.reset();
  has_stopped.store(true);
  visitor.join();
}

StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(const std::string& address,
                                                                  const Metrics& metrics) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return InvalidArgument("--metrics-listen: \"{}\" is not HOST:PORT", address);
  }
  const std::string host = address.substr(0, colon);
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
        "listening_ports", address, "num_threads", "8", "request_timeout_ms", "1000"});
    for (const auto& collectable : metrics.collectables())
      exposer->RegisterCollectable(collectable);
    const std::vector<int> ports = exposer->GetListeningPorts();
    const std::string bound = ports.empty() ? address : fmt::format("{}:{}", host, ports.front());
    return std::unique_ptr<MetricsEndpoint>(new MetricsEndpoint(std::move(exposer), bound));
  } catch (const std::exception&) {
    return MakeStatus(
        absl::StatusCode::kAlreadyExists,
        "--metrics-listen: cannot listen on {} (in use, or not an address of this machine)",
        address);
  }
}

}  // namespace longspan
