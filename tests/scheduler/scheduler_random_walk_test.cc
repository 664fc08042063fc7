// Seeded random walks over everything that can happen to a sequence, on a tiny vocabulary and small
// pools. The scripted model checks every read and write, the harness every invariant, and whoever
// runs to its end must have exactly the tokens it would have got alone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>

#include "tests/scheduler/scheduler_harness.h"

namespace longspan {
namespace {

struct WalkCase {
  uint64_t seed;
  int32_t block_size;
  int32_t num_blocks;
  int32_t steps_in_flight;
  bool prefix_cache;
  bool poor_hash;
};

struct WalkTotals {
  int64_t preemptions = 0;
  int64_t copies = 0;
  int64_t hit_tokens = 0;
  int64_t evicted_blocks = 0;
};

BlockHash PoorHash(const BlockHash&, std::span<const TokenId>) { return {7, 7}; }

class Walk {
 public:
  explicit Walk(const WalkCase& c) : case_(c), rng_(c.seed), harness_(Config(c)) {}

  void Run(int num_actions, WalkTotals& totals) {
    for (int i = 0; i < num_actions; ++i) {
      Act();
      // A step that schedules nothing leaves nothing that could be scheduled: the engine sleeps
      // then.
      const bool in_flight = harness_.num_in_flight() > 0;
      if (!harness_.Step() && !in_flight) {
        ASSERT_FALSE(harness_.StepAgain());
      }
    }
    for (const SeqId id : paused_) harness_.scheduler.Resume(id, harness_.now());
    harness_.RunUntilIdle();
    EXPECT_TRUE(harness_.scheduler.idle()) << Leftovers();
    const SchedulerStats stats = harness_.scheduler.stats();
    EXPECT_EQ(stats.kv.num_held, 0);
    EXPECT_EQ(stats.kv.num_reserved, 0);
    EXPECT_EQ(stats.kv.num_leaked, 0);
    EXPECT_EQ(stats.num_running + stats.num_waiting + stats.num_paused, 0);
    EXPECT_EQ(stats.num_waiting_tokens, 0);
    CheckOutcomes();
    totals.preemptions += stats.num_preemptions;
    totals.copies += harness_.model.num_copies();
    totals.hit_tokens += stats.kv.hit_tokens;
    totals.evicted_blocks += stats.kv.evicted_blocks;
  }

 private:
  static HarnessConfig Config(const WalkCase& c) {
    HarnessConfig config;
    config.kv.block_size = c.block_size;
    config.kv.num_blocks = c.num_blocks;
    config.kv.enable_prefix_cache = c.prefix_cache;
    if (c.poor_hash) config.kv.hash = &PoorHash;
    config.scheduler.max_steps_in_flight = c.steps_in_flight;
    config.scheduler.max_num_seqs = 6;
    config.scheduler.max_num_batched_tokens = 24;
    config.scheduler.max_prefill_chunk = 10;
    config.scheduler.min_prefill_tokens = 4;
    config.scheduler.max_model_len = 64;
    config.scheduler.ageing_period = std::chrono::milliseconds(20);
    config.scheduler.slow_reader_timeout = std::chrono::milliseconds(40);
    config.vocab_size = 3;
    return config;
  }

  int32_t Draw(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(rng_);
  }
  bool Chance(int percent) { return Draw(0, 99) < percent; }

  void Act() {
    const int action = Draw(0, 99);
    if (action < 35) {
      Submit();
    } else if (action < 42) {
      if (SeqId id = AnyLive(); ToInt(id) > 0) {
        const bool known = harness_.scheduler.Abort(id, FinishReason::kAborted);
        EXPECT_EQ(known, !harness_.outcome(id).finished);
      }
    } else if (action < 52) {
      if (SeqId id = AnyLive(); ToInt(id) > 0 && harness_.scheduler.Pause(id, harness_.now())) {
        paused_.push_back(id);
      }
    } else if (action < 64 && !paused_.empty()) {
      harness_.scheduler.Resume(paused_.back(), harness_.now());
      paused_.pop_back();
    } else if (action < 67) {
      if (SeqId id = AnyLive(); ToInt(id) > 0) {
        const auto kept = static_cast<int32_t>(harness_.outcome(id).tokens.size()) / 2;
        if (harness_.scheduler.Stop(id, kept)) stopped_[id] = kept;
      }
    } else if (action < 68) {
      harness_.kv.ResetPrefixCache();
    } else if (action < 70) {
      harness_.model.nonfinite.insert(SeqId{Draw(1, static_cast<int32_t>(live_.size()) + 1)});
    } else if (action < 74) {
      harness_.Advance(std::chrono::milliseconds(Draw(1, 30)));
    }
  }

