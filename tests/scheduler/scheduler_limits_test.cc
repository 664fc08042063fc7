// Requests that end early, wait, pause or hold what they were promised; and that everything they
// held comes back.
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_harness.h"

namespace longspan {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

SequenceParams Guaranteed(std::vector<TokenId> prompt, int32_t max_tokens) {
  SequenceParams params = Request(std::move(prompt), max_tokens);
  params.guaranteed = true;
  return params;
}

void ExpectIdleAndClean(const SchedulerHarness& harness) {
  const SchedulerStats stats = harness.scheduler.stats();
  EXPECT_TRUE(harness.scheduler.idle());
  EXPECT_EQ(stats.num_running + stats.num_waiting + stats.num_paused, 0);
  EXPECT_EQ(stats.kv.num_held + stats.kv.num_reserved + stats.kv.num_leaked, 0);
  EXPECT_EQ(stats.kv.num_free + stats.kv.num_evictable, stats.kv.num_blocks);
}

TEST(SchedulerLimits, Case_009_PromptLogprobsAreCompleteWhateverTheChunk) {
  for (const int32_t block_size : {1, 4, 16}) {
    std::map<int32_t, float> first;
    for (const int32_t chunk : {16, 50, 49, 1, 7}) {
      for (const bool warm : {false, true}) {
        HarnessConfig config;
        config.kv.block_size = block_size;
        config.kv.num_blocks = 256 / block_size;
        config.scheduler.max_prefill_chunk = chunk;
        SchedulerHarness harness(config);
        if (warm) {
          harness.Submit(Request(Prompt(50), 1));
          harness.RunUntilIdle();
        }
        SequenceParams params = Request(Prompt(50), 2);
        params.sampling.num_prompt_logprobs = 3;
        const SeqId id = harness.Submit(params);
        harness.RunUntilIdle();
        const SequenceOutcome& outcome = harness.outcome(id);
        EXPECT_EQ(outcome.num_cached_tokens, 0);                  // written, not read
        ASSERT_EQ(outcome.prompt_logprobs.size(), 49u) << chunk;  // position 0 has none
        for (const auto& [position, entry] : outcome.prompt_logprobs) {
          EXPECT_EQ(entry.token, Prompt(50)[static_cast<size_t>(position)]);
          const auto [it, is_new] = first.emplace(position, entry.logprob);
          EXPECT_EQ(it->second, entry.logprob);
        }
        EXPECT_EQ(outcome.tokens, harness.ExpectedTokens(id));
        const SeqId after = harness.Submit(Request(Prompt(50), 1));
        harness.RunUntilIdle();
        EXPECT_GT(harness.outcome(after).num_cached_tokens, 0);
      }
    }
  }
}

TEST(SchedulerLimits, Case_009_NoOutputBeforeThePrefillEndsAndACancelGivesAllBack) {
  SchedulerHarness harness;
  SequenceParams params = Request(Prompt(50), 5);
  params.sampling.num_prompt_logprobs = 3;
  params.use_prefix_cache = false;
  const SeqId id = harness.Submit(params);
  for (int i = 0; i < 2; ++i) harness.Step();
  EXPECT_TRUE(harness.outcome(id).tokens.empty());
  EXPECT_EQ(harness.outcome(id).prompt_logprobs.size(), 31u);
  harness.scheduler.Abort(id, FinishReason::kCancelled);
  harness.Step();
  EXPECT_EQ(harness.scheduler.stats().kv.num_free, 64);
  ExpectIdleAndClean(harness);
}

TEST(SchedulerLimits, PromptLogprobsAreToldOnceAcrossAPreemption) {
  for (int steps = 1; steps <= 6; ++steps) {
    HarnessConfig config;
    config.scheduler.max_num_seqs = 1;
    SchedulerHarness harness(config);
    SequenceParams params = Request(Prompt(50), 6);
    params.sampling.num_prompt_logprobs = 0;
    const SeqId id = harness.Submit(params);
    for (int i = 0; i < steps; ++i) harness.Step();
    SequenceParams high = Request(Prompt(3, 300), 1);
    high.priority = 1;
    harness.Submit(high);
    harness.RunUntilIdle();
    EXPECT_EQ(harness.outcome(id).num_preemptions, 1);
    EXPECT_EQ(harness.outcome(id).prompt_logprobs.size(), 49u) << steps;
    EXPECT_EQ(harness.outcome(id).tokens, harness.ExpectedTokens(id));
  }
}

TEST(SchedulerLimits, Case_014_EndingInTheFirstStepReturnsSlotAndBlocks) {
  SchedulerHarness harness;
  const SeqId decoding = harness.Submit(Request(Prompt(4, 200), 240));
  harness.Step();
  for (int i = 0; i < 230; ++i) {
    const SeqId id = harness.Submit(Request(Prompt(10), 1));
    harness.Step();
    ASSERT_EQ(harness.outcome(id).tokens, harness.ExpectedTokens(id)) << i;
  }
  EXPECT_FALSE(harness.outcome(decoding).finished);
  EXPECT_EQ(harness.scheduler.stats().num_running, 1);
  harness.RunUntilIdle();
  for (int i = 0; i < 300; ++i) {  // and with nobody else
    harness.Submit(Request(Prompt(10), 1));
    harness.Step();
  }
  ExpectIdleAndClean(harness);
}

TEST(SchedulerLimits, Case_016_EndsInTheQueueHoldNothing) {
  HarnessConfig config;
  config.scheduler.max_num_seqs = 1;
  SchedulerHarness harness(config);
  harness.Submit(Request(Prompt(40), 0));
  harness.RunUntilIdle();
  harness.Submit(Request(Prompt(8, 300), 100));
  harness.Step();
  const KvCacheStats before = harness.scheduler.stats().kv;
  std::vector<SeqId> ids;
  for (int i = 0; i < 12; ++i) {  // all would hit the cached prompt
    SequenceParams params = i % 4 == 3 ? Guaranteed(Prompt(40), 5) : Request(Prompt(40), 5);
    if (i % 3 == 0) params.deadline = harness.now() + milliseconds(5);
    params.n = i % 2 + 1;
    ids.push_back(harness.Submit(params));
  }
  for (int i = 0; i < 3; ++i) harness.Step();
  EXPECT_EQ(harness.scheduler.stats().kv.num_held,
            before.num_held + 1);  // the running one's growth
  EXPECT_EQ(harness.scheduler.stats().kv.num_reserved, 0);
  for (size_t i = 1; i < ids.size(); i += 3) {
    for (int64_t k = 0; k <= static_cast<int64_t>(i % 2); ++k) {
      EXPECT_TRUE(harness.scheduler.Abort(SeqId{ToInt(ids[i]) + k}, FinishReason::kCancelled));
    }
  }
  for (int i = 0; i < 5; ++i) harness.Step();
  for (size_t i = 0; i < ids.size(); ++i) {
    const SequenceOutcome& outcome = harness.outcome(ids[i]);
    EXPECT_FALSE(outcome.started);
    EXPECT_EQ(outcome.reason, i % 3 == 0   ? FinishReason::kDeadline
                              : i % 3 == 1 ? FinishReason::kCancelled
                                           : FinishReason::kNone);
  }
  harness.RunUntilIdle();
  ExpectIdleAndClean(harness);
}

TEST(SchedulerLimits, Case_017_UsedBlocksAreWhatSequencesHold) {
  SchedulerHarness harness;
  const SeqId id = harness.Submit(Request(Prompt(10), 10));
  std::map<int64_t, int32_t> held;  // by stored tokens
  for (int64_t tokens = 10; tokens <= 13; ++tokens) {
    harness.Step();
    held[tokens] = harness.scheduler.stats().kv.num_held;
  }
  EXPECT_EQ(held[10], 3);
  EXPECT_EQ(held[12], 3);
  EXPECT_EQ(held[13], 4);
  harness.scheduler.Abort(id, FinishReason::kCancelled);
  EXPECT_EQ(harness.scheduler.stats().kv.num_held, 0);
  EXPECT_EQ(harness.scheduler.stats().kv.num_evictable, 3);

  for (int i = 0; i < 2; ++i) {  // share eight tokens
    std::vector<TokenId> prompt = Prompt(8);
    prompt.push_back(TokenId{300 + i});
    harness.Submit(Request(prompt, 3));
  }
  harness.Step();
  EXPECT_EQ(harness.scheduler.stats().kv.num_held, 2 + 2);
  harness.RunUntilIdle();
  ExpectIdleAndClean(harness);
}

TEST(SchedulerLimits, Fault_S3_TheLargestThatFitsRunsAndMoreIsNotAccepted) {
  HarnessConfig config;
  config.kv.num_blocks = 16;
  EXPECT_EQ(MaxFittingTokens(16, 4), 64);
  EXPECT_GT(60 + 40, MaxFittingTokens(16, 4));  // so the edge refuses it
  SchedulerHarness harness(config);
  const SeqId fits = harness.Submit(Request(Prompt(60), 4));
  // An unset max_tokens that is larger all the same ends where the pool ends.
  const SeqId clamped = harness.Submit(Request(Prompt(60, 100), 40));
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(fits).tokens.size(), 4u);
  EXPECT_EQ(harness.outcome(clamped).tokens.size(), 4u);
  EXPECT_EQ(harness.outcome(clamped).reason, FinishReason::kLength);
}

