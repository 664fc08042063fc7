// Names, help texts and buckets of all metrics, and the events that move them. Counters that the
// engine keeps as totals are advanced by the difference to the last report.
#include "server/metrics.h"

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/machine.h"

namespace longspan {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Labels;
using Bounds = prometheus::Histogram::BucketBoundaries;

const Bounds kSeconds = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,  1,
                         2.5,    5,     10,     20,    40,   80,    160,  320, 640,  1280, 2560};
const Bounds kFineSeconds = {0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005,
                             0.001,   0.0025,   0.005,   0.01,   0.05,    0.25};
const Bounds kPowersOfTwo = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

constexpr const char* kOutcomes[] = {"stop", "length", "aborted", "deadline", "rejected", "error"};
// As vLLM counts them: what was refused or failed is no success and has no row.
constexpr const char* kVllmOutcomes[] = {"stop", "length", "abort", "abort", nullptr, nullptr};
constexpr const char* kStepKinds[] = {"prefill", "decode", "mixed"};
constexpr const char* kContextBuckets[] = {"1k",   "4k",   "16k", "64k", "128k",
                                           "256k", "512k", "1m",  "more"};
constexpr int64_t kContextLimits[] = {1 << 10, 1 << 12, 1 << 14, 1 << 16,
                                      1 << 17, 1 << 18, 1 << 19, 1 << 20};

constexpr const char* kCodeNames[] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

size_t ContextBucket(int64_t tokens) {
  size_t bucket = 0;
  while (bucket < std::size(kContextLimits) && tokens > kContextLimits[bucket]) ++bucket;
  return bucket;
}

}  // namespace

// Figures of the process, read when somebody scrapes.
class Metrics::ProcessCollector final : public prometheus::Collectable {
 public:
  ProcessCollector() : start_time_(std::time(nullptr)) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    std::clock_t cpu = std::clock();
    const auto resident = static_cast<double>(ResidentMemoryBytes());
    return {
        Single("process_cpu_seconds_total", "CPU time of the process.",
               prometheus::MetricType::Counter, static_cast<double>(cpu) / CLOCKS_PER_SEC),
        Single("process_resident_memory_bytes", "Resident memory of the process.",
               prometheus::MetricType::Gauge, resident),
        Single("process_start_time_seconds", "Start of the process since the epoch.",
               prometheus::MetricType::Gauge, static_cast<double>(start_time_)),
        Single("process_open_fds", "Open file descriptors.", prometheus::MetricType::Gauge,
               OpenFiles()),
        Single("process_max_fds", "Limit of open file descriptors.", prometheus::MetricType::Gauge,
               static_cast<double>(sysconf(_SC_OPEN_MAX))),
        DeviceMemory(resident, static_cast<double>(MemoryLimitBytes())),
    };
  }

 private:
  static prometheus::MetricFamily Single(const char* name, const char* help,
                                         prometheus::MetricType type, double value) {
    prometheus::MetricFamily family;
    family.name = name;
    family.help = help;
    family.type = type;
    family.metric.resize(1);
    (type == prometheus::MetricType::Counter ? family.metric[0].counter.value
                                             : family.metric[0].gauge.value) = value;
    return family;
  }
  static prometheus::MetricFamily DeviceMemory(double used, double total) {
    prometheus::MetricFamily family;
    family.name = "longspan_device_memory_bytes";
    family.help = "Memory of a device: used by this process, and in all (the container's limit).";
    family.type = prometheus::MetricType::Gauge;
    for (const auto& [state, value] : {std::pair{"used", used}, std::pair{"total", total}}) {
      prometheus::ClientMetric metric;
      metric.label = {{"device", "cpu"}, {"state", state}};
      metric.gauge.value = value;
      family.metric.push_back(metric);
    }
    return family;
  }
  static double OpenFiles() {
    std::error_code error;
    std::filesystem::directory_iterator it("/proc/self/fd", error);
    double count = 0;
    for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) ++count;
    return count;
  }

  const std::time_t start_time_;
};

