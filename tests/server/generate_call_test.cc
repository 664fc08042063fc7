// Generate calls from submission to their end on the real engine, without gRPC: text, stop strings,
// cancels at every moment, slow readers, and that every end is counted once. Runs under TSan.
#include "server/generate_call.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "server/output_thread.h"
#include "tests/server/served_fake.h"

namespace longspan {
namespace {

using testing::FakeModelOptions;
using testing::RecordingLifecycle;
using testing::RecordingObserver;
using testing::ServedFake;

constexpr auto kPatience = std::chrono::seconds(60);  // a hang fails instead of blocking the suite

// A client that takes messages at once, or holds the first write until told.
class Client final : public ResponseSink {
 public:
  std::shared_ptr<GenerateCall> call;
  // Called for every message before it counts as written; any thread.
  std::function<void(const v1::GenerateResponse&)> on_message;
  bool reads = true;  // false: writes never complete until Read()

  void StartWrite(const v1::GenerateResponse& response) override {
    if (on_message) on_message(response);
    {
      const std::lock_guard lock(mutex_);
      responses_.push_back(response);
    }
    changed_.notify_all();
    if (reads) call->OnWriteDone(true);
  }
  void Finish(const grpc::Status& status) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(status_.has_value()) << "ended twice";
    status_ = status;
    changed_.notify_all();
  }

  grpc::Status WaitEnd() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [this] { return status_.has_value(); }));
    return status_.value_or(grpc::Status(grpc::StatusCode::UNKNOWN, "never ended"));
  }
  std::vector<v1::GenerateResponse> responses() const {
    const std::lock_guard lock(mutex_);
    return responses_;
  }
  std::vector<int32_t> ids(int32_t index = 0) const {
    std::vector<int32_t> out;
    for (const auto& response : responses()) {
      if (response.chunk().index() != index) continue;
      out.insert(out.end(), response.chunk().token_ids().begin(),
                 response.chunk().token_ids().end());
    }
    return out;
  }
  std::string text() const {
    std::string out;
    for (const auto& response : responses()) out += response.chunk().text();
    return out;
  }
  std::optional<v1::Finished> finished(int32_t index = 0) const {
    for (const auto& response : responses()) {
      if (response.has_finished() && response.finished().index() == index) {
        return response.finished();
      }
    }
    return std::nullopt;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<v1::GenerateResponse> responses_;
  std::optional<grpc::Status> status_;
};

std::vector<int32_t> Range(int32_t first, int32_t count) {
  std::vector<int32_t> out;
  for (int32_t i = 0; i < count; ++i) out.push_back(first + i);
  return out;
}

class GenerateCallTest : public ::testing::Test {
 protected:
  void Serve(const FakeModelOptions& options = {}) {
    served_ = std::make_unique<ServedFake>(options, clock_, outbox_);
    context_ = std::make_unique<ServerContext>(ServerInfo(), clock_, observer_, lifecycle_);
    context_->SetServing(served_->fake.model, *served_->engine);
    output_ = std::make_unique<OutputThread>(outbox_);
  }
  void TearDown() override {
    if (served_ == nullptr) return;
    EXPECT_TRUE(served_->engine->WaitIdle(clock_.Now() + kPatience));
    const EngineStats stats = served_->engine->stats();
    EXPECT_EQ(stats.blocks_held, 0);
    EXPECT_EQ(stats.blocks_leaked, 0);
    EXPECT_EQ(stats.requests_running + stats.requests_waiting + stats.requests_paused, 0);
    served_->engine->Stop();
    output_.reset();
    EXPECT_EQ(registry_.size(), 0);
    EXPECT_EQ(observer_.num_ended(), static_cast<int>(clients_.size()))
        << "every call ends exactly once";
    EXPECT_GE(observer_.counts().smallest_seconds, 0.0) << "no negative time";
    for (const auto& client : clients_) client->call.reset();
  }