TEST(SchedulerLimits, Fault_S4_S5_DeadlinesEndWaitingAndRunningSequences) {
  HarnessConfig config;
  config.scheduler.max_num_seqs = 1;
  SchedulerHarness harness(config);
  SequenceParams params = Request(Prompt(5), 100);
  params.deadline = harness.now() + seconds(2);
  const SeqId running = harness.Submit(params);
  params.deadline = harness.now() + seconds(1);
  const SeqId waiting = harness.Submit(params);
  for (int i = 0; i < 3; ++i) harness.Step();
  EXPECT_EQ(harness.scheduler.NextWakeup(), params.deadline);
  harness.Advance(seconds(1));
  harness.Step();
  EXPECT_EQ(harness.outcome(waiting).reason, FinishReason::kDeadline);
  EXPECT_FALSE(harness.outcome(waiting).started);
  EXPECT_FALSE(harness.outcome(running).finished);
  harness.Advance(seconds(1));
  EXPECT_FALSE(harness.Step());
  EXPECT_EQ(harness.outcome(running).reason, FinishReason::kDeadline);
  EXPECT_EQ(harness.outcome(running).tokens.size(), 4u);
  EXPECT_FALSE(harness.scheduler.NextWakeup());
  ExpectIdleAndClean(harness);
}

