// The two meeting points of engine and output side: a locked vector of events, and the pair of
// atomics by which a reader that fell behind and one that caught up never miss each other.
#include "engine/token_stream.h"

#include <iterator>
#include <utility>

namespace longspan {

// The two sides write one variable and read the other: in one total order at least one of them sees
// what the other wrote. Anything weaker would let both miss it, and the pause would never end.
bool TokenStream::TakeDelivered(int64_t tokens) {
  const int64_t left = pending_tokens_.fetch_sub(tokens, std::memory_order_seq_cst) - tokens;
  return left <= max_pending_tokens_ / 2 && paused_.exchange(false, std::memory_order_seq_cst);
}

bool TokenStream::PauseIfBehind() {
  if (pending_tokens() <= max_pending_tokens_) return false;
  paused_.store(true, std::memory_order_seq_cst);
  // The reader may have caught up between the two lines; then nobody else would tell the engine.
  if (pending_tokens_.load(std::memory_order_seq_cst) <= max_pending_tokens_ / 2) {
    return !paused_.exchange(false, std::memory_order_seq_cst);
  }
  return true;
}

void Outbox::Push(std::vector<StreamEvent>& events) {
  if (events.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    if (events_.empty()) {
      events_.swap(events);
    } else {
      std::move(events.begin(), events.end(), std::back_inserter(events_));
    }
  }
  events.clear();
  ready_.notify_one();
}

bool Outbox::Pop(std::vector<StreamEvent>& events) {
  events.clear();
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [this] { return closed_ || !events_.empty(); });
  events.swap(events_);
  return !events.empty();
}

void Outbox::Close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  ready_.notify_all();
}

}  // namespace longspan
