// The HTTP listener of /metrics. Eight threads and a time-out of one second, so that a scraper that
// hangs blocks nobody.
#pragma once

#include <memory>
#include <string>

#include "core/status.h"
#include "server/metrics.h"

namespace prometheus {
class Exposer;
}

namespace longspan {

class MetricsEndpoint {
 public:
  // address: HOST:PORT; port 0 picks one. kAlreadyExists when the address is in use.
  static StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const std::string& address,
                                                          const Metrics& metrics);
  ~MetricsEndpoint();

  const std::string& address() const { return address_; }  // as bound

 private:
  MetricsEndpoint(std::unique_ptr<prometheus::Exposer> exposer, std::string address);

  std::unique_ptr<prometheus::Exposer> exposer_;
  std::string address_;
};

}  // namespace longspan
