// Every metric of the server, defined in one place, and how engine and request events move them.
// Base units, counters end in _total, no label has unbounded values, nothing comes from a prompt or
// a client.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_observer.h"
#include "server/request_observer.h"

namespace longspan {

// What is known once the model is loaded.
struct ModelMetricsInfo {
  std::string model_name;
  int32_t block_size = 0;
  int32_t num_blocks = 0;
  int64_t kv_bytes_per_token = 0;
  int64_t kv_cache_bytes = 0;
  int64_t weights_bytes = 0;
  int64_t workspace_bytes = 0;
  double read_ceiling_bytes_per_second = 0.0;  // measured at start; 0: unknown
  std::map<std::string, std::string> config;   // labels of config_info
};

// Thread-safe: the library's values are atomics. Owns the registry; create one per process.
class Metrics final : public EngineObserver, public RequestObserver {
 public:
  struct BuildInfo {
    std::string version;
    std::string commit;
    std::string device;
    std::string arch;
  };
  Metrics(const BuildInfo& build, bool vllm_names);
  ~Metrics() override;

  // Call once, before the first request is accepted.
  void SetModel(const ModelMetricsInfo& info);

  // Handed to the endpoint.
  std::vector<std::weak_ptr<prometheus::Collectable>> collectables() const;

  void OnStats(const EngineStats& stats) override;

  void OnRpcEnded(std::string_view method, int code) override;
  void OnStarted(const RequestStarted& started) override;
  void OnFirstToken(const FirstToken& first) override;
  void OnTokens(const TokensDelivered& tokens) override;
  void OnSequenceFinished(const SequenceFinished& finished) override;
  void OnRequestEnded(const RequestEnded& ended) override;

 private:
  struct VllmNames;  // the names that existing dashboards and gateway pickers read
  class ProcessCollector;

  prometheus::Gauge& AddGauge(const std::string& name, const std::string& help,
                              const prometheus::Labels& labels = {});
  prometheus::Counter& AddCounter(const std::string& name, const std::string& help,
                                  const prometheus::Labels& labels = {});
  prometheus::Histogram& AddHistogram(const std::string& name, const std::string& help,
                                      const prometheus::Histogram::BucketBoundaries& bounds,
                                      const prometheus::Labels& labels = {});

  VllmNames* vllm() const { return vllm_.load(std::memory_order_acquire); }

  static constexpr size_t kNumOutcomes = 6;
  static constexpr size_t kNumContextBuckets = 9;
  static constexpr size_t kNumStepKinds = 3;

  const bool vllm_names_;
  std::shared_ptr<prometheus::Registry> registry_;
  std::shared_ptr<ProcessCollector> process_;
  std::unique_ptr<VllmNames> vllm_owner_;
  std::atomic<VllmNames*> vllm_{
      nullptr};  // set by SetModel, while refused calls are counted already

  prometheus::Gauge& requests_running_;
  prometheus::Gauge& requests_waiting_;
  prometheus::Gauge& requests_waiting_tokens_;
  prometheus::Gauge& requests_paused_;
  std::array<prometheus::Counter*, kNumOutcomes> requests_finished_{};
  prometheus::Family<prometheus::Counter>& grpc_requests_;
  prometheus::Counter& prompt_tokens_;
  prometheus::Counter& prompt_tokens_cached_;
  prometheus::Counter& generation_tokens_;
  prometheus::Counter& preemptions_;
  prometheus::Counter& prefix_queries_;
  prometheus::Counter& prefix_hits_;
  prometheus::Counter& prefix_evictions_;
  prometheus::Gauge& blocks_free_;
  prometheus::Gauge& blocks_held_;
  prometheus::Gauge& blocks_evictable_;
  prometheus::Gauge& blocks_capacity_;
  prometheus::Gauge& blocks_leaked_;
  prometheus::Gauge& kv_cache_bytes_;
  prometheus::Gauge& kv_cache_usage_;
  prometheus::Gauge& kv_bytes_per_token_;
  prometheus::Gauge& weights_bytes_;
  prometheus::Gauge& workspace_bytes_;
  prometheus::Histogram& time_to_first_token_;
  std::array<prometheus::Histogram*, kNumContextBuckets> time_per_output_token_{};
  prometheus::Histogram& inter_token_latency_;
  prometheus::Histogram& e2e_latency_;
  prometheus::Histogram& queue_time_;
  prometheus::Histogram& prefill_time_;
  prometheus::Histogram& decode_time_;
  std::array<prometheus::Histogram*, kNumStepKinds> step_duration_{};
  prometheus::Histogram& step_scheduler_;
  prometheus::Histogram& step_tokens_;
  prometheus::Histogram& step_sequences_;
  prometheus::Histogram& longest_decode_stall_;
  prometheus::Counter& kv_bytes_read_;
  prometheus::Gauge& kv_bandwidth_;
  prometheus::Gauge& kv_bandwidth_ratio_;
  prometheus::Histogram& attention_splits_;

  double read_ceiling_ = 0.0;  // set before the engine starts
  EngineStats previous_;       // engine thread only: counters come as totals
};

}  // namespace longspan