struct Metrics::VllmNames {
  prometheus::Gauge& running;
  prometheus::Gauge& waiting;
  prometheus::Gauge& kv_usage;
  prometheus::Counter& prompt_tokens;
  prometheus::Counter& generation_tokens;
  prometheus::Counter& preemptions;
  prometheus::Counter& prefix_queries;
  prometheus::Counter& prefix_hits;
  prometheus::Histogram& time_to_first_token;
  prometheus::Histogram& inter_token_latency;
  prometheus::Histogram& e2e_latency;
  prometheus::Histogram& queue_time;
  std::map<std::string, prometheus::Counter*> success;
};

Metrics::Metrics(const BuildInfo& build, bool vllm_names)
    : vllm_names_(vllm_names),
      registry_(std::make_shared<prometheus::Registry>()),
      process_(std::make_shared<ProcessCollector>()),
      requests_running_(
          AddGauge("longspan_requests_running", "Sequences that hold a slot and are not paused.")),
      requests_waiting_(
          AddGauge("longspan_requests_waiting", "Sequences that wait for a slot or blocks.")),
      requests_waiting_tokens_(AddGauge("longspan_requests_waiting_tokens",
                                        "Tokens that waiting sequences have to compute first.")),
      requests_paused_(
          AddGauge("longspan_requests_paused", "Sequences paused because their reader is slow.")),
      grpc_requests_(BuildCounter()
                         .Name("longspan_grpc_requests_total")
                         .Help("Calls that reached a handler, by method and gRPC code.")
                         .Register(*registry_)),
      prompt_tokens_(
          AddCounter("longspan_prompt_tokens_total", "Prompt tokens of started requests.")),
      prompt_tokens_cached_(AddCounter("longspan_prompt_tokens_cached_total",
                                       "Of these, found in the prefix cache.")),
      generation_tokens_(
          AddCounter("longspan_generation_tokens_total", "Generated tokens that were sent.")),
      preemptions_(AddCounter("longspan_preemptions_total", "Sequences that gave up their blocks.",
                              {{"mode", "recompute"}})),
      prefix_queries_(AddCounter("longspan_prefix_cache_queries_total",
                                 "Prompt tokens looked up in the prefix cache.")),
      prefix_hits_(AddCounter("longspan_prefix_cache_hits_total",
                              "Prompt tokens found in the prefix cache.")),
      prefix_evictions_(AddCounter("longspan_prefix_cache_evictions_total",
                                   "Cached blocks given to somebody else.")),
      blocks_free_(AddGauge("longspan_kv_blocks", "KV blocks by state.", {{"state", "free"}})),
      blocks_held_(AddGauge("longspan_kv_blocks", "KV blocks by state.", {{"state", "held"}})),
      blocks_evictable_(
          AddGauge("longspan_kv_blocks", "KV blocks by state.", {{"state", "evictable"}})),
      blocks_capacity_(AddGauge("longspan_kv_blocks_capacity", "KV blocks in all.")),
      blocks_leaked_(
          AddGauge("longspan_kv_blocks_leaked", "KV blocks in no state; anything but 0 is a bug.")),
      kv_cache_bytes_(AddGauge("longspan_kv_cache_bytes", "Size of the KV cache.")),
      kv_cache_usage_(AddGauge("longspan_kv_cache_usage_ratio", "Held blocks over all blocks.")),
      kv_bytes_per_token_(
          AddGauge("longspan_kv_bytes_per_token", "KV bytes of one token in all layers.")),
      weights_bytes_(AddGauge("longspan_weights_bytes", "Memory of the weights.")),
      workspace_bytes_(
          AddGauge("longspan_workspace_bytes", "Memory of activations and scratch space.")),
      time_to_first_token_(AddHistogram("longspan_time_to_first_token_seconds",
                                        "Arrival to first token.", kSeconds)),
      inter_token_latency_(AddHistogram("longspan_inter_token_latency_seconds",
                                        "Gap between two tokens of a sequence.", kSeconds)),
      e2e_latency_(AddHistogram("longspan_e2e_request_latency_seconds",
                                "Arrival to the end of a request that was not refused.", kSeconds)),
      queue_time_(
          AddHistogram("longspan_queue_time_seconds", "Arrival to first scheduling.", kSeconds)),
      prefill_time_(AddHistogram("longspan_prefill_time_seconds",
                                 "First scheduling to first token.", kSeconds)),
      decode_time_(AddHistogram("longspan_decode_time_seconds", "First token to last.", kSeconds)),
      step_scheduler_(AddHistogram("longspan_step_scheduler_seconds",
                                   "Scheduling and bookkeeping of a step.", kFineSeconds)),
      step_tokens_(
          AddHistogram("longspan_step_tokens", "Tokens computed in a step.", kPowersOfTwo)),
      step_sequences_(
          AddHistogram("longspan_step_sequences", "Sequences in a step.", kPowersOfTwo)),
      longest_decode_stall_(AddHistogram(
          "longspan_longest_decode_stall_seconds",
          "Per step, the longest gap since a running sequence's previous token.", kSeconds)),
      kv_bytes_read_(
          AddCounter("longspan_attention_kv_bytes_read_total", "KV bytes that attention read.")),
      kv_bandwidth_(AddGauge("longspan_attention_kv_bandwidth_bytes_per_second",
                             "KV bytes over attention time of the last decode step.")),
      kv_bandwidth_ratio_(AddGauge("longspan_attention_kv_bandwidth_ratio",
                                   "The same over the read bandwidth measured at start.")),
      attention_splits_(AddHistogram("longspan_attention_splits",
                                     "Work items per sequence and KV head in decode attention.",
                                     kPowersOfTwo)) {
  for (size_t i = 0; i < kNumOutcomes; ++i) {
    requests_finished_[i] =
        &AddCounter("longspan_requests_finished_total", "Generate calls that ended, by reason.",
                    {{"reason", kOutcomes[i]}});
  }
  // There from the start: a rate over a series that appears with its first error does not see it.
  for (const char* code : kCodeNames) {
    grpc_requests_.Add({{"method", "longspan.v1.Inference/Generate"}, {"code", code}});
  }
  for (size_t i = 0; i < kNumContextBuckets; ++i) {
    time_per_output_token_[i] =
        &AddHistogram("longspan_time_per_output_token_seconds",
                      "Mean gap between tokens of a finished sequence, by its context.", kSeconds,
                      {{"context_bucket", kContextBuckets[i]}});
  }
  for (size_t i = 0; i < kNumStepKinds; ++i) {
    step_duration_[i] = &AddHistogram("longspan_step_duration_seconds", "Duration of a step.",
                                      kSeconds, {{"kind", kStepKinds[i]}});
  }
  AddGauge("longspan_build_info", "1; what was built.",
           {{"version", build.version},
            {"commit", build.commit},
            {"device", build.device},
            {"arch", build.arch}})
      .Set(1);
}

