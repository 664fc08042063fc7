// The step loop with a fake runner and a fake clock: what is promised to submitters, readers and
// observers.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/fake_clock.h"
#include "tests/support/fake_runner.h"

namespace longspan {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class RecordingObserver final : public EngineObserver {
 public:
  void OnStats(const EngineStats& stats) override {
    last = stats;
    if (stats.kind != StepKind::kIdle) ++steps;
  }
  EngineStats last;
  int steps = 0;
};

std::vector<TokenId> Prompt(int32_t first, int32_t count) {
  std::vector<TokenId> prompt;
  for (int32_t i = 0; i < count; ++i) prompt.push_back(TokenId{first + i});
  return prompt;
}

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() {
    config_.scheduler.max_num_seqs = 4;
    config_.scheduler.max_num_batched_tokens = 16;
    config_.scheduler.max_prefill_chunk = 16;
    config_.scheduler.max_model_len = 256;
    cache_config_.num_blocks = 64;
    cache_config_.block_size = 4;
  }

  void Make() {
    cache_ = std::make_unique<KvCacheManager>(cache_config_);
    auto runner = std::make_unique<FakeRunner>();
    runner_ = runner.get();
    engine_ =
        std::make_unique<Engine>(config_, clock_, *cache_, std::move(runner), outbox_, observer_);
  }

  EngineRequest Request(std::vector<TokenId> prompt, int32_t max_tokens, int32_t n = 1) {
    EngineRequest request;
    request.params.prompt = std::move(prompt);
    request.params.max_tokens = max_tokens;
    request.params.n = n;
    request.params.sampling.temperature = 0.0f;
    request.stream = std::make_shared<TokenStream>(1000);
    return request;
  }

  void RunUntilIdle() {
    for (int i = 0; i < 10000 && engine_->RunOnce(); ++i) clock_.Advance(milliseconds(1));
    engine_->RunOnce();
  }

  // What came out, per sequence. Never blocks: Close ends Pop.
  std::map<SeqId, std::vector<StreamEvent>> TakeAll() {
    outbox_.Close();
    std::map<SeqId, std::vector<StreamEvent>> all;
    std::vector<StreamEvent> events;
    while (outbox_.Pop(events)) {
      for (StreamEvent& event : events) all[event.event.id].push_back(std::move(event));
    }
    return all;
  }

  EngineConfig config_;
  KvCacheConfig cache_config_;
  FakeClock clock_;
  Outbox outbox_;
  RecordingObserver observer_;
  std::unique_ptr<KvCacheManager> cache_;
  FakeRunner* runner_ = nullptr;
  std::unique_ptr<Engine> engine_;
};

std::vector<int32_t> Tokens(const std::vector<StreamEvent>& events) {
  std::vector<int32_t> tokens;
  for (const StreamEvent& e : events) {
    if (!e.queued && e.event.kind == SequenceEvent::Kind::kTokens)
      tokens.push_back(ToInt(e.event.token));
  }
  return tokens;
}

FinishReason Reason(const std::vector<StreamEvent>& events) {
  return events.back().event.kind == SequenceEvent::Kind::kFinished ? events.back().event.reason
                                                                    : FinishReason::kNone;
}

TEST_F(EngineTest, StreamsTokensInOrderAndEndsOnce) {
  Make();
  const SubmitResult submitted = engine_->Submit(Request(Prompt(1, 10), 5));
  ASSERT_TRUE(submitted.status.ok());
  RunUntilIdle();
  auto all = TakeAll();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(Tokens(all[submitted.first]), (std::vector<int32_t>{11, 12, 13, 14, 15}));
  EXPECT_EQ(Reason(all[submitted.first]), FinishReason::kLength);
  EXPECT_EQ(observer_.last.blocks_held, 0);
  EXPECT_EQ(observer_.last.blocks_leaked, 0);
}

