// `longspan health`: the standard gRPC health protocol, for exec probes.
#pragma once

#include <string>

#include "clients/connection.h"

namespace longspan {

// 0 when SERVING; 64 + UNAVAILABLE when NOT_SERVING or unreachable; prints the state.
int RunHealthCheck(const Connection& connection, const std::string& service);

}  // namespace longspan
