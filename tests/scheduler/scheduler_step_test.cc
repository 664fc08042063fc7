// What one step consists of: chunks, the token budget and its two minima, logits, slots, endings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/scheduler/scheduler_harness.h"

namespace longspan {
namespace {

// Tokens scheduled for a sequence in the last step; 0: it did not run.
int32_t Scheduled(const SchedulerHarness& harness, SeqId id) {
  for (const ScheduledSequence& entry : harness.last_output().scheduled) {
    if (entry.id == id) return entry.num_scheduled_tokens;
  }
  return 0;
}

TEST(SchedulerStep, APromptRunsInChunksAndSamplesAtItsEnd) {
  SchedulerHarness harness;
  const SeqId id = harness.Submit(Request(Prompt(50), 3));
  for (const int32_t chunk : {16, 16, 16, 2}) {
    ASSERT_TRUE(harness.Step());
    const ScheduledSequence& entry = harness.last_output().scheduled.at(0);
    EXPECT_EQ(entry.num_scheduled_tokens, chunk);
    EXPECT_EQ(entry.samples, chunk == 2);
    EXPECT_EQ(entry.num_logits, chunk == 2 ? 1 : 0);
    EXPECT_EQ(harness.outcome(id).tokens.size(), chunk == 2 ? 1u : 0u);
  }
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(id).reason, FinishReason::kLength);
  EXPECT_EQ(harness.outcome(id).tokens, harness.ExpectedTokens(id));
  EXPECT_EQ(harness.num_steps(), 6);  // the last token needs no step of its own
}

TEST(SchedulerStep, SendsTheAdmissionOnceAndEachNewBlockOnce) {
  SchedulerHarness harness;
  harness.Submit(Request(Prompt(10), 20));
  std::vector<BlockId> told;
  int64_t num_admitted = 0;
  while (harness.Step()) {
    num_admitted += static_cast<int64_t>(harness.last_output().admitted.size());
    for (const BlockId block : harness.last_output().new_blocks) told.push_back(block);
  }
  EXPECT_EQ(num_admitted, 1);
  EXPECT_EQ(told.size(), 8u);  // 29 of the 30 tokens are stored
  EXPECT_EQ(std::set<BlockId>(told.begin(), told.end()).size(), told.size());
}

TEST(SchedulerStep, ADecodeSendsNothingThatGrowsWithTheContext) {
  HarnessConfig config;
  config.kv.num_blocks = 5000;
  config.scheduler.max_model_len = 20000;
  config.scheduler.max_num_batched_tokens = config.scheduler.max_prefill_chunk = 8192;
  config.check_invariants = false;
  SchedulerHarness harness(config);
  harness.Submit(Request(Prompt(16000), 50));
  harness.Step();
  harness.Step();
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(harness.Step());
    const SchedulerOutput& output = harness.last_output();
    EXPECT_EQ(output.token_ids.size(), 1u);
    EXPECT_LE(output.new_blocks.size(), 1u);
    EXPECT_TRUE(output.admitted.empty() && output.history.empty());
  }
}

TEST(SchedulerStep, AnEmptyStepIsNoStep) {
  SchedulerHarness harness;
  EXPECT_FALSE(harness.Step());
  const SeqId id = harness.Submit(Request(Prompt(3), 1));
  EXPECT_TRUE(harness.Step());
  EXPECT_EQ(harness.last_output().step, StepId{1});
  EXPECT_TRUE(harness.outcome(id).finished);
  EXPECT_FALSE(harness.Step());
  harness.Submit(Request(Prompt(3), 1));
  EXPECT_TRUE(harness.Step());
  EXPECT_EQ(harness.last_output().step, StepId{2});
  EXPECT_THAT(harness.last_output().released_slots, testing::SizeIs(1));
}

