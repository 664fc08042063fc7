// What all handlers share: bytes to message and back, so that a malformed message is
// INVALID_ARGUMENT and not UNIMPLEMENTED; the limit on metadata; a unary call that may be answered
// later and from another thread.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/clock.h"
#include "server/generate_call.h"
#include "server/request_observer.h"

namespace longspan {

// Replies of unary calls; streamed ones are smaller by construction.
inline constexpr size_t kMaxReplyBytes = 4'000'000;

// RESOURCE_EXHAUSTED when keys and values together are larger.
grpc::Status CheckMetadata(const grpc::CallbackServerContext& context, int64_t max_bytes);

// Parses without another copy of the bytes. INVALID_ARGUMENT when malformed (bad UTF-8 in a string
// too).
grpc::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message);

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

// Arrival now; the call's deadline becomes the clock's time here and nowhere else.
CallTimes TimesOf(const grpc::CallbackServerContext& context, const Clock& clock);

// The W3C trace context of a call, "00-TRACE-SPAN-FLAGS"; empty when there is none or it is not
// well-formed, as that standard wants.
std::string TraceParentOf(const grpc::CallbackServerContext& context);
bool IsTraceParent(std::string_view text);

// One unary call. The first of Reply, Fail and the client's cancel ends it; the others do nothing.
// Keeps itself alive until gRPC is done; others hold it as long as they like.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  // reply: gRPC's, filled before the end. The observer outlives the call.
  static std::shared_ptr<UnaryCall> Create(RequestObserver& observer, const char* method,
                                           grpc::ByteBuffer* reply);

  // Any thread. RESOURCE_EXHAUSTED when the message is too large to send.
  void Reply(const google::protobuf::Message& message);
  void Fail(const grpc::Status& status);
  const std::atomic<bool>* cancelled() const { return &ended_; }

 private:
  UnaryCall(RequestObserver& observer, const char* method, grpc::ByteBuffer* reply)
      : observer_(observer), method_(method), reply_(reply) {}
  void OnCancel() override;
  void OnDone() override;

  RequestObserver& observer_;
  const char* const method_;
  grpc::ByteBuffer* const reply_;
  std::atomic<bool> ended_{false};
  std::shared_ptr<UnaryCall> self_;
};

// The frame of every unary handler: limits, parsing, counting. handle(request, call) answers the
// call, at once or later.
template <typename Request, typename Handle>
grpc::ServerUnaryReactor* HandleUnary(RequestObserver& observer, const char* method,
                                      int64_t max_metadata_bytes,
                                      const grpc::CallbackServerContext& context,
                                      const grpc::ByteBuffer& bytes, grpc::ByteBuffer* reply,
                                      Handle&& handle) {
  const std::shared_ptr<UnaryCall> call = UnaryCall::Create(observer, method, reply);
  Request request;
  grpc::Status status = CheckMetadata(context, max_metadata_bytes);
  if (status.ok()) status = ParseMessage(bytes, request);
  if (status.ok()) {
    handle(request, call);
  } else {
    call->Fail(status);
  }
  return call.get();
}

}  // namespace longspan
