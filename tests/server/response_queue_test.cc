// Order, merging and the end of one call's messages.
#include "server/response_queue.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace longspan {
namespace {

v1::GenerateResponse ChunkOf(int32_t index, int32_t id, const std::string& text = "") {
  v1::GenerateResponse response;
  response.mutable_chunk()->set_index(index);
  response.mutable_chunk()->add_token_ids(id);
  response.mutable_chunk()->set_text(text);
  return response;
}

v1::GenerateResponse FinishedOf(int32_t index) {
  v1::GenerateResponse response;
  response.mutable_finished()->set_index(index);
  return response;
}

// Holds every write until the test says that it is done.
class HeldSink : public ResponseSink {
 public:
  void StartWrite(const v1::GenerateResponse& response) override { writes.push_back(response); }
  void Finish(const grpc::Status& status) override {
    EXPECT_FALSE(finished.has_value());
    finished = status.error_code();
  }
  std::vector<v1::GenerateResponse> writes;
  std::optional<grpc::StatusCode> finished;
};

// Answers during the call, as a transport may.
class InlineSink final : public HeldSink {
 public:
  void StartWrite(const v1::GenerateResponse& response) override {
    HeldSink::StartWrite(response);
    queue->OnWriteDone(true);
  }
  ResponseQueue* queue = nullptr;
};

TEST(ResponseQueue, WritesNothingWithoutASink) {
  ResponseQueue queue;
  HeldSink sink;
  queue.Push(ChunkOf(0, 1), 1);
  queue.Flush();
  queue.Attach(sink);
  queue.Flush();
  EXPECT_EQ(sink.writes.size(), 1u);
}

TEST(ResponseQueue, OneWriteIsInFlightAndTheRestBecomesOneMessage) {
  ResponseQueue queue;
  HeldSink sink;
  queue.Attach(sink);
  queue.Push(ChunkOf(0, 1, "a"), 1);
  queue.Flush();
  for (int32_t id = 2; id <= 5; ++id) queue.Push(ChunkOf(0, id, "b"), 1);
  queue.Flush();
  ASSERT_EQ(sink.writes.size(), 1u);
  EXPECT_EQ(queue.OnWriteDone(true), 1);
  ASSERT_EQ(sink.writes.size(), 2u);
  EXPECT_EQ(sink.writes[1].chunk().token_ids_size(), 4);
  EXPECT_EQ(sink.writes[1].chunk().text(), "bbbb");
  EXPECT_EQ(queue.OnWriteDone(true), 4);
}

TEST(ResponseQueue, ChunksOfDifferentSequencesAreNotMixed) {
  ResponseQueue queue;
  HeldSink sink;
  queue.Attach(sink);
  for (int32_t id = 0; id < 6; ++id) queue.Push(ChunkOf(id % 2, id), 1);
  queue.Push(FinishedOf(0), 0);
  queue.Push(ChunkOf(1, 6), 1);
  queue.Push(FinishedOf(1), 0);
  for (int i = 0; i < 4; ++i) {
    queue.Flush();
    queue.OnWriteDone(true);
  }
  ASSERT_EQ(sink.writes.size(), 4u);
  EXPECT_EQ(sink.writes[0].chunk().token_ids_size(), 3);
  EXPECT_EQ(sink.writes[1].chunk().token_ids_size(), 4) << "joined past the other's end";
  EXPECT_EQ(sink.writes[2].finished().index(), 0);
  EXPECT_EQ(sink.writes[3].finished().index(), 1);
}

TEST(ResponseQueue, ChunksDoNotOvertakeTheStart) {
  ResponseQueue queue;
  HeldSink sink;
  queue.Attach(sink);
  v1::GenerateResponse started;
  started.mutable_started();
  queue.Push(std::move(started), 0);
  queue.Push(ChunkOf(0, 1), 1);
  queue.Flush();
  EXPECT_TRUE(sink.writes[0].has_started());
}

TEST(ResponseQueue, StatusComesAfterTheRest) {
  ResponseQueue queue;
  HeldSink sink;
  queue.Attach(sink);
  queue.Push(ChunkOf(0, 1), 1);
  queue.Push(FinishedOf(0), 0);
  queue.Finish(grpc::Status::OK, ResponseQueue::Rest::kSend);
  EXPECT_FALSE(sink.finished);
  queue.OnWriteDone(true);
  EXPECT_FALSE(sink.finished);
  queue.OnWriteDone(true);
  EXPECT_EQ(sink.finished, grpc::StatusCode::OK);
  EXPECT_EQ(sink.writes.size(), 2u);
}

// Brings a queue to where one chunk is being written and a second one waits behind it.
void PushOneInFlightAndOneBehind(ResponseQueue& queue, HeldSink& sink) {
  queue.Attach(sink);
  queue.Push(ChunkOf(0, 1), 1);
  queue.Flush();
  queue.Push(ChunkOf(0, 2), 1);
}

TEST(ResponseQueue, DiscardEndsAtOnceBehindTheWriteInFlight) {
  ResponseQueue queue;
  HeldSink sink;
  PushOneInFlightAndOneBehind(queue, sink);
  queue.Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, ""}, ResponseQueue::Rest::kDiscard);
  EXPECT_EQ(sink.finished, grpc::StatusCode::RESOURCE_EXHAUSTED);
  queue.OnWriteDone(true);
  EXPECT_EQ(sink.writes.size(), 1u);
}

TEST(ResponseQueue, AFailedWriteDropsTheRestAndWaitsForTheStatus) {
  ResponseQueue queue;
  HeldSink sink;
  PushOneInFlightAndOneBehind(queue, sink);
  queue.OnWriteDone(false);
  queue.Push(ChunkOf(0, 3), 1);
  queue.Flush();
  EXPECT_EQ(sink.writes.size(), 1u);
  EXPECT_FALSE(sink.finished);
  queue.Finish({grpc::StatusCode::CANCELLED, ""}, ResponseQueue::Rest::kSend);
  EXPECT_EQ(sink.finished, grpc::StatusCode::CANCELLED);
}

TEST(ResponseQueue, ASinkMayAnswerDuringTheCall) {
  ResponseQueue queue;
  InlineSink sink;
  sink.queue = &queue;
  queue.Attach(sink);
  for (int32_t i = 0; i < 10; ++i) queue.Push(FinishedOf(i), 0);
  queue.Finish(grpc::Status::OK, ResponseQueue::Rest::kSend);
  EXPECT_EQ(sink.writes.size(), 10u);
  EXPECT_EQ(sink.finished, grpc::StatusCode::OK);
}

}  // namespace
}  // namespace longspan