TEST(SchedulerStep, ALongPrefillHoldsDecodesNoLongerThanOneChunk) {
  HarnessConfig config;
  config.scheduler.max_model_len = 9000;
  config.scheduler.max_num_batched_tokens = 1024;
  config.scheduler.max_prefill_chunk = 512;
  config.kv.num_blocks = 3000;
  config.check_invariants = false;
  SchedulerHarness harness(config);
  std::vector<SeqId> decodes;
  for (int i = 0; i < 3; ++i) decodes.push_back(harness.Submit(Request(Prompt(5, 10 * i), 200)));
  harness.Step();
  const SeqId longer = harness.Submit(Request(Prompt(8000), 1));
  const SeqId second = harness.Submit(Request(Prompt(2000, 7), 1));
  while (!harness.outcome(longer).finished) {
    ASSERT_TRUE(harness.Step());
    for (const SeqId id : decodes) EXPECT_EQ(Scheduled(harness, id), 1);
    EXPECT_LE(Scheduled(harness, longer) + Scheduled(harness, second), 512);
  }
  EXPECT_LE(harness.num_steps(), 3 + (8000 + 2000) / 512);
}

TEST(SchedulerStep, DecodesDoNotStarveAPrefill) {
  HarnessConfig config;
  config.scheduler.max_num_seqs = 40;
  config.scheduler.max_num_batched_tokens = 32;
  config.scheduler.max_prefill_chunk = 16;
  config.scheduler.min_prefill_tokens = 8;
  config.kv.num_blocks = 1000;
  SchedulerHarness harness(config);
  std::vector<SeqId> decodes;
  for (int i = 0; i < 39; ++i) decodes.push_back(harness.Submit(Request(Prompt(1, i), 200)));
  for (int i = 0; i < 6; ++i) harness.Step();
  for (const SeqId id : decodes) ASSERT_FALSE(harness.outcome(id).tokens.empty());

  const SeqId late = harness.Submit(Request(Prompt(100, 300), 1));
  std::map<SeqId, int> waited;
  int32_t left = 100;
  while (!harness.outcome(late).finished) {
    ASSERT_TRUE(harness.Step());
    EXPECT_EQ(Scheduled(harness, late), std::min(8, left));
    left -= Scheduled(harness, late);
    for (const SeqId id : decodes) {  // in turns: 39 over 24 places
      waited[id] = Scheduled(harness, id) == 1 ? 0 : waited[id] + 1;
      EXPECT_LE(waited[id], 1);
    }
  }
  EXPECT_LE(harness.outcome(late).finished_step - harness.outcome(late).started_step, 13);
}

TEST(SchedulerStep, AloneAPrefillMayUseTheWholeBudgetInSeveralSequences) {
  SchedulerHarness harness;  // budget 64, chunk 16
  for (int i = 0; i < 5; ++i) harness.Submit(Request(Prompt(20, 50 * i), 4));
  harness.Step();
  EXPECT_EQ(harness.last_output().scheduled.size(), 4u);
  for (const ScheduledSequence& entry : harness.last_output().scheduled) {
    EXPECT_EQ(entry.num_scheduled_tokens, 16);
  }
}

TEST(SchedulerStep, AShortPromptDoesNotWaitForAllOfALongOne) {
  HarnessConfig config;
  config.kv.num_blocks = 200;
  config.scheduler.max_model_len = 600;
  SchedulerHarness harness(config);
  harness.Submit(Request(Prompt(3, 300), 100));  // decodes: prefills share 16 tokens a step
  harness.Step();
  const SeqId longer = harness.Submit(Request(Prompt(400), 1));
  harness.Step();
  EXPECT_EQ(Scheduled(harness, longer), 16);  // alone it gets all of them
  const SeqId shorter = harness.Submit(Request(Prompt(10, 450), 1));
  for (const int32_t expected : {4, 4, 2}) {
    harness.Step();
    EXPECT_EQ(Scheduled(harness, shorter), expected);
    EXPECT_EQ(Scheduled(harness, longer), 16 - expected);
  }
  EXPECT_TRUE(harness.outcome(shorter).finished);
  harness.Step();
  EXPECT_EQ(Scheduled(harness, longer), 16);
}

