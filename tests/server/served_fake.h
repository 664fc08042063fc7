// A served model without arithmetic: the real engine, scheduler and cache around FakeRunner, the
// successor tokenizer, and an observer that keeps everything. What tests of the edge stand on.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "engine/engine.h"
#include "kvcache/kv_cache_manager.h"
#include "server/request_observer.h"
#include "server/server_context.h"
#include "tests/support/fake_runner.h"
#include "tokenizer/tokenizer.h"

namespace longspan::testing {

// Keeps what it is told. Thread-safe.
class RecordingObserver final : public RequestObserver {
 public:
  struct Counts {
    std::map<std::pair<std::string, int>, int> rpcs;  // (method, code)
    std::map<RequestOutcome, int> outcomes;
    int started = 0;
    int first_tokens = 0;
    int64_t tokens = 0;
    int sequences_finished = 0;
    double smallest_seconds = 0.0;  // of all times that were told
  };

  void OnRpcEnded(std::string_view method, int code) override;
  void OnStarted(const RequestStarted& started) override;
  void OnFirstToken(const FirstToken& first) override;
  void OnTokens(const TokensDelivered& tokens) override;
  void OnSequenceFinished(const SequenceFinished& finished) override;
  void OnRequestEnded(const RequestEnded& ended) override;

  Counts counts() const;
  int outcome(RequestOutcome outcome) const;
  int num_ended() const;

 private:
  void SawSeconds(double seconds);
  mutable std::mutex mutex_;
  Counts counts_;
};

class RecordingLifecycle final : public LifecycleHandler {
 public:
  void RequestDrain(std::optional<Duration> timeout) override;
  std::vector<std::optional<Duration>> drains() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::optional<Duration>> drains_;
};

class QuietEngineObserver final : public EngineObserver {
 public:
  void OnStats(const EngineStats&) override {}
};

struct FakeModelOptions {
  int32_t vocab_size = 512;
  int32_t max_model_len = 256;
  int32_t block_size = 4;
  int32_t num_blocks = 64;
  int32_t max_num_seqs = 8;
  int32_t max_prefill_chunk = 16;
  int32_t max_queued_requests = 1024;
  std::vector<TokenId> eos;
  std::vector<std::string> tokens;  // of the successor tokenizer, from first_token_id on
  int first_token_id = 0;
  Duration slow_reader_timeout = std::chrono::seconds(30);
};

// The facts of a model for validation and handlers; owns its tokenizer.
struct FakeModel {
  explicit FakeModel(const FakeModelOptions& options = {});
  std::unique_ptr<Tokenizer> tokenizer;
  ServedModel model;
};

// Model and engine on somebody's outbox. The engine's thread is not started.
struct ServedFake {
  ServedFake(const FakeModelOptions& options, const Clock& clock, Outbox& outbox);
  FakeModel fake;
  KvCacheManager kv_cache;
  QuietEngineObserver engine_observer;
  FakeRunner* runner;  // the engine's
  std::unique_ptr<Engine> engine;
};

}  // namespace longspan::testing
