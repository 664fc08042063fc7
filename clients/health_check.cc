// One Check call with a deadline of five seconds: a probe has to answer, also when the server does
// not.
#include "clients/health_check.h"

#include <chrono>
#include <cstdio>

#include "grpc/health/v1/health.grpc.pb.h"

namespace longspan {

int RunHealthCheck(const Connection& connection, const std::string& service) {
  using grpc::health::v1::HealthCheckResponse;
  const auto stub = grpc::health::v1::Health::NewStub(connection.channel);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  HealthCheckResponse reply;
  const grpc::Status status = stub->Check(&context, request, &reply);
  if (!status.ok()) return ExitCodeOf(status);
  std::printf("%s\n", HealthCheckResponse::ServingStatus_Name(reply.status()).c_str());
  return reply.status() == HealthCheckResponse::SERVING ? 0 : 64 + grpc::UNAVAILABLE;
}

}  // namespace longspan
