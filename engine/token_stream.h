// The way back of one request. The engine pushes a step's events for all requests into the Outbox
// in one locked push; the output thread takes them and turns them into messages. A TokenStream is
// the handle both sides hold: it counts what its reader has not taken yet, so that a slow reader is
// seen and paused.
//
// Threads: Outbox and the counters of TokenStream cross threads (engine, output, gRPC); nothing
// else does.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/clock.h"
#include "scheduler/request.h"

namespace longspan {

// Shared by the engine and the output side; the server derives its per-request state from it.
class TokenStream {
 public:
  explicit TokenStream(int64_t max_pending_tokens) : max_pending_tokens_(max_pending_tokens) {}
  virtual ~TokenStream() = default;

  // Engine thread: tokens handed to the outbox, sampled ones and the prompt's with
  // log-probabilities. Output side: tokens whose write has completed.
  void AddPending(int64_t tokens) { pending_tokens_.fetch_add(tokens, std::memory_order_relaxed); }
  // Returns true when this delivery brings a paused reader below half of its bound: the caller then
  // tells the engine (Engine::ReaderCaughtUp).
  bool TakeDelivered(int64_t tokens);

  // Engine thread: whether the reader is behind; marks the stream as paused when it is.
  bool PauseIfBehind();
  int64_t pending_tokens() const { return pending_tokens_.load(std::memory_order_relaxed); }

 private:
  const int64_t max_pending_tokens_;
  std::atomic<int64_t> pending_tokens_{0};
  std::atomic<bool> paused_{false};
};

// The request has to wait: sent at most once, before anything else.
struct QueuedNotice {
  int32_t position = 0;  // requests before it
  std::optional<double> estimated_delay_seconds;
};

// Why a request ended with kDeadline before it ran.
struct HopelessDeadline {
  double estimated_seconds = 0.0;  // until its first token, at best
  double deadline_seconds = 0.0;   // both since it was submitted
};

// One event of one request, stamped when the engine pushed it.
struct StreamEvent {
  std::shared_ptr<TokenStream> stream;
  SequenceEvent event;
  TimePoint time{};
  // Set: only this is meant, and event names the sequence.
  std::optional<QueuedNotice> queued = std::nullopt;
  // Goes with kFinished, reason kDeadline.
  std::optional<HopelessDeadline> hopeless = std::nullopt;
};

class Outbox {
 public:
  // Engine thread: moves all events in, leaves `events` empty with its capacity.
  void Push(std::vector<StreamEvent>& events);
  // Output thread: waits for events or Close; false when closed and empty. `events` is replaced.
  bool Pop(std::vector<StreamEvent>& events);
  // Any thread: Pop returns what is left, then false.
  void Close();

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<StreamEvent> events_;
  bool closed_ = false;
};

}  // namespace longspan
