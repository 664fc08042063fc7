// Builds one gRPC server per listener with all its settings, behind our own accept loop
// (listener.h), and holds every part of the edge in the order in which they may be destroyed.
#include "server/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/log.h"
#include "server/admin_service.h"
#include "server/inference_service.h"
#include "server/library_logs.h"
#include "server/listener.h"
#include "server/output_thread.h"
#include "server/preface_gate.h"
#include "server/process_memory.h"
#include "server/request_registry.h"
#include "server/tokenizer_thread.h"
#include "server/wall_clock_watch.h"

namespace longspan {
namespace {

// gRPC itself takes so much, and our handlers refuse above max_metadata_bytes: gRPC's limit ends
// the whole connection, neighbours included. Ten thousand short keys (380 KiB) stay below it; one
// frame of 16 KiB that names a table entry in every byte (800 KiB) does not.
constexpr int kMaxTransportMetadataBytes = 512 * 1024;
// Reflection is gRPC's only blocking service here and gives a thread to each of its streams.
constexpr int kMaxServerThreads = 16;

constexpr const char* kInferenceService = "longspan.v1.Inference";
constexpr const char* kAdminService = "longspan.v1.Admin";

// Linking reflection registers it with every server of the process; this takes it out of those that
// must not have it.
class ReflectionOption final : public grpc::ServerBuilderOption {
 public:
  explicit ReflectionOption(bool enabled) : enabled_(enabled) {}
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    grpc::reflection::ProtoServerReflectionPlugin reflection;
    std::erase_if(*plugins,
                  [&](const auto& plugin) { return plugin->name() == reflection.name(); });
    if (enabled_) {
      plugins->push_back(std::make_unique<grpc::reflection::ProtoServerReflectionPlugin>());
    }
  }

 private:
  const bool enabled_;
};

int Milliseconds(Duration duration) {
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

void Configure(const GrpcServerOptions& options, bool reflection, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.SetMaxSendMessageSize(-1);  // ours are small by construction
  // gRPC unpacks a message whole before it looks at the size: 64 MiB of gzip may be 64 GiB.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxTransportMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams);
  // Gateways ping idle connections and silent streams: every ping is allowed.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  // Our own pings find peers that vanished, however long a stream is silent.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive_time));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             Milliseconds(options.keepalive_timeout));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kMaxReadChunkBytes);
  builder.SetResourceQuota(grpc::ResourceQuota("longspan").SetMaxThreads(kMaxServerThreads));
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder.SetOption(std::make_unique<ReflectionOption>(reflection));
}

}  // namespace

// One gRPC server behind one of our listeners.
struct Endpoint {
  std::unique_ptr<Listener> listener;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<PrefaceGate> gate;

  Status Open(const std::string& address, const GrpcServerOptions& options, bool reflection,
              grpc::Service& service);
  void Start();
  void SetServing(const char* service, bool serving);
  void Shutdown(std::chrono::system_clock::time_point deadline);
};

Status Endpoint::Open(const std::string& address, const GrpcServerOptions& options, bool reflection,
                      grpc::Service& service) {
  ASSIGN_OR_RETURN(listener, Listener::Bind(address));
  grpc::ServerBuilder builder;
  Configure(options, reflection, builder);
  builder.RegisterService(&service);
  acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  server = builder.BuildAndStart();
  if (server == nullptr) {
    return MakeStatus(absl::StatusCode::kUnavailable, "{}: gRPC cannot start", address);
  }
  return absl::OkStatus();
}

// Accept loop, gate, gRPC.
void Endpoint::Start() {
  gate = std::make_unique<PrefaceGate>(listener->address(), [this](int listener_fd, int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener_fd;
    connection.fd = fd;
    acceptor->HandleNewConnection(&connection);
  });
  listener->Start([this](int listener_fd, int fd) { gate->Take(listener_fd, fd); });
}

void Endpoint::SetServing(const char* service, bool serving) {
  if (server == nullptr) return;
  grpc::HealthCheckServiceInterface* health = server->GetHealthCheckService();
  health->SetServingStatus("", serving);
  health->SetServingStatus(service, serving);
}

void Endpoint::Shutdown(std::chrono::system_clock::time_point deadline) {
  if (listener != nullptr) listener->Close();
  gate.reset();
  if (server != nullptr) server->Shutdown(deadline);
}

// In the order of construction; destroyed in reverse, so that nothing outlives what it borrows.
struct GrpcServer::Parts {
  Parts(const GrpcServerOptions& server_options, ServerInfo info, const Clock& clock,
        RequestObserver& observer, LifecycleHandler& lifecycle)
      : context(std::move(info), clock, observer, lifecycle),
        tokenizer(clock, server_options.max_tokenizer_jobs, server_options.max_tokenizer_bytes),
        output(outbox),
        inference(context, registry, tokenizer,
                  {server_options.max_metadata_bytes, server_options.max_pending_tokens}),
        admin(context, registry, server_options.max_metadata_bytes),
        clock_watch([this] {
          spdlog::warn("the wall clock was set");
          timer_waker.Wake();
        }) {}