TEST(SchedulerStep, ABudgetOfOneTokenGoesToBothSidesInTurns) {
  HarnessConfig config;
  config.scheduler.max_num_batched_tokens = 1;
  SchedulerHarness harness(config);
  const SeqId decoding = harness.Submit(Request(Prompt(1), 30));
  harness.Step();
  const SeqId prefill = harness.Submit(Request(Prompt(10, 100), 2));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(harness.Step());
  EXPECT_GE(harness.outcome(decoding).tokens.size(), 10u);
  EXPECT_GE(harness.outcome(prefill).tokens.size(), 1u);
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(prefill).tokens, harness.ExpectedTokens(prefill));
}

TEST(SchedulerStep, EqualsAreAdmittedInTheOrderOfArrival) {
  HarnessConfig config;
  config.scheduler.max_num_seqs = 2;
  SchedulerHarness harness(config);
  std::vector<SeqId> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(harness.Submit(Request(Prompt(4, 20 * i), 5)));
  EXPECT_EQ(harness.scheduler.QueuePositions(ids), (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  harness.RunUntilIdle();
  for (size_t i = 1; i < ids.size(); ++i) {
    EXPECT_LE(harness.outcome(ids[i - 1]).started_step, harness.outcome(ids[i]).started_step);
  }
}

TEST(SchedulerStep, PositionsCountRequestsInTheOrderOfAdmission) {
  HarnessConfig config;
  config.scheduler.max_num_seqs = 1;
  SchedulerHarness harness(config);
  const SeqId running = harness.Submit(Request(Prompt(4), 50));
  harness.Step();
  SequenceParams many = Request(Prompt(4, 100), 5);
  many.n = 16;
  const SeqId first = harness.Submit(many);
  const SeqId second = harness.Submit(Request(Prompt(4, 200), 5));
  SequenceParams urgent = Request(Prompt(4, 300), 5);
  urgent.priority = 3;
  const SeqId third = harness.Submit(urgent);
  const std::vector<SeqId> ids = {second, running, third, SeqId{9999}, first};
  EXPECT_EQ(harness.scheduler.QueuePositions(ids), (std::vector<int32_t>{2, -1, 0, -1, 1}));
  EXPECT_TRUE(harness.scheduler.QueuePositions({}).empty());
}

TEST(SchedulerStep, AShortRequestDoesNotOvertakeALongOneThatWaitsForBlocks) {
  SchedulerHarness harness;  // 64 blocks
  const SeqId first = harness.Submit(Request(Prompt(200), 8));
  harness.Step();
  const SeqId big = harness.Submit(Request(Prompt(150, 300), 2));
  const SeqId small = harness.Submit(Request(Prompt(4, 100), 2));
  harness.RunUntilIdle();
  EXPECT_GT(harness.outcome(big).started_step, harness.outcome(first).started_step);
  EXPECT_GE(harness.outcome(small).started_step, harness.outcome(big).started_step);
}

TEST(SchedulerStep, EndsAtTheContextLength) {
  SchedulerHarness harness;
  const SeqId id = harness.Submit(Request(Prompt(250), 100));
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(id).reason, FinishReason::kLength);
  EXPECT_EQ(harness.outcome(id).tokens.size(), 6u);
}

TEST(SchedulerStep, APromptOnlyRequestComputesAndCachesWithoutSampling) {
  SchedulerHarness harness;
  const SeqId id = harness.Submit(Request(Prompt(256), 0));  // the whole context is legal
  harness.RunUntilIdle();
  EXPECT_TRUE(harness.outcome(id).started);
  EXPECT_EQ(harness.outcome(id).reason, FinishReason::kLength);
  EXPECT_EQ(harness.outcome(id).num_completion_tokens, 0);
  EXPECT_EQ(harness.model.num_tokens_computed(), 256);
  const SeqId warm = harness.Submit(Request(Prompt(100), 1));
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(warm).num_cached_tokens, 96);
}

TEST(SchedulerStep, LimitsAreAskedForWithoutAScheduler) {
  EXPECT_EQ(MaxFittingTokens(64, 4), 256);
  EXPECT_EQ(MaxFittingTokens(1 << 27, 256), int64_t{1} << 35);
  EXPECT_EQ(MaxNewTokens(10, 256, 64, 4), 246);
  EXPECT_EQ(MaxNewTokens(10, 256, 16, 4), 54);  // the pool is smaller than the context
  EXPECT_EQ(MaxNewTokens(256, 256, 64, 4), 0);
  EXPECT_EQ(MaxNewTokens(60, 256, 4, 4), 0);
}

