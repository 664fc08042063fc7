// One Generate call from its arrival to its end: the engine's TokenStream, the text of its
// sequences, the messages that tell about them, and the one place where its end is decided and
// counted. It knows nothing of gRPC's reactors (generate_reactor.h) nor of how requests are checked
// (request_validator.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "engine/engine.h"
#include "engine/token_stream.h"
#include "server/request_observer.h"
#include "server/request_registry.h"
#include "server/request_validator.h"
#include "server/response_queue.h"
#include "server/sequence_output.h"
#include "server/server_context.h"

namespace longspan {

// When the call came and by when its caller wants the answer, in monotonic time.
struct CallTimes {
  TimePoint arrival{};
  std::optional<TimePoint> deadline;
};

// Held by the reactor, the engine, the registry and whoever works on it. Threads are said per
// method; context and registry outlive it.
class GenerateCall final : public TokenStream, public std::enable_shared_from_this<GenerateCall> {
 public:
  GenerateCall(const ServerContext& context, RequestRegistry& registry, const CallTimes& times,
               int64_t max_pending_tokens);

  // ---- gRPC's threads, and the tokenizer thread while it prepares the call
  void Attach(ResponseSink& sink) { queue_.Attach(sink); }
  // The caller's trace, for the log; before anything else.
  void SetTrace(std::string traceparent) { traceparent_ = std::move(traceparent); }
  // Takes the id, made up when empty; false: it is in use.
  bool TakeId(const std::string& wanted);
  // Hands the request to the engine, or ends the call with the engine's refusal.
  void Submit(ValidatedRequest request);
  // Ends the call before it was submitted.
  void Refuse(const grpc::Status& status);
  // The same from another thread, while the call may be on its way to the engine.
  void RefuseUnlessSubmitted(const grpc::Status& status);
  // The call has ended or its client is gone: nothing more needs to be prepared.
  const std::atomic<bool>* cancelled() const { return &ended_; }

  // ---- gRPC's threads
  void OnWriteDone(bool ok);
  // Cancelled, vanished, or past its deadline.
  void OnClientGone();

  // ---- Any thread
  // The Abort RPC: ends with Finished messages and OK.
  void Abort();
  const std::string& id() const { return id_; }  // after TakeId
  TimePoint arrival() const { return times_.arrival; }
  struct Submitted {
    SeqId first{};
    int32_t n = 0;  // 0: not submitted yet
  };
  Submitted submitted() const;

  // ---- Output thread
  void OnEvent(StreamEvent& event);
  // Sends what OnEvent produced.
  void Flush() { queue_.Flush(); }

 private:
  // Output-thread state of one sequence.
  struct SequenceState {
    SequenceOutput output;
    std::optional<TimePoint> first_token;
    TimePoint last_token{};
    bool is_finished = false;
  };

  void LearnIds(const SequenceEvent& event);
  void OnHopeless(const HopelessDeadline& hopeless);
  void OnQueued(const QueuedNotice& notice);
  void OnStarted(const SequenceEvent& event, TimePoint time);
  void OnToken(SequenceEvent& event, TimePoint time);
  void OnPromptLogprobs(SequenceEvent& event);
  void OnFinished(const SequenceEvent& event, TimePoint time);
  // Returns the reason that was sent.
  FinishReason SendFinished(const SequenceEvent& event, FinishReason reason, TimePoint time);
  void ObserveToken(SequenceState& sequence, TimePoint time);
  void Delivered(int64_t num_tokens);
  // Ends the call, once: counts it, frees its id, sends the status. False when it had ended before.
  bool End(const grpc::Status& status, RequestOutcome outcome, ResponseQueue::Rest rest);
  void AbortInEngine(FinishReason reason);

  const ServerContext& context_;
  RequestRegistry& registry_;
  const CallTimes times_;
  ResponseQueue queue_;
  std::atomic<bool> ended_{false};
  std::string traceparent_;  // empty: none

  // Set before the engine knows the call, constant afterwards.
  OutputOptions options_;
  uint64_t seed_ = 0;
  int32_t num_prompt_tokens_ = 0;
  TokenId first_prompt_token_ = kInvalidToken;  // set when prompt log-probabilities were asked for

  mutable std::mutex mutex_;
  std::string id_;             // set once under mutex_
  Submitted submitted_;        // guarded by mutex_
  bool abort_wanted_ = false;  // guarded by mutex_

  // Output thread only.
  std::vector<SequenceState> sequences_;
  bool knows_ids_ = false;
  std::optional<TimePoint> started_;
  int32_t num_cached_tokens_ = 0;
  bool has_first_token_ = false;
  int32_t num_finished_ = 0;
};

// The status with which a sequence's end ends the whole call; OK for those that send a Finished
// message.
grpc::Status StatusOf(FinishReason reason);

}  // namespace longspan