TEST_F(EngineTest, StepsAreCountedByKind) {
  Make();
  engine_->Submit(Request(Prompt(1, 10), 3));
  engine_->RunOnce();
  EXPECT_EQ(observer_.last.kind, StepKind::kPrefill);
  EXPECT_EQ(observer_.last.step_tokens, 10);
  engine_->Submit(Request(Prompt(100, 10), 3));
  engine_->RunOnce();
  EXPECT_EQ(observer_.last.kind, StepKind::kMixed);
  EXPECT_EQ(observer_.last.step_tokens, 11);
  engine_->RunOnce();
  EXPECT_EQ(observer_.last.kind, StepKind::kDecode);
  EXPECT_EQ(observer_.last.step_sequences, 2);
}

TEST_F(EngineTest, TellsOnceThatARequestWaits) {
  config_.scheduler.max_num_seqs = 1;
  Make();
  const SeqId first = engine_->Submit(Request(Prompt(1, 4), 8)).first;
  const SeqId second = engine_->Submit(Request(Prompt(100, 4), 2)).first;
  RunUntilIdle();
  auto all = TakeAll();
  EXPECT_FALSE(all[first].front().queued.has_value());
  ASSERT_TRUE(all[second].front().queued.has_value());
  EXPECT_EQ(all[second].front().queued->position, 0);
  for (size_t i = 1; i < all[second].size(); ++i) EXPECT_FALSE(all[second][i].queued.has_value());
  EXPECT_EQ(Tokens(all[second]), (std::vector<int32_t>{104, 105}));
}

TEST_F(EngineTest, Fault_C11_AFullQueueRefusesAtOnceAndRecovers) {
  config_.max_queued_requests = 2;
  Make();
  EXPECT_TRUE(engine_->Submit(Request(Prompt(1, 4), 2)).status.ok());
  EXPECT_TRUE(engine_->Submit(Request(Prompt(1, 4), 2)).status.ok());
  const SubmitResult refused = engine_->Submit(Request(Prompt(1, 4), 2));
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(StatusMessage(refused.status).find("limit --max-queued-requests 2"), std::string::npos);
  RunUntilIdle();
  EXPECT_TRUE(engine_->Submit(Request(Prompt(1, 4), 2)).status.ok());
  RunUntilIdle();
}