Metrics::~Metrics() = default;

prometheus::Gauge& Metrics::AddGauge(const std::string& name, const std::string& help,
                                     const Labels& labels) {
  return BuildGauge().Name(name).Help(help).Register(*registry_).Add(labels);
}
prometheus::Counter& Metrics::AddCounter(const std::string& name, const std::string& help,
                                         const Labels& labels) {
  return BuildCounter().Name(name).Help(help).Register(*registry_).Add(labels);
}
prometheus::Histogram& Metrics::AddHistogram(const std::string& name, const std::string& help,
                                             const Bounds& bounds, const Labels& labels) {
  return BuildHistogram().Name(name).Help(help).Register(*registry_).Add(labels, bounds);
}

void Metrics::SetModel(const ModelMetricsInfo& info) {
  blocks_capacity_.Set(info.num_blocks);
  blocks_free_.Set(info.num_blocks);
  kv_cache_bytes_.Set(static_cast<double>(info.kv_cache_bytes));
  kv_bytes_per_token_.Set(static_cast<double>(info.kv_bytes_per_token));
  weights_bytes_.Set(static_cast<double>(info.weights_bytes));
  workspace_bytes_.Set(static_cast<double>(info.workspace_bytes));
  read_ceiling_ = info.read_ceiling_bytes_per_second;
  Labels config(info.config.begin(), info.config.end());
  config["block_size"] = std::to_string(info.block_size);
  config["num_blocks"] = std::to_string(info.num_blocks);
  AddGauge("longspan_config_info", "1; settings in effect.", config).Set(1);
  if (!vllm_names_) return;

  const Labels model = {{"model_name", info.model_name}};
  vllm_owner_ = std::unique_ptr<VllmNames>(new VllmNames{
      AddGauge("vllm:num_requests_running", "Requests in execution.", model),
      AddGauge("vllm:num_requests_waiting", "Requests waiting.", model),
      AddGauge("vllm:kv_cache_usage_perc", "Held share of the KV cache; 1 is full.", model),
      AddCounter("vllm:prompt_tokens_total", "Prompt tokens.", model),
      AddCounter("vllm:generation_tokens_total", "Generated tokens.", model),
      AddCounter("vllm:num_preemptions_total", "Preemptions.", model),
      AddCounter("vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache.", model),
      AddCounter("vllm:prefix_cache_hits_total", "Tokens found in the prefix cache.", model),
      AddHistogram("vllm:time_to_first_token_seconds", "Arrival to first token.", kSeconds, model),
      AddHistogram("vllm:inter_token_latency_seconds", "Gap between tokens.", kSeconds, model),
      AddHistogram("vllm:e2e_request_latency_seconds", "Arrival to the end.", kSeconds, model),
      AddHistogram("vllm:request_queue_time_seconds", "Arrival to first scheduling.", kSeconds,
                   model),
      {}});
  for (const char* reason : {"stop", "length", "abort"}) {
    vllm_owner_->success[reason] =
        &AddCounter("vllm:request_success_total", "Requests that ended, by reason.",
                    {{"model_name", info.model_name}, {"finished_reason", reason}});
  }
  AddGauge("vllm:cache_config_info", "1; settings of the KV cache.",
           {{"block_size", std::to_string(info.block_size)},
            {"num_gpu_blocks", std::to_string(info.num_blocks)}})
      .Set(1);
  AddGauge("vllm:lora_requests_info", "Adapters in use; none are supported.",
           {{"max_lora", "0"}, {"running_lora_adapters", ""}, {"waiting_lora_adapters", ""}})
      .Set(0);
  vllm_.store(vllm_owner_.get(), std::memory_order_release);
}