  static v1::GenerateRequest Request(int32_t last_prompt_id, int32_t max_tokens,
                                     int32_t prompt_tokens = 1) {
    v1::GenerateRequest request;
    for (int32_t i = prompt_tokens; i > 0; --i) {
      request.mutable_token_ids()->add_ids(last_prompt_id - i + 1);
    }
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stop()->set_max_tokens(max_tokens);
    return request;
  }

  // What a handler does, on this thread.
  Client& Start(const v1::GenerateRequest& request,
                std::function<void(const v1::GenerateResponse&)> on_message = nullptr,
                bool reads = true, std::optional<Duration> timeout = std::nullopt) {
    clients_.push_back(std::make_unique<Client>());
    Client& client = *clients_.back();
    client.on_message = std::move(on_message);
    client.reads = reads;
    CallTimes times{clock_.Now(), std::nullopt};
    if (timeout) times.deadline = times.arrival + *timeout;
    client.call = std::make_shared<GenerateCall>(*context_, registry_, times, kMaxPending);
    client.call->Attach(client);
    EXPECT_TRUE(client.call->TakeId(request.request_id()));
    ValidatedRequest validated;
    const grpc::Status status = RequestValidator(served_->fake.model)
                                    .Build(request, 1, client.call->cancelled(), validated);
    if (status.ok()) {
      client.call->Submit(std::move(validated));
    } else {
      client.call->Refuse(status);
    }
    return client;
  }

  static constexpr int64_t kMaxPending = 16;
  SteadyClock clock_;
  RecordingObserver observer_;
  RecordingLifecycle lifecycle_;
  RequestRegistry registry_;
  Outbox outbox_;
  std::unique_ptr<ServedFake> served_;
  std::unique_ptr<ServerContext> context_;
  std::vector<std::unique_ptr<Client>> clients_;  // before output_: it may still be in a Finish
  std::unique_ptr<OutputThread> output_;
};

