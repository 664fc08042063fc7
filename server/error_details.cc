// Builds statuses with details whose parts are cut and escaped one by one, since a message travels
// in an HTTP/2 header that everybody pays for.
#include "server/error_details.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/log.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace longspan {
namespace {

constexpr size_t kMaxKept = 8;
constexpr size_t kMaxFieldBytes = 96;
constexpr size_t kMaxDescriptionBytes = 256;
// An honest "not now": shorter makes clients hammer, longer makes them give up.
constexpr double kMinRetrySeconds = 0.01;
constexpr double kMaxRetrySeconds = 600.0;

// Printable ASCII and bounded: the text travels in a header.
std::string Shown(std::string_view text, size_t max_bytes) {
  // Escaped() quotes what a log line must not hold; quotes and backslashes are fine in a header.
  return Escaped(text, max_bytes).substr(0, max_bytes + 3);
}

grpc::Status WithDetails(grpc::StatusCode code, const std::string& message,
                         const google::protobuf::Message& detail) {
  google::rpc::Status status;
  status.set_code(code);
  status.set_message(message);
  status.add_details()->PackFrom(detail);
  return grpc::Status(code, message, status.SerializeAsString());
}

}  // namespace

void Violations::Add(std::string_view field, std::string_view description) {
  ++total_;
  if (kept_.size() >= kMaxKept) return;
  kept_.push_back({Shown(field, kMaxFieldBytes), Shown(description, kMaxDescriptionBytes)});
}

grpc::Status Violations::ToStatus() const {
  if (empty()) return grpc::Status::OK;
  google::rpc::BadRequest bad_request;
  for (const Violation& violation : kept_) {
    google::rpc::BadRequest::FieldViolation* out = bad_request.add_field_violations();
    out->set_field(violation.field);
    out->set_description(violation.description);
  }
  std::string message = fmt::format("{}: {}", kept_[0].field, kept_[0].description);
  if (total_ > 1) message += fmt::format("; and {} more", total_ - 1);
  return WithDetails(grpc::StatusCode::INVALID_ARGUMENT, message, bad_request);
}

grpc::Status ToGrpcStatus(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string text = StatusMessage(status);
  const std::string message = Shown(text, kMaxErrorMessageBytes);
  if (status.code() == absl::StatusCode::kInvalidArgument) {
    const size_t colon = text.find(": ");
    if (colon != std::string::npos && text.find(' ') > colon) {
      Violations violations;
      violations.Add(std::string_view(text).substr(0, colon),
                     std::string_view(text).substr(colon + 2));
      return violations.ToStatus();
    }
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()), message);
}

grpc::Status ResourceExhausted(std::string_view message,
                               std::optional<double> retry_after_seconds) {
  const std::string shown = Shown(message, kMaxErrorMessageBytes);
  if (!retry_after_seconds) return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, shown);
  const double seconds = std::clamp(*retry_after_seconds, kMinRetrySeconds, kMaxRetrySeconds);
  google::rpc::RetryInfo retry;
  const double whole = std::floor(seconds);
  retry.mutable_retry_delay()->set_seconds(static_cast<int64_t>(whole));
  retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>((seconds - whole) * 1e9));
  return WithDetails(grpc::StatusCode::RESOURCE_EXHAUSTED, shown, retry);
}

}  // namespace longspan
