// The order of start and end, and what decides the exit code. Signals and Admin.Drain only set a
// deadline under the mutex; the main thread looks at it and does the work. Also translates flags
// and model data between the folders' structs.
#include "server/application.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <tuple>
#include <utility>

#include "core/log.h"
#include "core/machine.h"
#include "server/address_space.h"
#include "server/bind_address.h"
#include "server/signals.h"
#include "server/step_watchdog.h"
#include "server/version.h"
#include "tokenizer/gguf_vocabulary.h"
#include "tokenizer/tokenizer_json.h"

namespace longspan {
namespace {

using std::chrono::milliseconds;

constexpr Duration kDrainPoll =
    milliseconds(20);  // while draining only: a second signal, the last writes
constexpr Duration kStuckNotice = milliseconds(200);  // for probes and watchers to hear of it
constexpr Duration kLastWrites =
    milliseconds(2000);  // for answers that are decided but not yet read

Duration FromSeconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

ExitCode Fail(ExitCode code, const Status& status) {
  std::fprintf(stderr, "longspan-server: %s\n", StatusMessage(status).c_str());
  return code;
}

void WarnUnlessOk(const Status& status) {
  if (!status.ok()) spdlog::warn("{}", StatusMessage(status));
}

std::string MachineArchitecture() {
  utsname name{};
  return uname(&name) == 0 ? name.machine : "unknown";
}

ServingCoreOptions CoreOptions(const ServerOptions& options) {
  ServingCoreOptions core;
  core.model_path = options.model;
  core.dummy_weights = options.load_format == "dummy";
  core.check_weights = options.check_weights;
  core.threads = static_cast<int>(options.threads);
  core.weight_dtype = options.dtype;
  core.kv_cache_dtype = options.kv_cache_dtype;
  core.matmul_precision = options.matmul_precision;
  core.kv_cache_memory_bytes = options.kv_cache_memory_bytes;
  core.num_blocks = static_cast<int32_t>(options.kv_blocks);
  core.block_size = static_cast<int32_t>(options.block_size);
  core.enable_prefix_caching = options.enable_prefix_caching;
  core.max_model_len = static_cast<int32_t>(options.max_model_len);
  core.num_splits = static_cast<int>(options.num_splits);
  core.poison_freed = options.poison_freed;
  core.fault = options.fault;
  core.engine.scheduler.max_num_seqs = static_cast<int32_t>(options.max_num_seqs);
  core.engine.scheduler.max_num_batched_tokens =
      static_cast<int32_t>(options.max_num_batched_tokens);
  core.engine.scheduler.slow_reader_timeout = FromSeconds(options.slow_reader_timeout);
  core.engine.max_queued_requests = static_cast<int32_t>(options.max_queued_requests);
  core.engine.max_queued_tokens = options.max_queued_tokens;
  core.engine.step_delay = FromSeconds(options.step_delay_ms / 1000.0);
  core.engine.start_paused = options.start_paused;
  return core;
}

std::optional<int64_t> IdOrNone(int64_t id) {
  return id >= 0 ? std::optional<int64_t>(id) : std::nullopt;
}

GgufVocabulary ToGgufVocabulary(const VocabularyData& data) {
  GgufVocabulary vocabulary;
  vocabulary.model = data.model;
  vocabulary.pre = data.pre_tokenizer;
  vocabulary.tokens = data.tokens;
  vocabulary.token_types = data.token_types;
  vocabulary.merges = data.merges;
  vocabulary.bos_id = IdOrNone(data.bos_id);
  vocabulary.eos_id = IdOrNone(data.eos_id);
  vocabulary.unk_id = IdOrNone(data.unknown_id);
  vocabulary.add_bos = data.add_bos;
  vocabulary.add_eos = data.add_eos;
  return vocabulary;
}

TokenizerJsonOptions ToTokenizerJsonOptions(const ModelConfig& config) {
  TokenizerJsonOptions options;
  options.bos_id = IdOrNone(ToInt(config.bos_token_id));
  if (!config.eos_token_ids.empty()) options.eos_id = ToInt(config.eos_token_ids.front());
  return options;
}

}  // namespace

Application::Application(ServerOptions options) : options_(std::move(options)) {}

Application::~Application() {
  if (server_) server_->Shutdown(Duration::zero());
  core_.reset();
}

ExitCode Application::Run() {
  spdlog::level::level_enum level = spdlog::level::info;
  ParseLogLevel(options_.log_level, level);
  SetUpLogging(options_.log_format == "json" ? LogFormat::kJson : LogFormat::kText, level);
  if (const ExitCode code = Bind(); code != ExitCode::kOk) return code;
  const SignalThread signals([this](int number) { OnSignal(number); });
  if (const ExitCode code = Load(); code != ExitCode::kOk) return code;
  return options_.check ? ExitCode::kOk : Serve();
}

ExitCode Application::Bind() {
  const bool has_default_admin = options_.admin_listen.empty();
  if (has_default_admin) options_.admin_listen = DefaultAdminAddress();
  const bool with_metrics = options_.metrics_listen != "off";
  const std::tuple<const char*, ListenerKind, std::string> listeners[] = {
      {"--listen", ListenerKind::kInference, options_.listen},
      {"--admin-listen", ListenerKind::kAdmin, options_.admin_listen},
      {"--metrics-listen", ListenerKind::kMetrics, options_.metrics_listen}};
  for (const auto& [flag, kind, address] : listeners) {
    if (address == "off" && kind != ListenerKind::kInference) continue;
    const Status status = CheckBindAddress(flag, kind, address, options_.insecure_bind);
    if (!status.ok()) return Fail(ExitCode::kOptions, status);
  }
  metrics_ =
      std::make_unique<Metrics>(Metrics::BuildInfo{kVersion, kCommit, "cpu", MachineArchitecture()},
                                options_.vllm_metrics == "on");
  if (options_.check) return ExitCode::kOk;
  const int64_t address_space = AddressSpaceToServe(static_cast<int>(options_.threads));
  if (const Status status = CheckAddressSpace(address_space); !status.ok()) {
    return Fail(ExitCode::kResources, status);
  }
  // One that a killed server left would say that this one serves.
  if (const Status status = RemoveReadyFile(); !status.ok()) {
    return Fail(ExitCode::kFiles, status);
  }
  if (has_default_admin) RemoveDeadAdminSockets(options_.admin_listen);
  if (with_metrics) {
    auto endpoint = MetricsEndpoint::Start(options_.metrics_listen, *metrics_);
    if (!endpoint.ok()) return Fail(ExitCode::kResources, endpoint.status());
    endpoint_ = *std::move(endpoint);
  }
  GrpcServerOptions grpc;
  grpc.listen = options_.listen;
  grpc.admin_listen = options_.admin_listen == "off" ? "" : options_.admin_listen;
  const auto has_reflection = [this](const std::string& address) {
    return options_.reflection == "on" ||
           (options_.reflection == "auto" && IsLocalAddress(address));
  };
  grpc.reflection = has_reflection(grpc.listen);
  grpc.admin_reflection = has_reflection(grpc.admin_listen);
  grpc.max_message_bytes = options_.max_message_bytes;
  grpc.keepalive_time = FromSeconds(options_.keepalive_time);
  grpc.keepalive_timeout = FromSeconds(options_.keepalive_timeout);
  grpc.max_pending_tokens = options_.max_pending_tokens;
  ServerInfo info;
  info.version = kVersion;
  info.commit = kCommit;
  info.devices.push_back(
      {"cpu", MachineArchitecture(), MemoryLimitBytes(), [] { return ResidentMemoryBytes(); }});
  info.flags = OptionValues(options_);
  info.start_time = clock_.Now();
  auto server = GrpcServer::Start(grpc, std::move(info), clock_, *metrics_, *this);
  if (!server.ok()) {
    const bool bad_option = server.status().code() == absl::StatusCode::kInvalidArgument;
    return Fail(bad_option ? ExitCode::kOptions : ExitCode::kResources, server.status());
  }
  server_ = *std::move(server);
  spdlog::info("listening on {} (admin {}, metrics {}); loading {}", server_->address(),
               server_->admin_address().empty() ? "off" : server_->admin_address(),
               endpoint_ ? endpoint_->address() : "off", Escaped(options_.model, 1024));
  return ExitCode::kOk;
}

ExitCode Application::Load() {
  ServingCoreOptions core_options = CoreOptions(options_);
  core_options.engine.on_fatal = [this] {
    const std::lock_guard lock(mutex_);
    device_lost_ = true;
    changed_.notify_all();
  };
  core_options.on_vocabulary = [this](const ModelConfig& config, const VocabularyData& data) {
    return MakeTokenizer(config, data);
  };
  core_options.cancelled = &cancel_loading_;
  Outbox unused;  // --check serves nothing
  ServingCore::Failure failure{};
  auto core = ServingCore::Load(core_options, clock_, server_ ? server_->outbox() : unused,
                                *metrics_, failure);
  if (absl::IsCancelled(core.status())) return ExitCode::kOk;  // Serve ends it
  if (!core.ok()) {
    const ExitCode code = failure == ServingCore::Failure::kOptions     ? ExitCode::kOptions
                          : failure == ServingCore::Failure::kResources ? ExitCode::kResources
                                                                        : ExitCode::kFiles;
    return Fail(code, core.status());
  }
  core_ = *std::move(core);
  if (options_.check) {
    core_.reset();
    return ExitCode::kOk;
  }
  const ModelConfig& config = core_->config();
  const std::string name =
      options_.served_model_name.empty() ? config.name : options_.served_model_name;
  metrics_->SetModel({.model_name = name,
                      .block_size = core_->block_size(),
                      .num_blocks = core_->num_blocks(),
                      .kv_bytes_per_token = core_->kv_bytes_per_token(),
                      .kv_cache_bytes = core_->kv_pool_bytes(),
                      .weights_bytes = core_->weights_bytes(),
                      .workspace_bytes = core_->workspace_bytes(),
                      .read_ceiling_bytes_per_second = core_->read_bandwidth_bytes_per_second(),
                      .config = {{"model_name", name},
                                 {"max_model_len", std::to_string(core_->max_model_len())},
                                 {"kv_cache_dtype", std::string(DTypeName(core_->kv_dtype()))},
                                 {"matmul_precision", core_->matmul_precision()},
                                 {"threads", std::to_string(core_->threads())}}});
  model_ = ServedModel{.name = name,
                       .config = config,
                       .max_model_len = core_->max_model_len(),
                       .block_size = core_->block_size(),
                       .num_blocks = core_->num_blocks(),
                       .kv_dtype = core_->kv_dtype(),
                       .kv_bytes_per_token = core_->kv_bytes_per_token(),
                       .tokenizer = tokenizer_.get(),
                       .chosen_flags = ChosenFlags(name)};
  return ExitCode::kOk;
}

// What stands behind "auto", 0, an empty name and port 0.
std::map<std::string, std::string> Application::ChosenFlags(const std::string& model_name) const {
  const std::string& admin = server_->admin_address();
  return {{"served-model-name", model_name},
          {"device", "cpu"},
          {"matmul-precision", core_->matmul_precision()},
          {"threads", std::to_string(core_->threads())},
          {"kv-cache-dtype", std::string(DTypeName(core_->kv_dtype()))},
          {"kv-cache-memory-bytes", std::to_string(core_->kv_pool_bytes())},
          {"kv-blocks", std::to_string(core_->num_blocks())},
          {"max-model-len", std::to_string(core_->max_model_len())},
          {"listen", server_->address()},
          {"admin-listen", admin.empty() ? "off" : admin},
          {"metrics-listen", endpoint_ ? endpoint_->address() : "off"}};
}

// While the model is loading, before its weights are read.
Status Application::MakeTokenizer(const ModelConfig& config, const VocabularyData& data) {
  if (data.empty()) {
    spdlog::warn("the model has no tokenizer: requests must bring token ids");
    return Status();
  }
  auto tokenizer = data.tokenizer_json.empty()
                       ? MakeGgufTokenizer(ToGgufVocabulary(data))
                       : LoadTokenizerJson(data.tokenizer_json, ToTokenizerJsonOptions(config));
  if (!tokenizer.ok()) {
    return InvalidArgument("{}: tokenizer: {}", Escaped(options_.model, 1024),
                           StatusMessage(tokenizer.status()));
  }
  tokenizer_ = *std::move(tokenizer);
  if (tokenizer_->vocab_size() > config.vocab_size) {
    return InvalidArgument("{}: the tokenizer has {} tokens, the model {}",
                           Escaped(options_.model, 1024), tokenizer_->vocab_size(),
                           config.vocab_size);
  }
  return Status();
}

ExitCode Application::Serve() {
  bool is_draining = false;
  {
    const std::lock_guard lock(mutex_);
    loading_ = false;
    is_draining = drain_deadline_.has_value();
  }
  if (is_draining) {  // asked for while the model was loading: never SERVING, not even for a moment
    spdlog::info("stopped while loading");
    server_->Shutdown(kLastWrites);
    return ExitCode::kOk;
  }
  core_->engine().Start();
  const StepWatchdog watchdog([this] { return core_->engine().turn_age(); },
                              FromSeconds(options_.step_timeout),
                              [this](Duration age) { EndStuck(age); });
  server_->SetServing(*model_, core_->engine());
  if (!options_.ready_file.empty()) {
    if (const Status status = WriteReadyFile(); !status.ok()) return Fail(ExitCode::kFiles, status);
  }
  spdlog::info("SERVING {} on {}: {} threads, {} matmul, KV cache {} blocks of {} tokens ({} MiB)",
               Escaped(model_->name), server_->address(), core_->threads(),
               core_->matmul_precision(), core_->num_blocks(), core_->block_size(),
               core_->kv_pool_bytes() >> 20);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return drain_deadline_.has_value() || device_lost_; });
  const bool device_lost = device_lost_;
  lock.unlock();
  return device_lost ? EndAfterDeviceLoss() : Drain();
}