TEST_F(GenerateCallTest, StreamsStartedChunksAndFinishedInThisOrder) {
  Serve();
  served_->engine->Start();
  Client& client = Start(Request(10, 5, 3));
  EXPECT_TRUE(client.WaitEnd().ok());
  EXPECT_EQ(client.ids(), Range(11, 5));
  const auto responses = client.responses();
  ASSERT_GE(responses.size(), 3u);
  EXPECT_TRUE(responses.front().has_started());
  EXPECT_EQ(responses.front().started().prompt_tokens(), 3);
  EXPECT_EQ(responses.front().started().seed(), 1u);
  EXPECT_TRUE(responses.back().has_finished());
  const v1::Finished finished = *client.finished();
  EXPECT_EQ(finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(finished.usage().completion_tokens(), 5);
  EXPECT_EQ(finished.usage().prompt_tokens(), 3);
  EXPECT_GE(finished.timings().time_to_first_token_seconds(), 0.0);
  EXPECT_EQ(observer_.outcome(RequestOutcome::kLength), 1);
  EXPECT_EQ(observer_.counts().tokens, 5);
  EXPECT_EQ(observer_.counts().first_tokens, 1);
}

TEST_F(GenerateCallTest, Case_023_EosAndStopIds) {
  FakeModelOptions options;
  options.eos = {TokenId{20}};
  Serve(options);
  served_->engine->Start();
  v1::GenerateRequest request = Request(15, 10);
  Client& eos = Start(request);
  request.mutable_stop()->set_ignore_eos(true);
  Client& ignored = Start(request);
  request.mutable_stop()->add_token_ids(18);
  Client& stop_id = Start(request);
  request.mutable_stop()->set_token_ids(0, 20);
  Client& explicit_eos = Start(request);
  for (Client* client : {&eos, &ignored, &stop_id, &explicit_eos}) {
    EXPECT_TRUE(client->WaitEnd().ok());
  }
  EXPECT_EQ(eos.ids(), Range(16, 5));
  EXPECT_EQ(eos.finished()->matched_token_id(), 20);
  EXPECT_EQ(ignored.ids(), Range(16, 10));
  EXPECT_EQ(ignored.finished()->reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(stop_id.ids(), Range(16, 3));
  EXPECT_EQ(stop_id.finished()->matched_token_id(), 18);
  EXPECT_EQ(explicit_eos.ids(), Range(16, 5)) << "listed, it wins over ignore_eos";
  EXPECT_EQ(explicit_eos.finished()->usage().completion_tokens(), 5);
}

TEST_F(GenerateCallTest, Case_021_NothingPastAStopStringIsStreamedOrCounted) {
  FakeModelOptions options;
  options.tokens = {"foo ", "ba", "rba", "z qux"};
  options.first_token_id = 300;
  Serve(options);
  served_->engine->Start();
  v1::GenerateRequest request = Request(299, 50);
  request.mutable_stop()->add_strings("rb");
  for (const bool include : {false, true}) {
    request.mutable_stop()->set_include_stop_in_output(include);
    Client& client = Start(request);
    EXPECT_TRUE(client.WaitEnd().ok());
    EXPECT_EQ(client.text(), include ? "foo barb" : "foo ba");
    EXPECT_EQ(client.ids(), Range(300, 3)) << "ids are never trimmed, but end with the match";
    const v1::Finished finished = *client.finished();
    EXPECT_EQ(finished.reason(), v1::FINISH_REASON_STOP);
    EXPECT_EQ(finished.matched_string(), "rb");
    EXPECT_EQ(finished.usage().completion_tokens(), 3);
  }
  EXPECT_EQ(observer_.counts().tokens, 6);
  EXPECT_EQ(observer_.outcome(RequestOutcome::kStop), 2);
}

TEST_F(GenerateCallTest, AStopStringWorksWhenNeitherTextNorIdsAreWanted) {
  FakeModelOptions options;
  options.tokens = {"a", "b"};
  options.first_token_id = 300;
  Serve(options);
  served_->engine->Start();
  v1::GenerateRequest request = Request(299, 50);
  request.mutable_stop()->add_strings("ab");
  request.mutable_output()->set_text(false);
  request.mutable_output()->set_token_ids(false);
  Client& client = Start(request);
  EXPECT_TRUE(client.WaitEnd().ok());
  EXPECT_EQ(client.finished()->usage().completion_tokens(), 2);
  for (const auto& response : client.responses()) EXPECT_FALSE(response.has_chunk());
}

TEST_F(GenerateCallTest, Case_019_LengthInsideACharacter) {
  FakeModelOptions options;
  options.tokens = {"\xf0", "\x9f", "\x98", "\x80"};
  options.first_token_id = 300;
  Serve(options);
  served_->engine->Start();
  for (int32_t max_tokens = 1; max_tokens <= 4; ++max_tokens) {
    Client& client = Start(Request(299, max_tokens));
    EXPECT_TRUE(client.WaitEnd().ok());
    EXPECT_EQ(client.text(), max_tokens == 4 ? "😀" : "\xef\xbf\xbd");
    EXPECT_EQ(client.ids(), Range(300, max_tokens));
    EXPECT_EQ(client.finished()->reason(), v1::FINISH_REASON_LENGTH);
  }
}

TEST_F(GenerateCallTest, SequencesOfOneRequestEndOneByOne) {
  Serve();
  served_->engine->Start();
  v1::GenerateRequest request = Request(10, 6, 5);
  request.set_n(4);
  Client& client = Start(request);
  EXPECT_TRUE(client.WaitEnd().ok());
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(client.ids(i), Range(11, 6));
    ASSERT_TRUE(client.finished(i).has_value());
    EXPECT_EQ(client.finished(i)->usage().prompt_tokens(), 5);
  }
  EXPECT_EQ(observer_.counts().sequences_finished, 4);
  EXPECT_EQ(observer_.counts().started, 1);
  EXPECT_EQ(observer_.outcome(RequestOutcome::kLength), 1);
}

TEST_F(GenerateCallTest, AbortEndsWithFinishedAndOk) {
  Serve();
  served_->engine->Start();
  v1::GenerateRequest request = Request(1, 200);
  request.set_request_id("mine");
  Client* self = nullptr;
  std::once_flag once;
  Client& client = Start(request, [&](const v1::GenerateResponse& response) {
    if (response.has_chunk()) {
      std::call_once(once, [&] { registry_.Find("mine")->Abort(); });
    }
  });
  self = &client;
  EXPECT_TRUE(self->WaitEnd().ok());
  EXPECT_EQ(client.finished()->reason(), v1::FINISH_REASON_ABORTED);
  EXPECT_EQ(observer_.outcome(RequestOutcome::kAborted), 1);
  EXPECT_EQ(registry_.Find("mine"), nullptr);
}

TEST_F(GenerateCallTest, AbortBeforeSubmissionIsNotLost) {
  Serve();  // the engine starts last, so that it cannot be done before it hears of the abort
  clients_.push_back(std::make_unique<Client>());
  Client& client = *clients_.back();
  client.call = std::make_shared<GenerateCall>(*context_, registry_,
                                               CallTimes{clock_.Now(), std::nullopt}, kMaxPending);
  client.call->Attach(client);
  ASSERT_TRUE(client.call->TakeId("early"));
  client.call->Abort();
  ValidatedRequest validated;
  ASSERT_TRUE(
      RequestValidator(served_->fake.model).Build(Request(1, 200), 1, nullptr, validated).ok());
  client.call->Submit(std::move(validated));
  served_->engine->Start();
  EXPECT_TRUE(client.WaitEnd().ok());
  EXPECT_EQ(client.finished()->reason(), v1::FINISH_REASON_ABORTED);
}

TEST_F(GenerateCallTest, AnIdIsFreeAgainWhenTheStatusIsOut) {
  Serve();
  served_->engine->Start();
  v1::GenerateRequest request = Request(1, 3);
  request.set_request_id("again");
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(Start(request).WaitEnd().ok());
}

TEST_F(GenerateCallTest, Fault_C1_CancelWhileQueuedTakesNoBlock) {
  Serve();  // the engine does not run yet: everything is queued
  Client& client = Start(Request(1, 20));
  client.call->OnClientGone();
  EXPECT_EQ(client.WaitEnd().error_code(), grpc::StatusCode::CANCELLED);
  served_->engine->Start();
  EXPECT_TRUE(served_->engine->WaitIdle(clock_.Now() + kPatience));
  EXPECT_TRUE(client.responses().empty());
  EXPECT_EQ(served_->runner->num_steps(), 0) << "never scheduled";
}

TEST_F(GenerateCallTest, Fault_C3_CancelAfterEachToken) {
  Serve();
  served_->engine->Start();
  for (int32_t k = 1; k <= 12; ++k) {
    Client* self = nullptr;
    std::mutex ready;
    std::unique_lock hold(ready);
    std::atomic<int32_t> seen{0};
    Client& client = Start(Request(1, 200), [&](const v1::GenerateResponse& response) {
      if (!response.has_chunk()) return;
      if (seen.fetch_add(response.chunk().token_ids_size()) < k && seen.load() >= k) {
        const std::lock_guard wait(ready);
        self->call->OnClientGone();
      }
    });
    self = &client;
    hold.unlock();
    EXPECT_EQ(client.WaitEnd().error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_FALSE(client.finished().has_value());
    EXPECT_TRUE(served_->engine->WaitIdle(clock_.Now() + kPatience));
    EXPECT_EQ(served_->engine->stats().blocks_held, 0);
  }
  EXPECT_EQ(observer_.outcome(RequestOutcome::kAborted), 12);
}

TEST_F(GenerateCallTest, Fault_C4_CancelOnTheStepThatEnds) {
  Serve();
  served_->engine->Start();
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::promise<void> last_token;
    std::atomic<int> tokens{0};
    Client& client = Start(Request(1, 5), [&](const v1::GenerateResponse& response) {
      const int before = tokens.fetch_add(response.chunk().token_ids_size());
      if (before < 5 && before + response.chunk().token_ids_size() >= 5) last_token.set_value();
    });
    last_token.get_future().wait();
    for (uint32_t spin = random() % 20; spin > 0; --spin) std::this_thread::yield();
    client.call->OnClientGone();
    const grpc::Status status = client.WaitEnd();
    EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::CANCELLED);
    EXPECT_EQ(status.ok(), client.finished().has_value()) << "one of the two ends, whole";
  }
  EXPECT_EQ(
      observer_.outcome(RequestOutcome::kLength) + observer_.outcome(RequestOutcome::kAborted),
      2000);
}

