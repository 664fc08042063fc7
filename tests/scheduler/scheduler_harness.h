// Scheduler, block bookkeeping and scripted model together, driven step by step on a clock of its
// own. After every step all invariants are checked; every finished sequence can be compared with
// what it must have got.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "kvcache/kv_cache_manager.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/scripted_model.h"

namespace longspan {

struct HarnessConfig {
  SchedulerConfig scheduler;
  KvCacheConfig kv;
  int32_t vocab_size = 512;
  bool check_invariants = true;

  // The toy of the cases: context 256, 64 blocks of 4, chunk 16, 8 running.
  HarnessConfig() {
    scheduler.max_num_seqs = 8;
    scheduler.max_num_batched_tokens = 64;
    scheduler.max_prefill_chunk = 16;
    scheduler.min_prefill_tokens = 8;
    scheduler.max_model_len = 256;
    kv.num_blocks = 64;
    kv.block_size = 4;
  }
};

struct SequenceOutcome {
  bool started = false;
  bool finished = false;
  FinishReason reason = FinishReason::kNone;
  TokenId stop_token = kInvalidToken;
  int32_t num_cached_tokens = -1;
  int32_t num_completion_tokens = -1;
  int32_t num_preemptions = 0;
  std::vector<TokenId> tokens;
  std::vector<Logprobs> logprobs;
  std::map<int32_t, Logprobs> prompt_logprobs;  // by position
  int64_t started_step = -1;
  int64_t finished_step = -1;
};

class SchedulerHarness {
 public:
  explicit SchedulerHarness(const HarnessConfig& config = {});

  // Returns the id of the first of n sequences; the others follow.
  SeqId Submit(SequenceParams params);
  // One step: Schedule, Launch, and Update of the oldest step when enough are in flight. False when
  // nothing was scheduled.
  bool Step();
  bool StepAgain();  // the same, with no time in between
  // Until no sequence is left or nothing can run; CHECKs after max_steps.
  void RunUntilIdle(int max_steps = 10000);
  void Advance(Duration duration) { now_ += duration; }
  // Collects everything in flight.
  void Drain();

  const SequenceOutcome& outcome(SeqId id) const { return outcomes_.at(id); }
  const SequenceOutcome& outcome(SeqId first, int32_t index) const {
    return outcomes_.at(SeqId{ToInt(first) + index});
  }
  std::vector<TokenId> ExpectedTokens(SeqId id) const;
  TimePoint now() const { return now_; }
  int64_t num_steps() const { return num_steps_; }
  int32_t num_in_flight() const { return num_in_flight_; }
  const SchedulerOutput& last_output() const { return outputs_.back(); }

  ScriptedModel model;  // first: the others tell it of freed blocks until their end
  KvCacheManager kv;
  Scheduler scheduler;

 private:
  void Collect();
  void TakeEvents();

  const HarnessConfig config_;
  TimePoint now_{std::chrono::hours(1)};
  int64_t next_id_ = 1;
  int64_t num_steps_ = 0;
  std::deque<SchedulerOutput> outputs_;  // in flight, and the last one
  int32_t num_in_flight_ = 0;
  std::map<SeqId, SequenceOutcome> outcomes_;
  std::map<SeqId, std::pair<SequenceParams, int32_t>> submitted_;
};

// Prompt of ids first, first + 1, ..., in the toy's vocabulary.
std::vector<TokenId> Prompt(int32_t length, int32_t first = 1);
// Greedy, ignoring EOS.
SequenceParams Request(std::vector<TokenId> prompt, int32_t max_tokens);

}  // namespace longspan
