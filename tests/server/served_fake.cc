// The engine behind the fake model of served_fake.h, and observers that record what they are told.
#include "tests/server/served_fake.h"

#include <algorithm>

#include "tests/support/successor_tokenizer.h"

namespace longspan::testing {
namespace {

EngineConfig MakeEngineConfig(const FakeModelOptions& options) {
  EngineConfig config;
  config.scheduler.max_num_seqs = options.max_num_seqs;
  config.scheduler.max_num_batched_tokens = 64;
  config.scheduler.max_prefill_chunk = options.max_prefill_chunk;
  config.scheduler.min_prefill_tokens = 8;
  config.scheduler.max_model_len = options.max_model_len;
  config.scheduler.slow_reader_timeout = options.slow_reader_timeout;
  config.max_queued_requests = options.max_queued_requests;
  return config;
}

KvCacheConfig MakeCacheConfig(const FakeModelOptions& options) {
  KvCacheConfig config;
  config.num_blocks = options.num_blocks;
  config.block_size = options.block_size;
  return config;
}

}  // namespace

void RecordingObserver::SawSeconds(double seconds) {
  counts_.smallest_seconds = std::min(counts_.smallest_seconds, seconds);
}

void RecordingObserver::OnRpcEnded(std::string_view method, int code) {
  const std::lock_guard lock(mutex_);
  ++counts_.rpcs[{std::string(method), code}];
}

void RecordingObserver::OnStarted(const RequestStarted& started) {
  const std::lock_guard lock(mutex_);
  ++counts_.started;
  SawSeconds(started.queue_seconds);
}

void RecordingObserver::OnFirstToken(const FirstToken& first) {
  const std::lock_guard lock(mutex_);
  ++counts_.first_tokens;
  SawSeconds(first.time_to_first_token_seconds);
  SawSeconds(first.prefill_seconds);
}

void RecordingObserver::OnTokens(const TokensDelivered& tokens) {
  const std::lock_guard lock(mutex_);
  counts_.tokens += tokens.num_tokens;
}

void RecordingObserver::OnSequenceFinished(const SequenceFinished& finished) {
  const std::lock_guard lock(mutex_);
  ++counts_.sequences_finished;
  SawSeconds(finished.decode_seconds);
}

void RecordingObserver::OnRequestEnded(const RequestEnded& ended) {
  const std::lock_guard lock(mutex_);
  ++counts_.outcomes[ended.outcome];
  SawSeconds(ended.e2e_seconds);
}

RecordingObserver::Counts RecordingObserver::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

int RecordingObserver::outcome(RequestOutcome outcome) const {
  const std::lock_guard lock(mutex_);
  const auto it = counts_.outcomes.find(outcome);
  return it == counts_.outcomes.end() ? 0 : it->second;
}

int RecordingObserver::num_ended() const {
  const std::lock_guard lock(mutex_);
  int sum = 0;
  for (const auto& [outcome, count] : counts_.outcomes) sum += count;
  return sum;
}

void RecordingLifecycle::RequestDrain(std::optional<Duration> timeout) {
  const std::lock_guard lock(mutex_);
  drains_.push_back(timeout);
}

std::vector<std::optional<Duration>> RecordingLifecycle::drains() const {
  const std::lock_guard lock(mutex_);
  return drains_;
}

FakeModel::FakeModel(const FakeModelOptions& options)
    : tokenizer(SuccessorTokenizer(options.tokens, options.first_token_id, options.vocab_size)) {
  model.name = "fake";
  model.config.vocab_size = options.vocab_size;
  model.config.context_length = options.max_model_len;
  model.config.eos_token_ids = options.eos;
  model.config.num_layers = 2;
  model.max_model_len = options.max_model_len;
  model.block_size = options.block_size;
  model.num_blocks = options.num_blocks;
  model.kv_bytes_per_token = 64;
  model.tokenizer = tokenizer.get();
}

ServedFake::ServedFake(const FakeModelOptions& options, const Clock& clock, Outbox& outbox)
    : fake(options), kv_cache(MakeCacheConfig(options)) {
  auto owned = std::make_unique<FakeRunner>(options.vocab_size);
  runner = owned.get();
  engine = std::make_unique<Engine>(MakeEngineConfig(options), clock, kv_cache, std::move(owned),
                                    outbox, engine_observer);
}

}  // namespace longspan::testing
