// The gRPC edge as a whole: listeners, services, health, reflection, the tokenizer and output
// threads. The program builds one, builds the engine on its outbox, and tells it when the model is
// loaded. It knows nothing of flags, signals or metrics.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/clock.h"
#include "core/status.h"
#include "engine/token_stream.h"
#include "server/request_observer.h"
#include "server/server_context.h"

namespace longspan {

struct GrpcServerOptions {
  std::string listen = "127.0.0.1:50051";  // HOST:PORT, [IPV6]:PORT or unix:PATH; port 0 picks one
  std::string admin_listen;                // likewise; empty: no Admin service
  bool reflection = true;                  // on listen
  bool admin_reflection = true;            // on admin_listen
  int64_t max_message_bytes = 64 * 1024 * 1024;  // received
  Duration keepalive_time = std::chrono::seconds(30);
  Duration keepalive_timeout = std::chrono::seconds(10);
  int32_t max_concurrent_streams = 1024;           // per connection
  int64_t max_metadata_bytes = 16 * 1024;          // more is RESOURCE_EXHAUSTED from the handler
  int64_t max_pending_tokens = 256;                // per request: beyond it the reader is slow
  int32_t max_tokenizer_jobs = 1024;               // waiting to be parsed or tokenized
  int64_t max_tokenizer_bytes = 64 * 1024 * 1024;  // of the large ones of these jobs
};

// Public methods are thread-safe unless said otherwise. `info`, clock, observer and lifecycle
// handler are borrowed as ServerContext says and outlive the server.
//
// Life:  Start -> SetServing -> StartDraining -> (engine drains and stops) -> Shutdown ->
// destructor The engine is destroyed after Shutdown and before the GrpcServer (its outbox).
class GrpcServer {
 public:
  // Binds and answers at once: health NOT_SERVING, Generate UNAVAILABLE. kAlreadyExists: the
  // address is in use; kInvalidArgument: it is malformed; kUnavailable: other errors of the system.
  static StatusOr<std::unique_ptr<GrpcServer>> Start(const GrpcServerOptions& options,
                                                     ServerInfo info, const Clock& clock,
                                                     RequestObserver& observer,
                                                     LifecycleHandler& lifecycle);
  ~GrpcServer();  // shuts down at once if that has not happened
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  // What was bound: "127.0.0.1:43121" or "unix:PATH".
  const std::string& address() const;
  const std::string& admin_address() const;  // empty when there is none

  // For the engine.
  Outbox& outbox();

  // The warm-up step has run: health SERVING, requests are accepted. Both outlive Shutdown.
  void SetServing(const ServedModel& model, Engine& engine);
  // Health NOT_SERVING; new requests and those that are not tokenized yet get UNAVAILABLE, and so
  // do Tokenize and Detokenize; running requests go on, and probes are still answered. Does not
  // tell the engine. The thread that calls Shutdown.
  void StartDraining();
  // The device is lost: as draining, and the state says so.
  void SetFailed();
  // Ends: closes the listeners, waits up to `grace` for open calls to be answered, then cuts them.
  // Idempotent; one thread.
  void Shutdown(Duration grace);

  ServerContext& context();
  // Generate calls whose client does not have everything yet: finished ones with a tail on its way
  // are among them.
  int32_t num_open_requests() const;

 private:
  struct Parts;
  explicit GrpcServer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace longspan