TEST(SchedulerStep, NonFiniteLogitsEndOneSequenceAndLeaveNothingInTheCache) {
  SchedulerHarness harness;
  const SeqId bad = harness.Submit(Request(Prompt(20), 10));
  const SeqId good = harness.Submit(Request(Prompt(20, 100), 10));
  harness.model.nonfinite.insert(bad);
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(bad).reason, FinishReason::kNonFinite);
  EXPECT_TRUE(harness.outcome(bad).tokens.empty());
  EXPECT_EQ(harness.outcome(good).tokens, harness.ExpectedTokens(good));
  const SeqId again = harness.Submit(Request(Prompt(20), 1));
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(again).num_cached_tokens, 0);
}

TEST(SchedulerStep, TheSamplersHistoryIsSentOnAdmissionWhenNeeded) {
  SchedulerHarness harness;
  SequenceParams params = Request(Prompt(12), 5);
  params.sampling.repetition_penalty = 1.3f;
  const SeqId id = harness.Submit(params);
  harness.Submit(Request(Prompt(9, 40), 5));
  harness.Step();
  const SchedulerOutput& output = harness.last_output();
  ASSERT_EQ(output.admitted.size(), 2u);
  EXPECT_EQ(output.admitted[0].id, id);
  EXPECT_EQ(output.admitted[0].num_history_tokens, 12);
  EXPECT_EQ(output.admitted[1].num_history_tokens, 0);
  EXPECT_EQ(output.history, Prompt(12));
  harness.RunUntilIdle();
}

TEST(SchedulerStep, LogprobsComeWithTheirToken) {
  SchedulerHarness harness;
  SequenceParams params = Request(Prompt(5), 6);
  const SeqId plain = harness.Submit(params);
  params.sampling.num_logprobs = 2;
  params.prompt = Prompt(5, 60);
  const SeqId asked = harness.Submit(params);
  harness.RunUntilIdle();
  EXPECT_TRUE(harness.outcome(plain).logprobs.empty());
  ASSERT_EQ(harness.outcome(asked).logprobs.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(harness.outcome(asked).logprobs[i].token, harness.outcome(asked).tokens[i]);
  }
}

// The scheduler's side of the stop rules. The sampler masks stop ids below min_tokens; should one
// come all the same, it is a token like any other.
class SchedulerStop : public testing::Test {
 protected:
  // The request's text without any stop: ten different tokens, checked below.
  std::vector<TokenId> text_ = ScriptedModel::Expected(Request(Prompt(7, 11), 10), 0, 512, 256);

  SequenceOutcome Run(std::vector<TokenId> eos, std::vector<TokenId> stop, bool ignore_eos,
                      int32_t min_tokens = 0) {
    SchedulerHarness harness;
    SequenceParams params = Request(Prompt(7, 11), 10);
    params.eos_token_ids = std::move(eos);
    params.stop_token_ids = std::move(stop);
    params.ignore_eos = ignore_eos;
    params.sampling.min_tokens = min_tokens;
    const SeqId id = harness.Submit(params);
    harness.RunUntilIdle();
    return harness.outcome(id);
  }
};

TEST_F(SchedulerStop, TheTextHasTenDifferentTokens) {
  EXPECT_EQ(std::set<TokenId>(text_.begin(), text_.end()).size(), 10u);
}

TEST_F(SchedulerStop, Case_023_EosEndsUnlessIgnoredAndAnExplicitStopIdWins) {
  const TokenId eos = text_[4];
  SequenceOutcome outcome = Run({eos}, {}, /*ignore_eos=*/false);
  EXPECT_EQ(outcome.tokens.size(), 5u);  // the EOS is among the ids and counts
  EXPECT_EQ(outcome.reason, FinishReason::kStop);
  EXPECT_EQ(outcome.stop_token, eos);
  EXPECT_EQ(outcome.num_completion_tokens, 5);

  outcome = Run({eos}, {}, /*ignore_eos=*/true);
  EXPECT_EQ(outcome.tokens.size(), 10u);
  EXPECT_EQ(outcome.reason, FinishReason::kLength);
  EXPECT_EQ(outcome.stop_token, kInvalidToken);

  for (const bool ignore_eos : {false, true}) {
    EXPECT_EQ(Run({eos}, {text_[2]}, ignore_eos).tokens.size(), 3u);
    EXPECT_EQ(Run({eos}, {eos}, ignore_eos).tokens.size(), 5u);
  }
}

