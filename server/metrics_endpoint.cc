#include "server/metrics_endpoint.h"

#include <prometheus/exposer.h>

#include <exception>
#include <utility>
#include <vector>

namespace longspan {

MetricsEndpoint::MetricsEndpoint(std::unique_ptr<prometheus::Exposer> exposer, std::string address)
    : exposer_(std::move(exposer)), address_(std::move(address)) {}

MetricsEndpoint::~MetricsEndpoint() = default;

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
