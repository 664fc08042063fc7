// longspan.v1.Inference: one short handler per method. Checking is request_validator.h's, the life
// of a Generate call generate_call.h's.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "longspan/v1/inference.grpc.pb.h"
#include "server/generate_call.h"
#include "server/raw_method.h"
#include "server/request_registry.h"
#include "server/request_validator.h"
#include "server/server_context.h"
#include "server/tokenizer_thread.h"

namespace longspan {

// Every method takes bytes and parses them itself.
template <typename Service>
using WithRawInference = v1::Inference::WithRawCallbackMethod_Generate<
    v1::Inference::WithRawCallbackMethod_Abort<v1::Inference::WithRawCallbackMethod_Tokenize<
        v1::Inference::WithRawCallbackMethod_Detokenize<
            v1::Inference::WithRawCallbackMethod_GetModelInfo<
                v1::Inference::WithRawCallbackMethod_GetServerInfo<
                    v1::Inference::WithRawCallbackMethod_GetLoad<Service>>>>>>>;

struct InferenceLimits {
  int64_t max_metadata_bytes = 16 * 1024;
  int64_t max_pending_tokens = 256;
};

// Handlers run on gRPC's threads and do not work longer than a millisecond: larger messages and all
// text go to a tokenizer thread. Borrows everything.
class InferenceService final : public WithRawInference<v1::Inference::Service> {
 public:
  InferenceService(ServerContext& context, RequestRegistry& registry, TokenizerThreads& tokenizer,
                   const InferenceLimits& limits);

  // Generate calls whose client does not have everything yet, the status included.
  int32_t num_open_calls() const { return num_open_calls_.load(); }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* reply) override;

 private:
  using CallPtr = std::shared_ptr<GenerateCall>;
  // The steps of Generate, each on the thread where its input can be worked on.
  void Receive(const grpc::ByteBuffer& bytes, const CallPtr& call);
  void Parse(const grpc::ByteBuffer& bytes, const CallPtr& call, bool on_tokenizer_thread);
  void ValidateAndSubmit(const v1::GenerateRequest& request, const CallPtr& call);
  void Post(int64_t bytes, const CallPtr& call, std::function<void()> work);

  // Calls work(model, call) on a tokenizer thread, or fails the call.
  template <typename Request, typename Work>
  grpc::ServerUnaryReactor* HandleOnTokenizerThread(const char* method,
                                                    const grpc::CallbackServerContext& context,
                                                    const grpc::ByteBuffer& bytes,
                                                    grpc::ByteBuffer* reply, Work work);

  ServerContext& context_;
  RequestRegistry& registry_;
  TokenizerThreads& tokenizer_;
  const InferenceLimits limits_;
  std::atomic<int32_t> num_open_calls_{0};
};

// OK when requests are accepted, else UNAVAILABLE with the reason.
grpc::Status CheckServing(ServerPhase phase);

}  // namespace longspan