TEST_F(EngineTest, QueuedTokensAreBounded) {
  config_.max_queued_tokens = 20;
  Make();
  EXPECT_TRUE(engine_->Submit(Request(Prompt(1, 15), 2)).status.ok());
  EXPECT_EQ(engine_->Submit(Request(Prompt(1, 6), 2)).status.code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(engine_->Submit(Request(Prompt(1, 5), 2)).status.ok());
  RunUntilIdle();
}

TEST_F(EngineTest, Fault_C1_AbortInTheQueueNeverRunsIt) {
  config_.scheduler.max_num_seqs = 1;
  Make();
  const SeqId running = engine_->Submit(Request(Prompt(1, 4), 30)).first;
  engine_->RunOnce();
  const SeqId waiting = engine_->Submit(Request(Prompt(100, 4), 30)).first;
  engine_->RunOnce();
  int admissions_of_waiting = 0;
  runner_->on_launch = [&](const SchedulerOutput& output) {
    for (const auto& admitted : output.admitted) admissions_of_waiting += admitted.id == waiting;
  };
  engine_->Abort(waiting, 1, FinishReason::kCancelled);
  RunUntilIdle();
  auto all = TakeAll();
  EXPECT_EQ(admissions_of_waiting, 0);
  EXPECT_TRUE(Tokens(all[waiting]).empty());
  EXPECT_EQ(Reason(all[waiting]), FinishReason::kCancelled);
  EXPECT_EQ(Tokens(all[running]).size(), 30u);
}

TEST_F(EngineTest, Fault_S4_ADeadlineInTheQueueEndsTheRequestWithoutCompute) {
  config_.scheduler.max_num_seqs = 1;
  Make();
  engine_->Submit(Request(Prompt(1, 4), 200));
  EngineRequest late = Request(Prompt(100, 4), 4);
  late.params.deadline = clock_.Now() + milliseconds(50);
  const SeqId id = engine_->Submit(std::move(late)).first;
  RunUntilIdle();
  auto all = TakeAll();
  EXPECT_EQ(Reason(all[id]), FinishReason::kDeadline);
  EXPECT_TRUE(Tokens(all[id]).empty());
}

TEST_F(EngineTest, APassedDeadlineIsRefusedAtSubmission) {
  Make();
  EngineRequest late = Request(Prompt(1, 4), 4);
  late.params.deadline = clock_.Now();
  EXPECT_EQ(engine_->Submit(std::move(late)).status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(EngineTest, AHopelessDeadlineIsRefusedOnlyAfterMeasurements) {
  config_.scheduler.max_num_batched_tokens = 256;
  config_.scheduler.max_prefill_chunk = 256;
  cache_config_.enable_prefix_cache = false;
  cache_config_.num_blocks = 1024;
  Make();
  runner_->on_launch = [&](const SchedulerOutput&) { clock_.Advance(seconds(1)); };  // 200 tokens/s
  const auto submit = [&](int32_t first_token) {
    EngineRequest request = Request(Prompt(first_token, 200), 1);
    request.params.deadline = clock_.Now() + milliseconds(500);
    return engine_->Submit(std::move(request)).first;
  };
  const SeqId before = submit(1);  // runs: nothing is known yet
  RunUntilIdle();
  for (int i = 0; i < 8; ++i) {
    engine_->Submit(Request(Prompt(i, 200), 1));
    RunUntilIdle();
  }
  const int64_t steps = runner_->num_steps();
  const SeqId after = submit(250);
  RunUntilIdle();
  auto all = TakeAll();
  EXPECT_EQ(all[before].front().event.kind, SequenceEvent::Kind::kStarted);
  EXPECT_EQ(Reason(all[after]), FinishReason::kDeadline);
  EXPECT_EQ(runner_->num_steps(), steps);
  ASSERT_TRUE(all[after].back().hopeless.has_value());
  EXPECT_DOUBLE_EQ(all[after].back().hopeless->estimated_seconds, 1.0);
  EXPECT_DOUBLE_EQ(all[after].back().hopeless->deadline_seconds, 0.5);
  EXPECT_FALSE(all[before].back().hopeless.has_value());
}

TEST_F(EngineTest, Fault_C6_ASlowReaderPausesAloneAndGoesOnWhenItCaughtUp) {
  Make();
  EngineRequest slow = Request(Prompt(1, 4), 40);
  slow.stream = std::make_shared<TokenStream>(8);
  const std::shared_ptr<TokenStream> stream = slow.stream;
  const SeqId slow_id = engine_->Submit(std::move(slow)).first;
  const SeqId quick_id = engine_->Submit(Request(Prompt(100, 4), 40)).first;
  for (int i = 0; i < 100 && engine_->RunOnce(); ++i) clock_.Advance(milliseconds(1));
  EXPECT_EQ(stream->pending_tokens(), 9);  // the bound and the one that crossed it
  EXPECT_EQ(engine_->stats().requests_paused, 1);
  ASSERT_TRUE(stream->TakeDelivered(9));
  engine_->ReaderCaughtUp(slow_id, 1);
  for (int i = 0; i < 100; ++i) {
    engine_->RunOnce();
    if (stream->TakeDelivered(stream->pending_tokens())) engine_->ReaderCaughtUp(slow_id, 1);
  }
  auto all = TakeAll();
  EXPECT_EQ(Tokens(all[slow_id]).size(), 40u);
  EXPECT_EQ(Tokens(all[quick_id]).size(), 40u);
}

TEST_F(EngineTest, Fault_C6_ASlowReaderIsEndedAfterItsTimeout) {
  config_.scheduler.slow_reader_timeout = seconds(30);
  Make();
  EngineRequest slow = Request(Prompt(1, 4), 40);
  slow.stream = std::make_shared<TokenStream>(8);
  const SeqId id = engine_->Submit(std::move(slow)).first;
  while (engine_->RunOnce()) {
  }
  clock_.Advance(seconds(31));
  engine_->RunOnce();
  auto all = TakeAll();
  EXPECT_EQ(Reason(all[id]), FinishReason::kSlowReader);
  EXPECT_EQ(engine_->stats().blocks_held, 0);
}

TEST_F(EngineTest, AStopFoundOutsideEndsTheSequenceWithTheTokensThatCount) {
  Make();
  const SeqId id = engine_->Submit(Request(Prompt(1, 4), 100)).first;
  for (int i = 0; i < 10; ++i) engine_->RunOnce();
  engine_->StopFound(id, 3);
  RunUntilIdle();
  auto all = TakeAll();
  EXPECT_EQ(Reason(all[id]), FinishReason::kStop);
  EXPECT_EQ(all[id].back().event.num_completion_tokens, 3);
}

TEST_F(EngineTest, Fault_R9_NonFiniteLogitsEndOneSequence) {
  Make();
  runner_->nonfinite_tokens = {7};
  const SeqId bad = engine_->Submit(Request(Prompt(1, 4), 10)).first;
  const SeqId good = engine_->Submit(Request(Prompt(100, 4), 10)).first;
  RunUntilIdle();
  auto all = TakeAll();
  EXPECT_EQ(Tokens(all[bad]), (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(Reason(all[bad]), FinishReason::kNonFinite);
  EXPECT_EQ(Tokens(all[good]).size(), 10u);
}

TEST_F(EngineTest, ADeviceErrorEndsEveryRequestAndRefusesNewOnes) {
  Make();
  runner_->fail_at_step = 3;
  engine_->Start();
  const SeqId id = engine_->Submit(Request(Prompt(1, 4), 100)).first;
  std::vector<StreamEvent> events;
  bool finished = false;
  while (!finished && outbox_.Pop(events)) {
    for (const StreamEvent& event : events) {
      finished = event.event.id == id && event.event.kind == SequenceEvent::Kind::kFinished;
      if (finished) {
        EXPECT_EQ(event.event.reason, FinishReason::kDrained);
      }
    }
  }
  EXPECT_TRUE(engine_->fatal_error().has_value());
  EXPECT_EQ(engine_->Submit(Request(Prompt(1, 4), 1)).status.code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(EngineTest, TheAgeOfATurnIsThatOfTheOneThatRuns) {
  Make();
  runner_->on_launch = [&](const SchedulerOutput&) {
    EXPECT_EQ(engine_->turn_age(), Duration::zero());
    clock_.Advance(seconds(40));
    EXPECT_EQ(engine_->turn_age(), seconds(40));
  };
  EXPECT_EQ(engine_->turn_age(), Duration::zero());
  engine_->Submit(Request(Prompt(1, 4), 2));
  EXPECT_TRUE(engine_->RunOnce());
  EXPECT_EQ(engine_->turn_age(), Duration::zero());
  EXPECT_TRUE(engine_->RunOnce());  // the age starts anew
}

TEST_F(EngineTest, DrainRefusesNewRequestsAndFinishesOldOnes) {
  Make();
  engine_->Start();
  const SeqId id = engine_->Submit(Request(Prompt(1, 4), 50)).first;
  engine_->StopAccepting();
  EXPECT_EQ(engine_->Submit(Request(Prompt(1, 4), 1)).status.code(),
            absl::StatusCode::kUnavailable);
  EXPECT_TRUE(engine_->WaitIdle(std::chrono::steady_clock::now() + seconds(60)));
  engine_->Stop();
  auto all = TakeAll();
  EXPECT_EQ(Tokens(all[id]).size(), 50u);
}

TEST_F(EngineTest, StopAnswersEverySubmission) {
  Make();
  const SeqId id = engine_->Submit(Request(Prompt(1, 4), 50)).first;
  engine_->Stop();
  auto all = TakeAll();
  EXPECT_EQ(Reason(all[id]), FinishReason::kDrained);
}

TEST_F(EngineTest, QuestionsToAStoppedEngineAreAnsweredAtOnce) {
  Make();
  int answers = 0;
  const auto ask = [&] {
    engine_->List([&](const std::vector<SequenceInfo>& list) {
      EXPECT_TRUE(list.empty());
      ++answers;
    });
    engine_->ResetPrefixCache([&](int32_t blocks) {
      EXPECT_EQ(blocks, 0);
      ++answers;
    });
  };
  engine_->Start();
  ask();  // before or after the end: answered either way
  engine_->Stop();
  EXPECT_EQ(answers, 2);
  ask();
  EXPECT_EQ(answers, 4);
}

TEST_F(EngineTest, QuestionsAfterADeviceErrorAreAnswered) {
  Make();
  runner_->fail_at_step = 1;
  engine_->Start();
  engine_->Submit(Request(Prompt(1, 4), 100));
  std::vector<StreamEvent> events;
  ASSERT_TRUE(outbox_.Pop(events));
  std::promise<void> listed, reset;
  engine_->List([&](const std::vector<SequenceInfo>&) { listed.set_value(); });
  engine_->ResetPrefixCache([&](int32_t) { reset.set_value(); });
  listed.get_future().wait();  // the test's own time limit
  reset.get_future().wait();
}

TEST_F(EngineTest, ListShowsWhatRunsAndWhatWaits) {
  config_.scheduler.max_num_seqs = 1;
  Make();
  const SeqId running = engine_->Submit(Request(Prompt(1, 4), 30)).first;
  engine_->RunOnce();
  const SeqId waiting = engine_->Submit(Request(Prompt(100, 6), 30)).first;
  std::vector<SequenceInfo> list;
  engine_->List([&](std::vector<SequenceInfo> all) { list = std::move(all); });
  engine_->RunOnce();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].id, running);
  EXPECT_EQ(list[0].state, SequenceInfo::State::kRunning);
  EXPECT_EQ(list[0].num_completion_tokens, 1);
  EXPECT_EQ(list[1].id, waiting);
  EXPECT_EQ(list[1].state, SequenceInfo::State::kWaiting);
  EXPECT_EQ(list[1].num_prompt_tokens, 6);
}

TEST_F(EngineTest, ResetPrefixCacheForgetsHeldBlocksToo) {
  Make();
  engine_->Submit(Request(Prompt(1, 9), 20));  // two full blocks
  engine_->RunOnce();
  int32_t forgotten = -1;
  engine_->ResetPrefixCache([&](int32_t blocks) { forgotten = blocks; });
  engine_->RunOnce();
  EXPECT_EQ(forgotten, 2);
  const SeqId again = engine_->Submit(Request(Prompt(1, 9), 1)).first;
  RunUntilIdle();
  auto all = TakeAll();
  EXPECT_EQ(all[again].back().event.num_cached_tokens, 0);
}

TEST_F(EngineTest, ASleepingEngineKeepsNoStreamAlive) {
  Make();
  EngineRequest request = Request(Prompt(1, 4), 2);
  const std::weak_ptr<TokenStream> stream = request.stream;
  const SeqId id = engine_->Submit(std::move(request)).first;
  engine_->Abort(id, 1, FinishReason::kCancelled);
  EXPECT_FALSE(engine_->RunOnce());  // sleeps now
  TakeAll();
  EXPECT_TRUE(stream.expired());
}

TEST_F(EngineTest, ListsOfAQueuedRequestCountAsItsTokens) {
  config_.max_queued_tokens = 4000;
  Make();
  const auto with_bad_words = [&] {
    EngineRequest request = Request(Prompt(1, 4), 2);
    request.params.sampling.bad_words.assign(10, std::vector<TokenId>(200, TokenId{5}));
    return request;
  };
  EXPECT_TRUE(engine_->Submit(with_bad_words()).status.ok());
  const Status refused = engine_->Submit(with_bad_words()).status;
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(StatusMessage(refused).find("limit --max-queued-tokens 4000"), std::string::npos);
  RunUntilIdle();
  EXPECT_TRUE(engine_->Submit(with_bad_words()).status.ok());
  RunUntilIdle();
}

// Two requests in one slot: the first decodes for ten seconds; the second one's prompt alone would
// take a hundredth of one.
TEST_F(EngineTest, TheEstimatedDelayCountsSlotsThatHaveToTurnOver) {
  config_.scheduler.max_num_seqs = 1;
  Make();
  runner_->on_launch = [&](const SchedulerOutput&) { clock_.Advance(milliseconds(100)); };
  engine_->Submit(Request(Prompt(1, 10), 100));
  engine_->RunOnce();
  engine_->Submit(Request(Prompt(100, 1), 100));
  engine_->RunOnce();
  EXPECT_FALSE(engine_->estimated_queue_delay_seconds().has_value()) << "no slot was ever freed";
  RunUntilIdle();
  engine_->Submit(Request(Prompt(1, 10), 100));
  engine_->RunOnce();
  const SeqId second = engine_->Submit(Request(Prompt(100, 1), 100)).first;
  const SeqId third = engine_->Submit(Request(Prompt(101, 1), 100)).first;
  engine_->RunOnce();
  EXPECT_NEAR(engine_->estimated_queue_delay_seconds().value(), 20.0, 1.0);
  auto all = TakeAll();
  EXPECT_NEAR(all[second].front().queued->estimated_delay_seconds.value(), 10.0, 0.5);
  EXPECT_EQ(all[third].front().queued->position, 1);
  EXPECT_NEAR(all[third].front().queued->estimated_delay_seconds.value(), 20.0, 1.0);
}

TEST_F(EngineTest, APauseOfTheReaderIsNoDecodeStall) {
  Make();
  EngineRequest slow = Request(Prompt(1, 4), 40);
  slow.stream = std::make_shared<TokenStream>(8);
  const std::shared_ptr<TokenStream> stream = slow.stream;
  const SeqId id = engine_->Submit(std::move(slow)).first;
  while (engine_->RunOnce()) clock_.Advance(milliseconds(1));
  clock_.Advance(seconds(20));
  ASSERT_TRUE(stream->TakeDelivered(9));
  engine_->ReaderCaughtUp(id, 1);
  ASSERT_TRUE(engine_->RunOnce());
  EXPECT_EQ(observer_.last.longest_decode_stall_seconds, 0.0);
  clock_.Advance(milliseconds(2));
  ASSERT_TRUE(engine_->RunOnce());
  EXPECT_NEAR(observer_.last.longest_decode_stall_seconds, 0.002, 1e-9);
}

TEST_F(EngineTest, APreemptionIsNoDecodeStall) {
  cache_config_.num_blocks = 8;  // 32 tokens for two sequences of 24
  cache_config_.enable_prefix_cache = false;
  Make();
  const SeqId first = engine_->Submit(Request(Prompt(1, 4), 20)).first;
  const SeqId second = engine_->Submit(Request(Prompt(100, 4), 20)).first;
  double longest = 0.0;
  for (int i = 0; i < 200 && engine_->RunOnce(); ++i) {
    clock_.Advance(milliseconds(1));
    longest = std::max(longest, observer_.last.longest_decode_stall_seconds);
  }
  auto all = TakeAll();
  EXPECT_GT(all[first].back().event.num_preemptions + all[second].back().event.num_preemptions, 0);
  EXPECT_EQ(Tokens(all[second]).size(), 20u);
  EXPECT_LE(longest, 0.0021);  // one step, or one with a chunk of the other's
}

TEST_F(EngineTest, SubmittersOnManyThreadsGetAllTheirTokens) {
  Make();
  engine_->Start();
  constexpr int kThreads = 4;
  constexpr int kEach = 50;
  std::vector<std::thread> threads;
  std::atomic<int> submitted{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const SubmitResult result =
            engine_->Submit(Request(Prompt(t * 10, 3 + i % 20), 1 + i % 7, 1 + i % 3));
        if (result.status.ok()) submitted += 1 + i % 3;
        if (i % 5 == 0 && result.status.ok())
          engine_->Abort(result.first, 1, FinishReason::kAborted);
      }
    });
  }
  int finished = 0;
  std::thread reader([&] {
    std::vector<StreamEvent> events;
    while (outbox_.Pop(events)) {
      for (const StreamEvent& event : events) {
        event.stream->TakeDelivered(1);
        if (!event.queued && event.event.kind == SequenceEvent::Kind::kFinished) ++finished;
      }
    }
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(engine_->WaitIdle(std::chrono::steady_clock::now() + seconds(60)));
  engine_->Stop();
  outbox_.Close();
  reader.join();
  EXPECT_EQ(finished, submitted.load());
  EXPECT_EQ(engine_->stats().blocks_held, 0);
  EXPECT_EQ(engine_->stats().blocks_leaked, 0);
}

}  // namespace
}  // namespace longspan