ExitCode Application::Drain() {
  WarnUnlessOk(RemoveReadyFile());
  server_->StartDraining();
  core_->engine().StopAccepting();
  spdlog::info("draining: {} open requests, up to {:.1f} s", server_->num_open_requests(),
               Seconds(DrainDeadline() - clock_.Now()));
  // The deadline is read anew each time: a later request may have brought it forward.
  while (clock_.Now() < DrainDeadline() && !StopNow()) {
    if (core_->engine().WaitIdle(clock_.Now() + kDrainPoll)) break;
  }
  while (server_->num_open_requests() > 0 && clock_.Now() < DrainDeadline() && !StopNow()) {
    std::this_thread::sleep_for(kDrainPoll);
  }
  const int32_t cut = server_->num_open_requests();  // unread ends are among them
  core_->engine().Stop();
  if (core_->engine().fatal_error().has_value()) return EndAfterDeviceLoss();
  server_->Shutdown(kLastWrites);  // returns as soon as every call has its answer
  spdlog::info("stopped; {} requests were open when the drain ended", cut);
  return ExitCode::kOk;
}

ExitCode Application::EndAfterDeviceLoss() {
  WarnUnlessOk(RemoveReadyFile());
  server_->SetFailed();
  core_->engine().Stop();
  server_->Shutdown(kLastWrites);
  return Fail(ExitCode::kFailed, core_->engine().fatal_error().value_or(Status()));
}