TEST(SchedulerLimits, AnAbortWorksInEveryState) {
  for (int steps = 0; steps < 12; ++steps) {
    HarnessConfig config;
    config.scheduler.max_num_seqs = 1;
    SchedulerHarness harness(config);
    const SeqId a = harness.Submit(Request(Prompt(50), 6));
    const SeqId b = harness.Submit(Request(Prompt(5, 100), 2));
    for (int i = 0; i < steps; ++i) harness.Step();
    EXPECT_EQ(harness.scheduler.Abort(a, FinishReason::kAborted), steps < 9) << steps;
    EXPECT_FALSE(harness.scheduler.Abort(a, FinishReason::kAborted));
    EXPECT_FALSE(harness.scheduler.Abort(SeqId{999}, FinishReason::kAborted));
    harness.RunUntilIdle();
    EXPECT_EQ(harness.outcome(a).reason,
              steps < 9 ? FinishReason::kAborted : FinishReason::kLength);
    EXPECT_EQ(harness.outcome(b).tokens, harness.ExpectedTokens(b));
    ExpectIdleAndClean(harness);
  }
}

TEST(SchedulerPause, APausedSequenceKeepsItsBlocksAndContinues) {
  SchedulerHarness harness;
  const SeqId slow = harness.Submit(Request(Prompt(10), 20));
  const SeqId other = harness.Submit(Request(Prompt(10, 100), 20));
  for (int i = 0; i < 5; ++i) harness.Step();
  const size_t had = harness.outcome(slow).tokens.size();
  EXPECT_TRUE(harness.scheduler.Pause(slow, harness.now()));
  EXPECT_FALSE(harness.scheduler.Pause(slow, harness.now()));
  EXPECT_EQ(harness.scheduler.stats().num_paused, 1);
  while (!harness.outcome(other).finished) ASSERT_TRUE(harness.Step());
  EXPECT_FALSE(harness.Step());  // nothing else can run
  EXPECT_EQ(harness.outcome(slow).tokens.size(), had);
  EXPECT_GT(harness.scheduler.stats().kv.num_held, 0);
  EXPECT_TRUE(harness.scheduler.Resume(slow, harness.now()));
  EXPECT_FALSE(harness.scheduler.Resume(slow, harness.now()));
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(slow).tokens, harness.ExpectedTokens(slow));
  EXPECT_EQ(harness.outcome(slow).num_preemptions, 0);
}