std::vector<std::weak_ptr<prometheus::Collectable>> Metrics::collectables() const {
  return {registry_, process_};
}

void Metrics::OnStats(const EngineStats& stats) {
  requests_running_.Set(stats.requests_running);
  requests_waiting_.Set(stats.requests_waiting);
  requests_waiting_tokens_.Set(static_cast<double>(stats.waiting_tokens));
  requests_paused_.Set(stats.requests_paused);
  blocks_free_.Set(stats.blocks_free);
  blocks_held_.Set(stats.blocks_held);
  blocks_evictable_.Set(stats.blocks_evictable);
  blocks_leaked_.Set(stats.blocks_leaked);
  const double usage =
      stats.blocks_total > 0 ? static_cast<double>(stats.blocks_held) / stats.blocks_total : 0.0;
  kv_cache_usage_.Set(usage);
  const auto preemptions = static_cast<double>(stats.preemptions - previous_.preemptions);
  const auto queries =
      static_cast<double>(stats.prefix_queries_tokens - previous_.prefix_queries_tokens);
  const auto hits = static_cast<double>(stats.prefix_hits_tokens - previous_.prefix_hits_tokens);
  preemptions_.Increment(preemptions);
  prefix_queries_.Increment(queries);
  prefix_hits_.Increment(hits);
  prefix_evictions_.Increment(
      static_cast<double>(stats.prefix_evictions_blocks - previous_.prefix_evictions_blocks));
  kv_bytes_read_.Increment(static_cast<double>(stats.kv_bytes_read - previous_.kv_bytes_read));
  previous_ = stats;
  if (VllmNames* vllm = this->vllm()) {
    vllm->running.Set(stats.requests_running);
    vllm->waiting.Set(stats.requests_waiting);
    vllm->kv_usage.Set(usage);
    vllm->preemptions.Increment(preemptions);
    vllm->prefix_queries.Increment(queries);
    vllm->prefix_hits.Increment(hits);
  }
  if (stats.kind == StepKind::kIdle) return;
  step_duration_[static_cast<size_t>(stats.kind) - 1]->Observe(stats.step_seconds);
  step_scheduler_.Observe(stats.step_scheduler_seconds);
  step_tokens_.Observe(stats.step_tokens);
  step_sequences_.Observe(stats.step_sequences);
  if (stats.longest_decode_stall_seconds > 0.0)
    longest_decode_stall_.Observe(stats.longest_decode_stall_seconds);
  if (stats.step_attention_splits > 0) attention_splits_.Observe(stats.step_attention_splits);
  if (stats.kind == StepKind::kDecode && stats.step_attention_seconds > 0.0) {
    const double bandwidth =
        static_cast<double>(stats.step_kv_bytes_read) / stats.step_attention_seconds;
    kv_bandwidth_.Set(bandwidth);
    if (read_ceiling_ > 0.0) kv_bandwidth_ratio_.Set(bandwidth / read_ceiling_);
  }
}

