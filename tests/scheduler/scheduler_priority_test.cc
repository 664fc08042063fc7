// Who goes first: priorities, ageing, preemption between classes, and never between equals.
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_harness.h"

namespace longspan {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

SequenceParams WithPriority(SequenceParams params, int32_t priority) {
  params.priority = priority;
  return params;
}

TEST(SchedulerPriority, Case_013_AHighOneIsNotStuckBehindLowOnesAndEqualsAreNeverSwapped) {
  HarnessConfig config;
  config.scheduler.max_num_seqs = 2;
  SchedulerHarness harness(config);
  const SeqId low_a = harness.Submit(Request(Prompt(4), 200));
  const SeqId low_b = harness.Submit(Request(Prompt(4, 50), 40));
  for (int i = 0; i < 5; ++i) harness.Step();
  const SeqId high = harness.Submit(WithPriority(Request(Prompt(4, 100), 5), 1));
  const int64_t submitted = harness.num_steps();
  while (!harness.outcome(high).finished) ASSERT_TRUE(harness.Step());
  EXPECT_LE(harness.num_steps() - submitted, 20);
  EXPECT_EQ(harness.scheduler.stats().num_preemptions, 1);

  std::vector<SeqId> equals;
  for (int i = 0; i < 3; ++i) equals.push_back(harness.Submit(Request(Prompt(4, 20 * i), 10)));
  harness.RunUntilIdle();
  EXPECT_EQ(harness.scheduler.stats().num_preemptions, 1);
  for (const SeqId id : {low_a, low_b, equals[0], equals[1], equals[2]}) {
    EXPECT_EQ(harness.outcome(id).tokens, harness.ExpectedTokens(id));
  }
  EXPECT_EQ(harness.outcome(low_a).num_preemptions, 0);  // the newest low one gave way
  EXPECT_EQ(harness.outcome(low_b).num_preemptions, 1);
}

TEST(SchedulerPriority, TheLowestGivesWayThenTheNewest) {
  HarnessConfig config;
  config.scheduler.max_num_seqs = 3;
  SchedulerHarness harness(config);
  const SeqId middle = harness.Submit(WithPriority(Request(Prompt(4), 60), 1));
  const SeqId low_a = harness.Submit(Request(Prompt(4, 50), 60));
  const SeqId low_b = harness.Submit(Request(Prompt(4, 90), 60));
  harness.Step();
  for (int i = 0; i < 2; ++i) {
    harness.Submit(WithPriority(Request(Prompt(4, 130 + 20 * i), 30), 2));
    harness.Step();
  }
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(middle).num_preemptions, 0);
  EXPECT_EQ(harness.outcome(low_b).num_preemptions, 1);
  EXPECT_EQ(harness.outcome(low_a).num_preemptions, 1);
}

TEST(SchedulerPriority, AHighOneTakesBlocksFromLowerOnes) {
  SchedulerHarness harness;  // 64 blocks
  const SeqId low = harness.Submit(Request(Prompt(220), 20));
  for (int i = 0; i < 20; ++i) harness.Step();
  const SeqId high = harness.Submit(WithPriority(Request(Prompt(100, 300), 5), 1));
  harness.Step();
  EXPECT_TRUE(harness.outcome(high).started);
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(low).num_preemptions, 1);
  EXPECT_EQ(harness.outcome(low).tokens, harness.ExpectedTokens(low));
}

TEST(SchedulerPriority, NobodyIsPreemptedForOneThatWouldNotFitAnyway) {
  SchedulerHarness harness;
  const SeqId equal = harness.Submit(WithPriority(Request(Prompt(150), 20), 1));
  const SeqId low = harness.Submit(Request(Prompt(40, 300), 20));
  for (int i = 0; i < 15; ++i) harness.Step();
  const SeqId high = harness.Submit(WithPriority(Request(Prompt(200, 100), 2), 1));
  while (!harness.outcome(equal).finished) {
    harness.Step();
    EXPECT_TRUE(harness.outcome(equal).finished || !harness.outcome(high).started);
  }
  EXPECT_EQ(harness.outcome(low).num_preemptions, 0);
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(high).tokens, harness.ExpectedTokens(high));
}

// Endless load of a higher class; every request asks for one slot of one.
class EndlessHighLoad : public testing::Test {
 protected:
  static HarnessConfig Config() {
    HarnessConfig config;
    config.scheduler.max_num_seqs = 1;
    config.scheduler.ageing_period = seconds(10);
    return config;
  }
  // Keeps three high ones waiting, for at most so long.
  void RunUntilFinished(SeqId id, Duration at_most, int32_t priority) {
    const TimePoint end = harness_.now() + at_most;
    while (!harness_.outcome(id).finished && harness_.now() < end) {
      while (harness_.scheduler.stats().num_waiting < 4) {
        harness_.Submit(WithPriority(Request(Prompt(6, count_++ % 200), 4), priority));
      }
      harness_.Advance(milliseconds(99));
      ASSERT_TRUE(harness_.Step());
    }
  }