TEST(SchedulerPause, ItEndsAfterTheTimeout) {
  SchedulerHarness harness;
  const SeqId slow = harness.Submit(Request(Prompt(10), 20));
  harness.Step();
  harness.scheduler.Pause(slow, harness.now());
  EXPECT_EQ(harness.scheduler.NextWakeup(), harness.now() + seconds(30));
  harness.Advance(seconds(29));
  harness.Step();
  EXPECT_FALSE(harness.outcome(slow).finished);
  harness.Advance(seconds(1));
  harness.Step();
  EXPECT_EQ(harness.outcome(slow).reason, FinishReason::kSlowReader);
  ExpectIdleAndClean(harness);
}

TEST(SchedulerPause, UnderPressureItGivesItsBlocksUpAndRecomputes) {
  SchedulerHarness harness;
  const SeqId slow = harness.Submit(Request(Prompt(150), 20));  // the oldest, but paused
  for (int i = 0; i < 15; ++i) harness.Step();
  harness.scheduler.Pause(slow, harness.now());
  const SeqId other = harness.Submit(Request(Prompt(150, 300), 20));
  harness.Step();
  EXPECT_TRUE(harness.outcome(other).started);
  while (!harness.outcome(other).finished) ASSERT_TRUE(harness.Step());
  EXPECT_EQ(harness.scheduler.stats().num_paused, 1);
  harness.scheduler.Resume(slow, harness.now());
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(slow).num_preemptions, 1);
  EXPECT_EQ(harness.outcome(slow).tokens, harness.ExpectedTokens(slow));
}

TEST(SchedulerPause, PausedOnesGiveWayBeforeLowerOnes) {
  HarnessConfig config;
  config.scheduler.max_num_seqs = 2;
  SchedulerHarness harness(config);
  SequenceParams params = Request(Prompt(10), 40);
  params.priority = 1;
  const SeqId slow = harness.Submit(params);
  const SeqId low = harness.Submit(Request(Prompt(10, 100), 40));
  harness.Step();
  harness.scheduler.Pause(slow, harness.now());
  params.prompt = Prompt(10, 200);
  params.priority = 2;
  const SeqId high = harness.Submit(params);
  harness.Step();
  EXPECT_TRUE(harness.outcome(high).started);
  harness.scheduler.Resume(slow, harness.now());
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(slow).num_preemptions, 1);
  EXPECT_EQ(harness.outcome(low).tokens, harness.ExpectedTokens(low));
}

TEST(SchedulerGuaranteed, HoldsAllItMayNeedAndIsNeverPreempted) {
  SchedulerHarness harness;  // 64 blocks
  const SeqId id = harness.Submit(Guaranteed(Prompt(20), 60));
  harness.Step();
  const KvCacheStats stats = harness.scheduler.stats().kv;
  EXPECT_EQ(stats.num_held + stats.num_reserved, 20);
  std::vector<SeqId> others;
  for (int i = 0; i < 6; ++i) {
    SequenceParams params = Request(Prompt(30, 40 * i), 40);
    params.priority = 5;
    others.push_back(harness.Submit(params));
  }
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(id).num_preemptions, 0);
  EXPECT_EQ(harness.outcome(id).tokens, harness.ExpectedTokens(id));
  for (const SeqId other : others) {
    EXPECT_EQ(harness.outcome(other).tokens, harness.ExpectedTokens(other));
  }
  ExpectIdleAndClean(harness);
}