  ServerContext context;
  RequestRegistry registry;
  Outbox outbox;
  TokenizerThreads tokenizer;
  OutputThread output;
  InferenceService inference;
  AdminService admin;
  Endpoint main;
  Endpoint side;            // Admin; empty when there is none
  std::mutex health_mutex;  // phase and health change together
  std::string no_address;
  bool is_shut_down = false;
  GrpcTimerWaker timer_waker;
  WallClockWatch clock_watch;

  void SetHealth(bool serving) {
    main.SetServing(kInferenceService, serving);
    side.SetServing(kAdminService, serving);
  }
};

StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcServerOptions& options,
                                                        ServerInfo info, const Clock& clock,
                                                        RequestObserver& observer,
                                                        LifecycleHandler& lifecycle) {
  RedirectLibraryLogs();
  grpc::EnableDefaultHealthCheckService(true);
  auto parts = std::make_unique<Parts>(options, std::move(info), clock, observer, lifecycle);
  RETURN_IF_ERROR(parts->main.Open(options.listen, options, options.reflection, parts->inference));
  if (!options.admin_listen.empty()) {
    RETURN_IF_ERROR(
        parts->side.Open(options.admin_listen, options, options.admin_reflection, parts->admin));
  }
  parts->SetHealth(false);
  for (Endpoint* endpoint : {&parts->main, &parts->side}) {
    if (endpoint->listener == nullptr) continue;
    endpoint->Start();
  }
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(parts)));
}

GrpcServer::GrpcServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

GrpcServer::~GrpcServer() { Shutdown(Duration::zero()); }

const std::string& GrpcServer::address() const { return parts_->main.listener->address(); }

const std::string& GrpcServer::admin_address() const {
  return parts_->side.listener == nullptr ? parts_->no_address : parts_->side.listener->address();
}

Outbox& GrpcServer::outbox() { return parts_->outbox; }

void GrpcServer::SetServing(const ServedModel& model, Engine& engine) {
  const std::lock_guard lock(parts_->health_mutex);
  parts_->context.SetServing(model, engine);
  // A drain may have come while the model was loading.
  parts_->SetHealth(parts_->context.phase() == ServerPhase::kServing);
}

// What still waits to be tokenized has not reached the engine: it counts as new and is refused now.
void GrpcServer::StartDraining() {
  {
    const std::lock_guard lock(parts_->health_mutex);
    parts_->context.SetDraining();
    parts_->SetHealth(false);
  }
  parts_->tokenizer.Stop();
}

void GrpcServer::SetFailed() {
  const std::lock_guard lock(parts_->health_mutex);
  parts_->context.SetFailed();
  parts_->SetHealth(false);
}

// The output thread lives to the end, since what the engine said last is still on its way.
void GrpcServer::Shutdown(Duration grace) {
  if (std::exchange(parts_->is_shut_down, true)) return;
  StartDraining();
  const auto deadline = std::chrono::system_clock::now() +
                        std::chrono::duration_cast<std::chrono::system_clock::duration>(grace);
  parts_->main.Shutdown(deadline);
  parts_->side.Shutdown(deadline);
}

ServerContext& GrpcServer::context() { return parts_->context; }

int32_t GrpcServer::num_open_requests() const { return parts_->inference.num_open_calls(); }

}  // namespace longspan