  SchedulerHarness harness_{Config()};
  int count_ = 0;
};

TEST_F(EndlessHighLoad, Fault_S7_ALowOneWaitsAPeriodForEachStepOfPriority) {
  harness_.Submit(WithPriority(Request(Prompt(6, 300), 4), 2));
  harness_.Step();
  const TimePoint submitted = harness_.now();
  const SeqId low = harness_.Submit(Request(Prompt(40, 400), 12));
  RunUntilFinished(low, seconds(60), 2);
  const SequenceOutcome& outcome = harness_.outcome(low);
  ASSERT_TRUE(outcome.finished);
  EXPECT_EQ(outcome.tokens, harness_.ExpectedTokens(low));
  // Two periods in the line, one service time of a high one, and its own 15 steps of 0.1 s.
  EXPECT_LE(harness_.now() - submitted, seconds(23));
  EXPECT_GE(harness_.now() - submitted, seconds(20));  // and ageing is not a queue jump
  EXPECT_EQ(outcome.num_preemptions, 0);  // those it had waited for do not throw it out
}

TEST_F(EndlessHighLoad, OneStillHigherDoesPreemptAnAgedOne) {
  harness_.Submit(WithPriority(Request(Prompt(6, 300), 4), 1));
  harness_.Step();
  const SeqId low = harness_.Submit(Request(Prompt(40, 400), 50));
  while (!harness_.outcome(low).started) {
    while (harness_.scheduler.stats().num_waiting < 4) {
      harness_.Submit(WithPriority(Request(Prompt(6, count_++ % 200), 4), 1));
    }
    harness_.Advance(milliseconds(99));
    harness_.Step();
  }
  const SeqId highest = harness_.Submit(WithPriority(Request(Prompt(6, 450), 2), 9));
  harness_.Step();
  EXPECT_TRUE(harness_.outcome(highest).started);
  harness_.RunUntilIdle();
  EXPECT_EQ(harness_.outcome(low).tokens, harness_.ExpectedTokens(low));
}

TEST(SchedulerPriority, TimeSpentRunningIsNoAge) {
  HarnessConfig config;
  config.scheduler.max_num_seqs = 1;
  config.scheduler.ageing_period = seconds(10);
  SchedulerHarness harness(config);
  const SeqId low = harness.Submit(Request(Prompt(4), 100));
  for (int i = 0; i < 50; ++i) {
    harness.Advance(seconds(10));
    harness.Step();
  }
  const SeqId first = harness.Submit(WithPriority(Request(Prompt(4, 40), 5), 1));
  const SeqId second = harness.Submit(WithPriority(Request(Prompt(4, 80), 5), 1));
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(low).num_preemptions, 1);  // once: both high ones went before it
  EXPECT_GT(harness.outcome(low).finished_step, harness.outcome(second).finished_step);
  EXPECT_TRUE(harness.outcome(first).finished);
}

// A low one that aged to the front waits for a slot; behind it a high one may preempt, not jump.
TEST(SchedulerPriority, AHighOneIsNotStuckBehindAnAgedOneEither) {
  HarnessConfig config;
  config.scheduler.max_num_seqs = 2;
  config.scheduler.ageing_period = seconds(1);
  SchedulerHarness harness(config);
  for (int i = 0; i < 2; ++i) harness.Submit(Request(Prompt(4, 40 * i), 200));
  harness.Step();
  const SeqId aged = harness.Submit(Request(Prompt(4, 100), 5));
  harness.Advance(seconds(30));
  const SeqId high = harness.Submit(WithPriority(Request(Prompt(4, 150), 30), 1));
  harness.Step();
  EXPECT_TRUE(harness.outcome(high).started);
  EXPECT_FALSE(harness.outcome(aged).started);
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(aged).tokens, harness.ExpectedTokens(aged));
}

TEST(SchedulerPriority, ExtremePrioritiesDoNotOverflow) {
  HarnessConfig config;
  config.scheduler.max_num_seqs = 1;
  config.scheduler.ageing_period = std::chrono::hours(1);
  SchedulerHarness harness(config);
  const SeqId lowest = harness.Submit(WithPriority(Request(Prompt(4), 20), INT32_MIN));
  harness.Step();
  const SeqId highest = harness.Submit(WithPriority(Request(Prompt(4, 50), 20), INT32_MAX));
  const SeqId middle = harness.Submit(Request(Prompt(4, 100), 20));
  harness.RunUntilIdle();
  EXPECT_LT(harness.outcome(highest).finished_step, harness.outcome(middle).finished_step);
  EXPECT_LT(harness.outcome(middle).finished_step, harness.outcome(lowest).finished_step);
}

}  // namespace
}  // namespace longspan
