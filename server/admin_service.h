// longspan.v1.Admin, on its own listener: what an operator may do. Shows ids, states and lengths,
// never text.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "longspan/v1/admin.grpc.pb.h"
#include "server/raw_method.h"
#include "server/request_registry.h"
#include "server/server_context.h"

namespace longspan {

template <typename Service>
using WithRawAdmin = v1::Admin::WithRawCallbackMethod_Drain<
    v1::Admin::WithRawCallbackMethod_ResetPrefixCache<v1::Admin::WithRawCallbackMethod_SetLogLevel<
        v1::Admin::WithRawCallbackMethod_ListRequests<Service>>>>;

// Handlers run on gRPC's threads; borrows everything.
class AdminService final : public WithRawAdmin<v1::Admin::Service> {
 public:
  AdminService(ServerContext& context, RequestRegistry& registry, int64_t max_metadata_bytes);

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* ResetPrefixCache(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* SetLogLevel(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* ListRequests(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* reply) override;

 private:
  ServerContext& context_;
  RequestRegistry& registry_;
  const int64_t max_metadata_bytes_;
};

}  // namespace longspan
