// Blocks run out: who recomputes, how often, and that nobody's tokens change.
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_harness.h"

namespace longspan {
namespace {

class SchedulerPreemption : public testing::TestWithParam<int32_t> {  // steps in flight
 protected:
  HarnessConfig Config(int32_t num_blocks) const {
    HarnessConfig config;
    config.kv.num_blocks = num_blocks;
    config.scheduler.max_steps_in_flight = GetParam();
    return config;
  }

  // Runs count requests with different starts to their end; every one must be as alone.
  static std::vector<SeqId> RunAll(SchedulerHarness& harness, int count, int32_t prompt,
                                   int32_t max_tokens) {
    std::vector<SeqId> ids;
    for (int i = 0; i < count; ++i) {
      ids.push_back(harness.Submit(Request(Prompt(prompt, 13 * i), max_tokens)));
    }
    harness.RunUntilIdle();
    for (const SeqId id : ids) {
      EXPECT_EQ(harness.outcome(id).tokens, harness.ExpectedTokens(id)) << ToInt(id);
      EXPECT_EQ(harness.outcome(id).num_completion_tokens, max_tokens);
    }
    EXPECT_EQ(harness.scheduler.stats().kv.num_held, 0);
    EXPECT_EQ(harness.scheduler.stats().kv.num_leaked, 0);
    return ids;
  }
};

TEST_P(SchedulerPreemption, Case_010_RecomputeLosesAndRepeatsNothing) {
  for (const bool prefix_cache : {true, false}) {
    HarnessConfig config = Config(24);
    config.kv.enable_prefix_cache = prefix_cache;
    SchedulerHarness harness(config);
    RunAll(harness, 4, 20, 30);
    EXPECT_GE(harness.scheduler.stats().num_preemptions, 1);
  }
}

TEST_P(SchedulerPreemption, Fault_S1_AllFinishWhenThePoolIsTooSmallForAll) {
  SchedulerHarness harness(Config(64));
  const std::vector<SeqId> ids = RunAll(harness, 6, 30, 40);
  EXPECT_GE(harness.scheduler.stats().num_preemptions, 1);
  EXPECT_EQ(harness.outcome(ids[0]).num_preemptions, 0);  // the oldest never gives way to equals
}

TEST_P(SchedulerPreemption, Fault_S2_NoStorm) {
  HarnessConfig config = Config(64);
  SchedulerHarness serial(config);
  for (int i = 0; i < 32; ++i) {
    serial.Submit(Request(Prompt(30, 13 * i), 40));
    serial.RunUntilIdle();
  }
  for (const bool prefix_cache : {true, false}) {
    config.kv.enable_prefix_cache = prefix_cache;
    SchedulerHarness harness(config);
    const std::vector<SeqId> ids = RunAll(harness, 32, 30, 40);
    EXPECT_EQ(harness.outcome(ids[0]).num_preemptions, 0);
    for (const SeqId id : ids) EXPECT_LE(harness.outcome(id).num_preemptions, 3) << ToInt(id);
    // Far from 3 x serial, in steps as in tokens computed.
    EXPECT_LE(harness.num_steps(), serial.num_steps());
    EXPECT_LE(harness.model.num_tokens_computed(), 2 * serial.model.num_tokens_computed());
  }
}

TEST_P(SchedulerPreemption, ANewcomerLeavesRoomForTheNextBlocksOfThoseThatRun) {
  SchedulerHarness harness(Config(16));
  for (int i = 0; i < 2; ++i) harness.Submit(Request(Prompt(16, 50 * i), 8));  // at a block border
  harness.Step();
  const SeqId newcomer = harness.Submit(Request(Prompt(31, 200), 1));  // the eight blocks left
  harness.Step();
  EXPECT_FALSE(harness.outcome(newcomer).started);
  harness.RunUntilIdle();
  EXPECT_EQ(harness.scheduler.stats().num_preemptions, 0);
}

// Wherever it strikes: inside the prompt's blocks, at block borders, at the last token.
TEST_P(SchedulerPreemption, AtEveryLengthTheTokensStayTheSame) {
  for (int generated = 1; generated < 30; ++generated) {
    HarnessConfig config = Config(64);
    config.scheduler.max_num_seqs = 1;
    SchedulerHarness harness(config);
    SequenceParams params = Request(Prompt(11), 30);
    params.sampling.frequency_penalty = 0.5f;  // history is sent again
    params.sampling.num_logprobs = 0;
    const SeqId low = harness.Submit(params);
    while (static_cast<int>(harness.outcome(low).tokens.size()) < generated) harness.Step();
    SequenceParams high = Request(Prompt(4, 100), 3);
    high.priority = 1;
    harness.Submit(high);
    harness.RunUntilIdle();
    EXPECT_EQ(harness.outcome(low).num_preemptions, 1);
    EXPECT_EQ(harness.outcome(low).tokens, harness.ExpectedTokens(low));
    EXPECT_EQ(harness.outcome(low).logprobs.size(), 30u);
  }
}

TEST_P(SchedulerPreemption, EqualsPreemptEachOtherNoMoreOftenThanAllowed) {
  for (int seed = 0; seed < 20; ++seed) {
    HarnessConfig config = Config(40);
    config.scheduler.max_preemptions = seed % 2 == 0 ? 1 : 3;
    config.scheduler.max_num_seqs = 12;
    SchedulerHarness harness(config);
    std::vector<SeqId> ids;
    uint32_t x = static_cast<uint32_t>(seed) * 7919 + 1;
    const auto draw = [&x](uint32_t n) {
      return static_cast<int32_t>((x = x * 1664525 + 1013904223) >> 16) % static_cast<int32_t>(n);
    };
    for (int i = 0; i < 30; ++i) {
      ids.push_back(harness.Submit(Request(Prompt(1 + draw(60), draw(500)), 1 + draw(90))));
      if (i % 3 == 0) harness.Step();
    }
    harness.RunUntilIdle();
    for (const SeqId id : ids) {
      EXPECT_EQ(harness.outcome(id).tokens, harness.ExpectedTokens(id));
      EXPECT_LE(harness.outcome(id).num_preemptions, config.scheduler.max_preemptions)
          << "seed " << seed;
    }
    EXPECT_EQ(harness.outcome(ids[0]).num_preemptions, 0);
  }
}

TEST_P(SchedulerPreemption, ARequestAsLargeAsThePoolRunsToItsEnd) {
  SchedulerHarness harness(Config(16));
  RunAll(harness, 3, 40, 24);  // 64 of 64 tokens each
}

INSTANTIATE_TEST_SUITE_P(StepsInFlight, SchedulerPreemption, testing::Values(1, 2));

}  // namespace
}  // namespace longspan