  void Submit() {
    const int32_t pool = std::min(64, case_.num_blocks * case_.block_size);
    const int32_t prompt_length = Draw(1, pool - 1);
    std::vector<TokenId> prompt;
    // A few shared starts, so that prefixes are found, forked and evicted.
    const int32_t shared = Draw(0, 2);
    for (int32_t i = 0; i < prompt_length; ++i) {
      prompt.push_back(TokenId{Chance(95) ? (i * 7 + shared) % 3 : Draw(0, 2)});
    }
    SequenceParams params = Request(std::move(prompt), Draw(0, pool - prompt_length));
    params.n = Chance(25) ? Draw(2, 5) : 1;
    params.priority = Chance(30) ? Draw(-1, 2) : 0;
    params.guaranteed = Chance(15);
    params.use_prefix_cache = Chance(85);
    params.cache_salt = Chance(20) ? "tenant" : "";
    params.sampling.temperature = Chance(50) ? 1.0f : 0.0f;
    params.sampling.seed = rng_();
    params.sampling.num_logprobs = Chance(20) ? 0 : -1;
    params.sampling.num_prompt_logprobs = Chance(20) ? 0 : -1;
    params.sampling.repetition_penalty = Chance(20) ? 1.5f : 1.0f;
    if (Chance(30)) {
      params.eos_token_ids = {TokenId{2}};
      params.ignore_eos = false;
      params.sampling.min_tokens = Draw(0, 6);
    }
    if (Chance(10)) params.deadline = harness_.now() + std::chrono::milliseconds(Draw(0, 60));
    const SeqId first = harness_.Submit(params);
    for (int32_t i = 0; i < params.n; ++i) {
      live_.push_back({SeqId{ToInt(first) + i}, params});
    }
  }

  SeqId AnyLive() {
    return live_.empty()
               ? SeqId{}
               : live_[static_cast<size_t>(Draw(0, static_cast<int32_t>(live_.size()) - 1))].first;
  }

  // Who is stuck, for a failing walk.
  std::string Leftovers() const {
    std::string text;
    for (const SequenceInfo& info : harness_.scheduler.List()) {
      const auto& params = live_[static_cast<size_t>(ToInt(info.id)) - 1].second;
      text += fmt::format(
          "\n{} #{} of {}: state {} priority {} guaranteed {} prompt {} + {} max {} computed {} "
          "blocks {}",
          ToInt(info.id), info.index, params.n, static_cast<int>(info.state), info.priority,
          params.guaranteed, info.num_prompt_tokens, info.num_completion_tokens, params.max_tokens,
          info.num_computed_tokens, info.num_blocks);
    }
    return text;
  }

  void CheckOutcomes() {
    for (const auto& [id, params] : live_) {
      const SequenceOutcome& outcome = harness_.outcome(id);
      ASSERT_TRUE(outcome.finished) << ToInt(id);
      const std::vector<TokenId> expected = harness_.ExpectedTokens(id);
      const bool complete = outcome.reason == FinishReason::kLength ||
                            (outcome.reason == FinishReason::kStop && !stopped_.contains(id));
      if (complete) {
        EXPECT_EQ(outcome.tokens, expected) << ToInt(id);
        EXPECT_EQ(outcome.num_completion_tokens, static_cast<int32_t>(expected.size()));
      } else {
        ASSERT_LE(outcome.tokens.size(), expected.size()) << ToInt(id);
        EXPECT_TRUE(std::equal(outcome.tokens.begin(), outcome.tokens.end(), expected.begin()));
      }
      if (params.sampling.num_logprobs >= 0) {
        EXPECT_EQ(outcome.logprobs.size(), outcome.tokens.size());
      }
      const bool has_prompt_logprobs =
          params.sampling.num_prompt_logprobs >= 0 && complete && outcome.num_cached_tokens >= 0;
      if (has_prompt_logprobs && !outcome.prompt_logprobs.empty()) {
        EXPECT_EQ(outcome.prompt_logprobs.size(), params.prompt.size() - 1);
        EXPECT_EQ(outcome.prompt_logprobs.begin()->first, 1);
      }
      if (params.guaranteed) {
        EXPECT_EQ(outcome.num_preemptions, 0);
      }
    }
  }

  const WalkCase case_;
  std::mt19937_64 rng_;
  SchedulerHarness harness_;
  std::vector<std::pair<SeqId, SequenceParams>> live_;  // all that were ever submitted
  std::vector<SeqId> paused_;
  std::map<SeqId, int32_t> stopped_;
};

class SchedulerRandomWalk : public testing::TestWithParam<WalkCase> {};

TEST_P(SchedulerRandomWalk, KeepsBlocksAndTokensRight) {
  // LONGSPAN_TEST_ROUNDS=n walks longer.
  const char* rounds = std::getenv("LONGSPAN_TEST_ROUNDS");
  const int num_rounds = rounds == nullptr ? 6 : std::atoi(rounds);
  WalkTotals totals;
  for (int round = 0; round < num_rounds; ++round) {
    WalkCase c = GetParam();
    c.seed = c.seed * 100000 + static_cast<uint64_t>(round);
    SCOPED_TRACE(c.seed);
    Walk(c).Run(400, totals);
    if (HasFailure()) return;
  }
  // The walk went where it is meant to go.
  EXPECT_GT(totals.preemptions, 0);
  EXPECT_GT(totals.copies + (GetParam().block_size == 1), 0);
  EXPECT_EQ(totals.hit_tokens > 0, GetParam().prefix_cache);
  EXPECT_EQ(totals.evicted_blocks > 0, GetParam().prefix_cache);
}

INSTANTIATE_TEST_SUITE_P(
    Seeds, SchedulerRandomWalk,
    testing::Values(WalkCase{1, 4, 20, 1, true, false}, WalkCase{2, 4, 40, 1, true, false},
                    WalkCase{3, 1, 70, 1, true, false}, WalkCase{4, 16, 5, 1, true, false},
                    WalkCase{5, 3, 24, 1, false, false}, WalkCase{6, 4, 20, 2, true, false},
                    WalkCase{7, 2, 50, 2, true, false}, WalkCase{8, 5, 14, 2, false, false},
                    WalkCase{9, 4, 24, 1, true, true}, WalkCase{10, 2, 40, 2, true, true}));

}  // namespace
}  // namespace longspan
