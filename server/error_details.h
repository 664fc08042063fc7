// Errors as they leave the server: gRPC code, a message of the form "field: problem (limit)", and a
// google.rpc.Status with BadRequest or RetryInfo details. Everything together stays under 8 KiB,
// whatever a caller sent; no text of a prompt is ever in it.
#pragma once

#include <grpcpp/support/status.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace longspan {

inline constexpr size_t kMaxErrorMessageBytes = 1024;
// When to come back to a full queue whose pace is not known yet.
inline constexpr double kRetrySecondsBeforeMeasurements = 1.0;

// The problems of one request, the first few of them. A value; one thread.
class Violations {
 public:
  // field: path as in the proto ("sampling.top_p"); description: "problem (limit)". Both are cut
  // and escaped.
  void Add(std::string_view field, std::string_view description);

  bool empty() const { return total_ == 0; }
  int total() const { return total_; }
  // INVALID_ARGUMENT with all kept violations; OK when there are none.
  grpc::Status ToStatus() const;

 private:
  struct Violation {
    std::string field;
    std::string description;
  };
  std::vector<Violation> kept_;
  int total_ = 0;
};

// The same code and message; kInvalidArgument with a "field: problem" message gets a BadRequest
// too.
grpc::Status ToGrpcStatus(const Status& status);

// RESOURCE_EXHAUSTED, and when a retry makes sense, if that is known.
grpc::Status ResourceExhausted(std::string_view message, std::optional<double> retry_after_seconds);

}  // namespace longspan
