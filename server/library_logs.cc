// Hooks into the log functions of gRPC and Protobuf; at most one line a second comes through for
// both together, and the next one says how many were dropped.
#include "server/library_logs.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <chrono>
#include <cstdint>
#include <string_view>

#include "core/log.h"
#include "server/rate_limit.h"

namespace longspan {
namespace {

void Say(const char* library, std::string_view message) {
  // One line a second for both libraries together; the next line says how many were left out.
  static RateLimit limit(std::chrono::seconds(1));
  const int64_t dropped = limit.Take();
  if (dropped < 0) return;
  spdlog::warn("{}: {}{}", library, Escaped(message, 300),
               dropped > 0 ? fmt::format(" ({} more lines)", dropped) : "");
}

void OnGrpcLog(gpr_log_func_args* args) { Say("grpc", args->message); }

void OnProtobufLog(google::protobuf::LogLevel, const char*, int, const std::string& message) {
  Say("protobuf", message);
}

}  // namespace

void RedirectLibraryLogs() {
  gpr_set_log_function(&OnGrpcLog);
  google::protobuf::SetLogHandler(&OnProtobufLog);
}

}  // namespace longspan
