// `longspan bench`: open- or closed-loop load on a server, measured from the client's side.
#pragma once

#include <cstdint>
#include <string>

#include "clients/connection.h"
#include "clients/load_plan.h"

namespace longspan {

struct BenchOptions {
  LoadPlanOptions plan;         // vocab_size is asked from the server
  int32_t max_concurrency = 0;  // in-flight requests at most; 0: no bound
  std::string json_file;        // also write the report there
  bool progress = true;         // a bar on standard error
};

// Returns the exit code: 0 when every request completed, else the gRPC code + 64 of the first that
// did not; 2 when the report cannot be written.
int RunBench(Connection& connection, const BenchOptions& options);

}  // namespace longspan