TEST(SchedulerGuaranteed, BlocksThatOthersHoldTooAreNotReserved) {
  SchedulerHarness harness;  // blocks of 4
  harness.Submit(Request(Prompt(40), 60));
  for (int i = 0; i < 4; ++i) harness.Step();
  SequenceParams params = Guaranteed(Prompt(40), 20);  // 15 blocks, 9 of them cached and held
  params.n = 2;
  const SeqId id = harness.Submit(params);
  while (!harness.outcome(id, 1).started) ASSERT_TRUE(harness.Step());
  int32_t still_to_take = 0;
  for (const SequenceInfo& info : harness.scheduler.List()) {
    if (info.id >= id) still_to_take += 15 - info.num_blocks;
  }
  EXPECT_GT(still_to_take, 0);
  EXPECT_EQ(harness.scheduler.stats().kv.num_reserved, still_to_take);
  harness.RunUntilIdle();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(harness.outcome(id, i).tokens, harness.ExpectedTokens(SeqId{ToInt(id) + i}));
  }
  ExpectIdleAndClean(harness);
}

TEST(SchedulerGuaranteed, WaitsUntilAllOfItIsFreeOrEvictable) {
  SchedulerHarness harness;
  harness.Submit(Request(Prompt(100), 0));  // evictable afterwards
  harness.RunUntilIdle();
  const SeqId running = harness.Submit(Request(Prompt(20, 200), 30));
  harness.Step();
  SequenceParams params = Guaranteed(Prompt(40, 300), 20);
  params.n = 4;  // 4 x 15 blocks, and 5 are held
  const SeqId id = harness.Submit(params);
  while (!harness.outcome(running).finished) {
    EXPECT_FALSE(harness.outcome(id).started);
    ASSERT_TRUE(harness.Step());
  }
  harness.Step();
  EXPECT_TRUE(harness.outcome(id).started);
  const KvCacheStats stats = harness.scheduler.stats().kv;
  EXPECT_EQ(stats.num_held + stats.num_reserved, 60);
  harness.RunUntilIdle();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(harness.outcome(id, i).tokens, harness.ExpectedTokens(SeqId{ToInt(id) + i}));
  }
  ExpectIdleAndClean(harness);
}

TEST(SchedulerGuaranteed, IsOvertakenForOneAgeingPeriodAtMost) {
  HarnessConfig config;
  config.scheduler.ageing_period = seconds(10);
  SchedulerHarness harness(config);
  auto small = [i = 0]() mutable { return Request(Prompt(20, 17 * i++ % 400), 40); };
  for (int i = 0; i < 3; ++i) harness.Submit(small());
  harness.Step();
  const TimePoint submitted = harness.now();
  const SeqId id = harness.Submit(Guaranteed(Prompt(100, 100), 140));  // 60 of 64 blocks
  TimePoint last_overtaking = submitted;
  while (!harness.outcome(id).started) {
    ASSERT_LT(harness.now() - submitted, seconds(60));
    const SeqId overtaking = harness.Submit(small());
    harness.Advance(milliseconds(300));
    harness.Step();
    if (harness.outcome(overtaking).started) last_overtaking = harness.now();
  }
  EXPECT_GT(last_overtaking - submitted, seconds(1));  // others did use what it could not
  EXPECT_LE(last_overtaking - submitted, seconds(10));
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(id).tokens, harness.ExpectedTokens(id));
}

TEST(SchedulerGuaranteed, MoreSequencesThanThePoolHoldsTakeTurns) {
  SchedulerHarness harness;
  SequenceParams params = Guaranteed(Prompt(100), 60);  // 40 of 64 blocks each
  params.n = 3;
  const SeqId id = harness.Submit(params);
  harness.RunUntilIdle();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(harness.outcome(id, i).tokens, harness.ExpectedTokens(SeqId{ToInt(id) + i}));
  }
  ExpectIdleAndClean(harness);
}

}  // namespace
}  // namespace longspan
