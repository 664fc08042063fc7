// n sequences over one prompt: computed once, shared, forked with a copy of the partial block.
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_harness.h"

namespace longspan {
namespace {

SequenceParams Group(std::vector<TokenId> prompt, int32_t n, int32_t max_tokens) {
  SequenceParams params = Request(std::move(prompt), max_tokens);
  params.n = n;
  params.sampling.temperature = 0.8f;
  params.sampling.seed = 42;
  return params;
}

void ExpectAllRight(const SchedulerHarness& harness, SeqId first, int32_t n) {
  for (int32_t i = 0; i < n; ++i) {
    const SeqId id{ToInt(first) + i};
    EXPECT_TRUE(harness.outcome(id).finished);
    EXPECT_EQ(harness.outcome(id).tokens, harness.ExpectedTokens(id)) << i;
  }
  EXPECT_EQ(harness.scheduler.stats().kv.num_held, 0);
}

class SchedulerGroup : public testing::TestWithParam<bool> {  // prefix cache
 protected:
  static HarnessConfig Config() {
    HarnessConfig config;
    config.kv.enable_prefix_cache = GetParam();
    return config;
  }
};

TEST_P(SchedulerGroup, ComputesThePromptOnceAtEveryLengthOfItsLastBlock) {
  for (const int32_t prompt : {1, 2, 3, 4, 5, 16, 17, 29, 31, 32, 33}) {
    SchedulerHarness harness(Config());
    const SeqId first = harness.Submit(Group(Prompt(prompt), 4, 6));
    harness.RunUntilIdle();
    ExpectAllRight(harness, first, 4);
    // The prompt, its last token for each sibling, and all generated tokens but the last.
    EXPECT_EQ(harness.model.num_tokens_computed(), prompt + 3 + 4 * 5) << prompt;
    EXPECT_EQ(harness.model.num_copies(), (prompt - 1) % 4 == 0 ? 0 : 3);
    EXPECT_NE(harness.outcome(first, 1).tokens, harness.outcome(first, 2).tokens);
  }
}

TEST_P(SchedulerGroup, SharesThePromptsFullBlocks) {
  SchedulerHarness harness(Config());
  harness.Submit(Group(Prompt(30), 4, 8));
  while (harness.scheduler.stats().num_running < 4) ASSERT_TRUE(harness.Step());
  // Seven full blocks together, an eighth for each.
  EXPECT_EQ(harness.scheduler.stats().kv.num_held, 7 + 4);
  harness.RunUntilIdle();
}

TEST_P(SchedulerGroup, TheFirstOfManyEqualsTheOnlyOne) {
  SchedulerHarness harness(Config());
  const SeqId one = harness.Submit(Group(Prompt(21), 1, 12));
  harness.RunUntilIdle();
  const SeqId many = harness.Submit(Group(Prompt(21), 3, 12));
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(one).tokens, harness.outcome(many, 0).tokens);
  EXPECT_EQ(harness.outcome(many, 1).num_cached_tokens, 0);  // siblings report none
}

TEST_P(SchedulerGroup, MoreSequencesThanSlotsStillComputeThePromptOnce) {
  for (const int32_t max_tokens : {1, 2, 9}) {  // 1: the first ends before any sibling runs
    HarnessConfig config = Config();
    config.scheduler.max_num_seqs = 3;
    SchedulerHarness harness(config);
    const SeqId first = harness.Submit(Group(Prompt(30), 16, max_tokens));
    harness.RunUntilIdle();
    ExpectAllRight(harness, first, 16);
    EXPECT_EQ(harness.model.num_tokens_computed(), 30 + 15 + 16 * (max_tokens - 1)) << max_tokens;
  }
}

TEST_P(SchedulerGroup, WhatIsKeptForForksGivesWayToOthers) {
  HarnessConfig config = Config();
  config.scheduler.max_num_seqs = 2;
  SchedulerHarness harness(config);
  const SeqId other = harness.Submit(Request(Prompt(8, 200), 200));  // grows to 52 blocks
  const SeqId first = harness.Submit(Group(Prompt(120), 8, 5));
  harness.RunUntilIdle();
  ExpectAllRight(harness, first, 8);
  EXPECT_EQ(harness.outcome(other).tokens, harness.ExpectedTokens(other));
}

TEST_P(SchedulerGroup, SurvivesTheEndOfAnyMemberAtAnyTime) {
  for (int32_t victim = 0; victim < 3; ++victim) {
    for (int step = 0; step < 8; ++step) {
      SchedulerHarness harness(Config());
      const SeqId first = harness.Submit(Group(Prompt(35), 3, 6));
      for (int i = 0; i < step; ++i) harness.Step();
      harness.scheduler.Abort(SeqId{ToInt(first) + victim}, FinishReason::kAborted);
      harness.RunUntilIdle();
      for (int32_t i = 0; i < 3; ++i) {
        if (i == victim) continue;
        EXPECT_EQ(harness.outcome(first, i).tokens,
                  harness.ExpectedTokens(SeqId{ToInt(first) + i}));
      }
      EXPECT_EQ(harness.scheduler.stats().kv.num_held, 0);
    }
  }
}

TEST_P(SchedulerGroup, MembersArePreemptedAndComeBackAlone) {
  HarnessConfig config = Config();
  config.kv.num_blocks = 20;
  SchedulerHarness harness(config);
  const SeqId first = harness.Submit(Group(Prompt(22), 5, 30));
  harness.RunUntilIdle();
  ExpectAllRight(harness, first, 5);
  EXPECT_GE(harness.scheduler.stats().num_preemptions, 1);
}

INSTANTIATE_TEST_SUITE_P(PrefixCache, SchedulerGroup, testing::Bool());

}  // namespace
}  // namespace longspan
