// Bytes to messages, the metadata limit, deadlines and trace contexts, and the life of a unary
// call. Used by both services; knows nothing of what a method does.
#include "server/raw_method.h"

#include <fmt/format.h>
#include <grpc/support/time.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>

#include <algorithm>
#include <chrono>

#include "server/error_details.h"

namespace longspan {
namespace {

// Beyond this a deadline is none; keeps the sum of clock and rest far from overflow.
constexpr std::chrono::seconds kMaxDeadline = std::chrono::hours(24 * 365);

}  // namespace

grpc::Status CheckMetadata(const grpc::CallbackServerContext& context, int64_t max_bytes) {
  int64_t bytes = 0;
  for (const auto& [key, value] : context.client_metadata()) {
    bytes += static_cast<int64_t>(key.size() + value.size());
  }
  if (bytes <= max_bytes) return grpc::Status::OK;
  return ResourceExhausted(fmt::format("metadata: {} bytes in all (limit {})", bytes, max_bytes),
                           std::nullopt);
}

grpc::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
  grpc::ByteBuffer slices(bytes);  // shares the bytes; the reader wants to own its handle
  bool parsed = false;
  if (slices.Valid()) {
    grpc::ProtoBufferReader reader(&slices);
    parsed = reader.status().ok() && message.ParseFromZeroCopyStream(&reader);
  }
  if (parsed) return grpc::Status::OK;
  Violations violations;
  violations.Add("message", fmt::format("{} bytes that are not a {} (limit: a well-formed message)",
                                        slices.Valid() ? slices.Length() : 0,
                                        message.GetDescriptor()->full_name()));
  return violations.ToStatus();
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message) {
  constexpr int kBlockBytes = 64 * 1024;
  grpc::ByteBuffer out;
  const size_t bytes = message.ByteSizeLong();
  grpc::ProtoBufferWriter writer(&out, kBlockBytes, static_cast<int>(bytes));
  message.SerializeToZeroCopyStream(&writer);
  return out;
}

// gRPC keeps a deadline in monotonic time; its wall-clock form would be another one after a jump.
CallTimes TimesOf(const grpc::CallbackServerContext& context, const Clock& clock) {
  CallTimes times{clock.Now(), std::nullopt};
  const gpr_timespec deadline = gpr_convert_clock_type(context.raw_deadline(), GPR_CLOCK_MONOTONIC);
  const gpr_timespec rest = gpr_time_sub(deadline, gpr_now(GPR_CLOCK_MONOTONIC));
  if (rest.tv_sec < kMaxDeadline.count()) {  // without a deadline it is endless
    times.deadline =
        times.arrival + std::chrono::seconds(rest.tv_sec) + std::chrono::nanoseconds(rest.tv_nsec);
  }
  return times;
}

std::string TraceParentOf(const grpc::CallbackServerContext& context) {
  const auto found = context.client_metadata().find("traceparent");
  if (found == context.client_metadata().end()) return "";
  std::string text(found->second.data(), found->second.size());
  return IsTraceParent(text) ? text : "";
}

// Version, trace id, parent id, flags: 2, 32, 16 and 2 lower-case hexadecimal digits.
bool IsTraceParent(std::string_view text) {
  constexpr std::string_view kForm = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
  if (text.size() != kForm.size()) return false;
  for (size_t i = 0; i < kForm.size(); ++i) {
    const bool is_hex = (text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f');
    if (kForm[i] == 'x' ? !is_hex : text[i] != '-') return false;
  }
  const auto is_zero = [](std::string_view id) {
    return id.find_first_not_of('0') == std::string_view::npos;
  };
  return text.substr(0, 2) != "ff" && !is_zero(text.substr(3, 32)) && !is_zero(text.substr(36, 16));
}

std::shared_ptr<UnaryCall> UnaryCall::Create(RequestObserver& observer, const char* method,
                                             grpc::ByteBuffer* reply) {
  std::shared_ptr<UnaryCall> call(new UnaryCall(observer, method, reply));
  call->self_ = call;
  return call;
}

void UnaryCall::Reply(const google::protobuf::Message& message) {
  const size_t bytes = message.ByteSizeLong();
  if (bytes > kMaxReplyBytes) {
    return Fail(ResourceExhausted(fmt::format("reply: {} bytes (limit {})", bytes, kMaxReplyBytes),
                                  std::nullopt));
  }
  if (ended_.exchange(true)) return;
  *reply_ = SerializeMessage(message);
  observer_.OnRpcEnded(method_, grpc::StatusCode::OK);
  Finish(grpc::Status::OK);
}

void UnaryCall::Fail(const grpc::Status& status) {
  if (ended_.exchange(true)) return;
  observer_.OnRpcEnded(method_, status.error_code());
  Finish(status);
}

void UnaryCall::OnCancel() {
  Fail(grpc::Status(grpc::StatusCode::CANCELLED, "the client cancelled"));
}

void UnaryCall::OnDone() { const std::shared_ptr<UnaryCall> last = std::move(self_); }

}  // namespace longspan
