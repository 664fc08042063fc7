// What the gRPC edge tells about requests, as values. The server's metrics implement it; tests
// record it. What the engine tells about its steps is engine/engine_observer.h.
#pragma once

#include <cstdint>
#include <string_view>

namespace longspan {

// Why a request ended: the label of requests_finished_total. Exactly one per Generate call that
// reached the handler, set once.
enum class RequestOutcome : uint8_t {
  kStop,      // Finished; of n sequences the last one to end counts
  kLength,    // likewise
  kAborted,   // Abort was called, or the client cancelled or vanished
  kDeadline,  // DEADLINE_EXCEEDED
  kRejected,  // refused before it was queued: invalid, queue full, loading, draining, id in use
  kError,     // everything else: INTERNAL, slow reader, end of the drain, device lost
};

// First scheduling of a request.
struct RequestStarted {
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  double queue_seconds = 0.0;  // arrival to first scheduling
};

// First token of a request; of its n sequences the first one that comes.
struct FirstToken {
  double time_to_first_token_seconds = 0.0;  // since arrival
  double prefill_seconds = 0.0;              // since first scheduling
};

// New tokens of one sequence, as they go out (at least one; tokens after a stop string never do).
struct TokensDelivered {
  int32_t num_tokens = 0;
  double gap_seconds = 0.0;  // since the sequence's previous token; negative: there was none
};

// One sequence that ended with a Finished message.
struct SequenceFinished {
  int32_t context_tokens = 0;  // prompt and completion
  int32_t completion_tokens = 0;
  double decode_seconds = 0.0;  // first token to last
  double time_per_output_token_seconds =
      0.0;  // decode_seconds / (completion_tokens - 1); negative: < 2 tokens
};

// The end of a Generate call, after everything else of it.
struct RequestEnded {
  RequestOutcome outcome = RequestOutcome::kError;
  double e2e_seconds = 0.0;  // since arrival
};

// Called on the output thread (all of them), and, for calls that end elsewhere, OnRpcEnded and
// OnRequestEnded on gRPC's threads, the tokenizer thread and the one that stops the server.
// Implementations are thread-safe and do not block.
class RequestObserver {
 public:
  virtual ~RequestObserver() = default;

  // Every call that reached one of our handlers; method is "longspan.v1.Inference/Generate", code a
  // gRPC status code.
  virtual void OnRpcEnded(std::string_view method, int code) = 0;

  virtual void OnStarted(const RequestStarted& started) = 0;
  virtual void OnFirstToken(const FirstToken& first) = 0;
  virtual void OnTokens(const TokensDelivered& tokens) = 0;
  virtual void OnSequenceFinished(const SequenceFinished& finished) = 0;
  virtual void OnRequestEnded(const RequestEnded& ended) = 0;
};

}  // namespace longspan