TEST_F(GenerateCallTest, Fault_C6_SlowReaderPausesAloneAndIsEnded) {
  FakeModelOptions options;
  options.slow_reader_timeout = std::chrono::milliseconds(200);
  Serve(options);
  served_->engine->Start();
  Client& slow = Start(Request(1, 200), nullptr, false);
  // Neighbours are not held up: ten of them come and go meanwhile.
  for (int i = 0; i < 10; ++i) {
    Client& quick = Start(Request(1, 30));
    EXPECT_TRUE(quick.WaitEnd().ok());
    EXPECT_EQ(quick.ids().size(), 30u);
  }
  EXPECT_EQ(slow.WaitEnd().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(observer_.outcome(RequestOutcome::kError), 1);
  // One message is in flight; behind it the bound and what one step adds.
  EXPECT_LE(observer_.counts().tokens - 300, kMaxPending + 4);
  EXPECT_LE(slow.responses().size(), 1u);
}

TEST_F(GenerateCallTest, AReaderThatCatchesUpGoesOn) {
  Serve();
  served_->engine->Start();
  Client& client = Start(Request(1, 200), nullptr, false);
  // Complete one write after the other; between them the sequence pauses and resumes.
  std::thread reader([&] {
    for (size_t done = 0; true;) {
      const bool has_ended = client.finished().has_value();  // asked first: nothing comes after
      if (client.responses().size() > done) {
        ++done;
        client.call->OnWriteDone(true);
      } else if (has_ended) {
        break;
      } else {
        std::this_thread::yield();
      }
    }
  });
  EXPECT_TRUE(client.WaitEnd().ok());
  reader.join();
  EXPECT_EQ(client.ids(), Range(2, 200));
}

TEST_F(GenerateCallTest, Fault_R9_NonFiniteLogitsEndOneRequest) {
  Serve();
  served_->runner->nonfinite_tokens = {300};
  served_->engine->Start();
  Client& bad = Start(Request(297, 20));
  Client& good = Start(Request(100, 20));
  EXPECT_EQ(bad.WaitEnd().error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(bad.ids(), Range(298, 2)) << "what was computed is delivered";
  EXPECT_TRUE(good.WaitEnd().ok());
  EXPECT_EQ(good.ids(), Range(101, 20));
}

TEST_F(GenerateCallTest, Fault_S4_DeadlineInTheQueue) {
  Serve();
  Client& client = Start(Request(1, 20), nullptr, true, std::chrono::milliseconds(1));
  while (clock_.Now() < client.call->arrival() + std::chrono::milliseconds(1)) {
  }
  served_->engine->Start();
  EXPECT_EQ(client.WaitEnd().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(observer_.outcome(RequestOutcome::kDeadline), 1);
  EXPECT_TRUE(served_->engine->WaitIdle(clock_.Now() + kPatience));
  EXPECT_EQ(served_->runner->num_steps(), 0) << "no compute was spent";
}

TEST_F(GenerateCallTest, AHopelessDeadlineIsToldWithTheEstimate) {
  Serve();
  v1::GenerateRequest request = Request(1, 20);
  request.set_n(2);
  Client& client = Start(request, nullptr, true, std::chrono::hours(1));
  std::vector<StreamEvent> events(2);
  for (int32_t i = 0; i < 2; ++i) {
    StreamEvent& event = events[static_cast<size_t>(i)];
    event.stream = client.call;
    event.event.kind = SequenceEvent::Kind::kFinished;
    event.event.id = SeqId{i + 1};
    event.event.index = i;
    event.event.reason = FinishReason::kDeadline;
    event.hopeless = HopelessDeadline{12.0, 3.5};
  }
  outbox_.Push(events);
  const grpc::Status status = client.WaitEnd();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(status.error_message(),
            "the deadline cannot be met: estimated 12.0 s until the first token (deadline 3.5 s)");
  EXPECT_EQ(observer_.outcome(RequestOutcome::kDeadline), 1);
  served_->engine->Abort(SeqId{1}, 2, FinishReason::kDeadline);  // as if it had said so
  served_->engine->Start();
}

TEST_F(GenerateCallTest, ACancelAtTheDeadlineIsTheDeadline) {
  Serve();
  Client& client = Start(Request(1, 20), nullptr, true, std::chrono::milliseconds(10));
  client.call->OnClientGone();
  EXPECT_EQ(client.WaitEnd().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  Client& early = Start(Request(1, 20), nullptr, true, std::chrono::hours(1));
  early.call->OnClientGone();
  EXPECT_EQ(early.WaitEnd().error_code(), grpc::StatusCode::CANCELLED);
  served_->engine->Start();
}

TEST_F(GenerateCallTest, AFullQueueRefusesAtOnceAndFreesTheId) {
  FakeModelOptions options;
  options.max_queued_requests = 2;
  Serve(options);
  Start(Request(1, 5));
  Start(Request(1, 5));
  v1::GenerateRequest request = Request(1, 5);
  request.set_request_id("third");
  Client& refused = Start(request);
  EXPECT_EQ(refused.WaitEnd().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(registry_.Find("third"), nullptr);
  EXPECT_EQ(observer_.outcome(RequestOutcome::kRejected), 1);
  served_->engine->Start();
}

TEST_F(GenerateCallTest, StoppingTheEngineEndsStreamsWithUnavailable) {
  Serve();
  served_->engine->Start();
  std::promise<void> some_token;
  std::once_flag once;
  Client& client = Start(Request(1, 250), [&](const v1::GenerateResponse& response) {
    if (response.has_chunk()) std::call_once(once, [&] { some_token.set_value(); });
  });
  some_token.get_future().wait();
  served_->engine->Stop();
  const grpc::Status status = client.WaitEnd();
  // All 250 tokens may have been out before the stop came.
  EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::UNAVAILABLE);
  EXPECT_GE(client.ids().size(), 1u);
}

TEST_F(GenerateCallTest, RandomCancelsLeaveNothingBehind) {
  FakeModelOptions options;
  options.num_blocks = 40;
  Serve(options);
  served_->engine->Start();
  std::mt19937 random(11);
  std::vector<std::thread> cancellers;
  for (int i = 0; i < 300; ++i) {
    v1::GenerateRequest request =
        Request(100 + static_cast<int32_t>(random() % 100), 1 + static_cast<int32_t>(random() % 40),
                1 + static_cast<int32_t>(random() % 60));
    request.set_n(1 + static_cast<int32_t>(random() % 3));
    Client& client = Start(request);
    if (random() % 3 == 0) {
      cancellers.emplace_back([call = client.call, spin = random() % 200] {
        for (uint64_t left = spin; left > 0; --left) std::this_thread::yield();
        call->OnClientGone();
      });
    }
    if (i % 16 == 15) client.WaitEnd();
  }
  for (std::thread& canceller : cancellers) canceller.join();
  for (const auto& client : clients_) client->WaitEnd();
}

}  // namespace
}  // namespace longspan