// The engine's thread cannot be joined any more, so the process ends without it; open streams end
// with the connection, which clients see as UNAVAILABLE.
void Application::EndStuck(Duration age) {
  server_->SetFailed();
  const ExitCode code =
      Fail(ExitCode::kFailed,
           MakeStatus(absl::StatusCode::kInternal,
                      "the engine is stuck: a step has run for {:.0f} s (limit --step-timeout {})",
                      Seconds(age), options_.step_timeout));
  std::this_thread::sleep_for(kStuckNotice);
  _exit(static_cast<int>(code));
}

void Application::RequestDrain(std::optional<Duration> timeout) {
  const TimePoint deadline = clock_.Now() + timeout.value_or(FromSeconds(options_.drain_timeout));
  const std::lock_guard lock(mutex_);
  if (loading_) cancel_loading_.store(true);
  drain_deadline_ = std::min(drain_deadline_.value_or(deadline), deadline);
  changed_.notify_all();
}

TimePoint Application::DrainDeadline() {
  const std::lock_guard lock(mutex_);
  return drain_deadline_.value_or(TimePoint::max());
}

void Application::OnSignal(int number) {
  if (number == SIGHUP) return;  // nothing to reload
  std::unique_lock lock(mutex_);
  if (number == SIGUSR1) {
    const bool serving = !loading_;
    lock.unlock();
    if (serving && options_.start_paused) core_->engine().EndStartPause();
    return;
  }
  ++num_stop_signals_;
  const bool loading = loading_;
  lock.unlock();
  if (loading) {
    // A tensor may take longer than a supervisor waits; nothing of loading outlives the process.
    spdlog::info("stopped while loading");
    if (server_) server_->Shutdown(Duration::zero());
    _exit(static_cast<int>(ExitCode::kOk));
  }
  RequestDrain(std::nullopt);
}

