// Waiting chunks of one sequence merge; everything else keeps its order. Pump is the only place
// that calls the sink: outside the lock, and by one thread at a time.
#include "server/response_queue.h"

#include <utility>

#include "core/check.h"

namespace longspan {
namespace {

// Chunks are not merged beyond this; replies stay far below 4 MB even with 20 log-probabilities a
// token.
constexpr int64_t kMaxMergedTokens = 4096;

void MergeChunk(v1::Chunk& from, v1::Chunk& into) {
  into.mutable_token_ids()->MergeFrom(from.token_ids());
  into.mutable_text()->append(from.text());
  for (v1::TokenLogprobs& entry : *from.mutable_logprobs()) {
    *into.add_logprobs() = std::move(entry);
  }
}

}  // namespace

void ResponseQueue::Attach(ResponseSink& sink) {
  const std::lock_guard lock(mutex_);
  sink_ = &sink;
}

void ResponseQueue::Push(v1::GenerateResponse response, int64_t num_tokens) {
  const std::lock_guard lock(mutex_);
  if (status_ || is_broken_) return;
  if (response.has_chunk() && TryMerge(response, num_tokens)) return;
  waiting_.push_back({std::move(response), num_tokens});
}

// Sequences are independent of each other, so only the last message of the same one has to be a
// chunk.
bool ResponseQueue::TryMerge(v1::GenerateResponse& response, int64_t num_tokens) {
  const int32_t index = response.chunk().index();
  for (auto it = waiting_.rbegin(); it != waiting_.rend(); ++it) {
    v1::GenerateResponse& earlier = it->response;
    if (!earlier.has_chunk() && !earlier.has_finished()) return false;
    if (!earlier.has_chunk() || earlier.chunk().index() != index) continue;
    if (it->num_tokens + num_tokens > kMaxMergedTokens) return false;
    MergeChunk(*response.mutable_chunk(), *earlier.mutable_chunk());
    it->num_tokens += num_tokens;
    return true;
  }
  return false;
}

void ResponseQueue::Flush() { Pump(); }

int64_t ResponseQueue::OnWriteDone(bool ok) {
  int64_t num_tokens = 0;
  {
    const std::lock_guard lock(mutex_);
    CHECK(in_flight_.has_value(), "no write is in flight");
    num_tokens = in_flight_->num_tokens;
    in_flight_.reset();
    if (!ok) {
      is_broken_ = true;
      waiting_.clear();
    }
  }
  Pump();
  return num_tokens;
}

void ResponseQueue::Finish(grpc::Status status, Rest rest) {
  {
    const std::lock_guard lock(mutex_);
    CHECK(!status_.has_value(), "a call ends once");
    status_ = std::move(status);
    if (rest == Rest::kDiscard) {
      waiting_.clear();
      finish_at_once_ = true;
    }
  }
  Pump();
}

// The sink is called outside the lock (it may answer at once) and by one thread at a time: a thread
// that comes while another pumps leaves its wish in the members.
void ResponseQueue::Pump() {
  std::unique_lock lock(mutex_);
  if (is_pumping_ || sink_ == nullptr || is_finished_) return;
  is_pumping_ = true;
  while (!is_finished_) {
    if (!waiting_.empty() && !in_flight_) {
      in_flight_ = std::move(waiting_.front());
      waiting_.pop_front();
      // in_flight_ may be reset during the call: the sink gets a message that stays.
      const v1::GenerateResponse response = std::move(in_flight_->response);
      lock.unlock();
      sink_->StartWrite(response);
      lock.lock();
    } else if (status_ && waiting_.empty() && (!in_flight_ || finish_at_once_)) {
      is_finished_ = true;
      const grpc::Status status = *status_;
      lock.unlock();
      sink_->Finish(status);
      lock.lock();
    } else {
      break;
    }
  }
  is_pumping_ = false;
}

}  // namespace longspan
