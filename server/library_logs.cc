// Hooks into the log functions of gRPC and Protobuf; at most one line a second comes through for
// both together, and the next one says how many were dropped.
#include "server/library_logs.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>

#include "core/log.h"

namespace longspan {
namespace {

// One line a second for both libraries together; the next line says how many were left out.
class RateLimit {
 public:
  // The number of lines dropped since the last one, or -1: drop this one too.
  int64_t Take() {
    const int64_t now = std::chrono::duration_cast<std::chrono::seconds>(
                            std::chrono::steady_clock::now().time_since_epoch())
                            .count();
    int64_t last = last_second_.load();
    if (last == now || !last_second_.compare_exchange_strong(last, now)) {
      ++dropped_;
      return -1;
    }
    return dropped_.exchange(0);
  }

 private:
  std::atomic<int64_t> last_second_{-1};
  std::atomic<int64_t> dropped_{0};
};

void Say(const char* library, std::string_view message) {
  static RateLimit limit;
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