bool Application::StopNow() {
  const std::lock_guard lock(mutex_);
  return num_stop_signals_ > 1 || device_lost_;
}

Status Application::RemoveReadyFile() const {
  const std::string& path = options_.ready_file;
  if (path.empty()) return Status();
  // A device or a pipe of that name is somebody else's.
  struct stat found;
  if (::lstat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    return InvalidArgument("--ready-file: {} exists and is no regular file", path);
  }
  if (::unlink(path.c_str()) == 0) return Status();
  if (errno == ENOENT || errno == ENOTDIR) return Status();
  return InvalidArgument("--ready-file: cannot replace {}: {}", path, std::strerror(errno));
}

Status Application::WriteReadyFile() const {
  const std::string part = options_.ready_file + ".part";
  {
    std::ofstream file(part, std::ios::trunc);
    file << "listen " << server_->address() << "\nadmin " << server_->admin_address()
         << "\nmetrics " << (endpoint_ ? endpoint_->address() : "off") << "\npid " << getpid()
         << "\n";
    file.flush();
    if (!file) return InvalidArgument("--ready-file: cannot write {}", part);
  }
  std::error_code error;
  std::filesystem::rename(part, options_.ready_file, error);
  if (error)
    return InvalidArgument("--ready-file: cannot write {}: {}", options_.ready_file,
                           error.message());
  return Status();
}

}  // namespace longspan