void Metrics::OnRpcEnded(std::string_view method, int code) {
  const bool known = code >= 0 && code < static_cast<int>(std::size(kCodeNames));
  grpc_requests_
      .Add({{"method", std::string(method)}, {"code", known ? kCodeNames[code] : "UNKNOWN"}})
      .Increment();
}

void Metrics::OnStarted(const RequestStarted& started) {
  prompt_tokens_.Increment(started.prompt_tokens);
  prompt_tokens_cached_.Increment(started.cached_tokens);
  queue_time_.Observe(started.queue_seconds);
  if (VllmNames* vllm = this->vllm()) {
    vllm->prompt_tokens.Increment(started.prompt_tokens);
    vllm->queue_time.Observe(started.queue_seconds);
  }
}

void Metrics::OnFirstToken(const FirstToken& first) {
  time_to_first_token_.Observe(first.time_to_first_token_seconds);
  prefill_time_.Observe(first.prefill_seconds);
  if (VllmNames* vllm = this->vllm())
    vllm->time_to_first_token.Observe(first.time_to_first_token_seconds);
}

void Metrics::OnTokens(const TokensDelivered& tokens) {
  generation_tokens_.Increment(tokens.num_tokens);
  if (tokens.gap_seconds >= 0.0) inter_token_latency_.Observe(tokens.gap_seconds);
  if (VllmNames* vllm = this->vllm()) {
    vllm->generation_tokens.Increment(tokens.num_tokens);
    if (tokens.gap_seconds >= 0.0) vllm->inter_token_latency.Observe(tokens.gap_seconds);
  }
}

void Metrics::OnSequenceFinished(const SequenceFinished& finished) {
  decode_time_.Observe(finished.decode_seconds);
  if (finished.time_per_output_token_seconds >= 0.0) {
    time_per_output_token_[ContextBucket(finished.context_tokens)]->Observe(
        finished.time_per_output_token_seconds);
  }
}

// Latency is that of requests that were served: a refusal takes microseconds and says nothing.
void Metrics::OnRequestEnded(const RequestEnded& ended) {
  const auto outcome = static_cast<size_t>(ended.outcome);
  requests_finished_[outcome]->Increment();
  if (ended.outcome != RequestOutcome::kRejected) e2e_latency_.Observe(ended.e2e_seconds);
  VllmNames* vllm = this->vllm();
  if (vllm == nullptr || kVllmOutcomes[outcome] == nullptr) return;
  vllm->success[kVllmOutcomes[outcome]]->Increment();
  vllm->e2e_latency.Observe(ended.e2e_seconds);
}

}  // namespace longspan