TEST_F(SchedulerStop, MinTokensHoldStopsBack) {
  EXPECT_EQ(Run({text_[4]}, {text_[7]}, false, 4).tokens.size(), 5u);
  EXPECT_EQ(Run({text_[4]}, {text_[7]}, false, 5).tokens.size(), 8u);
  EXPECT_EQ(Run({text_[4]}, {text_[7]}, false, 10).tokens.size(), 10u);
}

TEST_F(SchedulerStop, AStopOnTheLastTokenIsAStop) {
  const SequenceOutcome outcome = Run({}, {text_[9]}, true);
  EXPECT_EQ(outcome.reason, FinishReason::kStop);
}

TEST(SchedulerStep, AStopFoundOutsideKeepsOnlyTheTokensThatCount) {
  SchedulerHarness harness;
  const SeqId id = harness.Submit(Request(Prompt(7), 50));
  for (int i = 0; i < 9; ++i) harness.Step();
  ASSERT_EQ(harness.outcome(id).tokens.size(), 9u);
  EXPECT_TRUE(harness.scheduler.Stop(id, 6));
  EXPECT_FALSE(harness.scheduler.Stop(id, 6));
  harness.Step();
  EXPECT_EQ(harness.outcome(id).reason, FinishReason::kStop);
  EXPECT_EQ(harness.outcome(id).num_completion_tokens, 6);
  EXPECT_EQ(harness.scheduler.stats().kv.num_held, 0);
}

TEST(SchedulerStep, TwoStepsInFlightGiveTheSameTokens) {
  HarnessConfig config;
  config.scheduler.max_steps_in_flight = 2;
  SchedulerHarness harness(config);
  SequenceParams params = Request(Prompt(30), 20);
  params.sampling.repetition_penalty = 1.2f;
  const SeqId a = harness.Submit(params);
  params = Request(Prompt(5, 90), 20);
  params.stop_token_ids = {ScriptedModel::Expected(params, 0, 512, 256)[7]};
  const SeqId b = harness.Submit(params);
  harness.RunUntilIdle();
  harness.Drain();
  EXPECT_EQ(harness.outcome(a).tokens, harness.ExpectedTokens(a));
  EXPECT_EQ(harness.outcome(b).tokens, harness.ExpectedTokens(b));
  EXPECT_EQ(harness.outcome(b).tokens.size(), 8u);
  EXPECT_EQ(harness.scheduler.stats().kv.num_leaked, 0);
}

TEST(SchedulerStep, BlocksOfASequenceThatEndsWhileAStepRunsAreRetired) {
  KvCacheConfig kv_config;
  kv_config.num_blocks = 8;
  kv_config.block_size = 4;
  KvCacheManager kv(kv_config);
  SchedulerConfig config;
  config.max_model_len = 32;
  Scheduler scheduler(config, kv);
  const SeqId id{1};
  scheduler.Add({&id, 1}, Request(Prompt(10), 4), TimePoint{});
  SchedulerOutput output;
  scheduler.Schedule(TimePoint{}, output);
  EXPECT_TRUE(scheduler.Abort(id, FinishReason::kCancelled));
  EXPECT_FALSE(scheduler.Abort(id, FinishReason::kCancelled));
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(kv.stats().num_held, 3);  // the step still writes them
  scheduler.CheckInvariants();
  StepResult result;
  result.step = output.step;
  result.num_tokens = {1};
  result.token_ids = {TokenId{3}};
  scheduler.Update(output, result, TimePoint{});
  EXPECT_EQ(kv.stats().num_free, 8);
  std::vector<SequenceEvent> events;
  scheduler.TakeEvents(events);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].reason, FinishReason::kCancelled);
}

}  // namespace
}  // namespace longspan
