// The messages of one Generate call on their way to the client: one write in flight, everything
// that waits behind it merged into few messages, the status last. Decides order only; what is said
// is generate_call.h's matter and how it is written the sink's.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

#include "longspan/v1/inference.pb.h"

namespace longspan {

// Where messages go: gRPC's reactor, or a test. Called by one thread at a time and never with a
// lock held.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  // Begins to write; ResponseQueue::OnWriteDone answers, perhaps during the call. The response may
  // be changed afterwards.
  virtual void StartWrite(const v1::GenerateResponse& response) = 0;
  // Ends the call, after the write in flight if there is one. The sink is not used afterwards.
  virtual void Finish(const grpc::Status& status) = 0;
};

// Thread-safe.
class ResponseQueue {
 public:
  // Before anything else; nothing is written without a sink.
  void Attach(ResponseSink& sink);

  // Appends; a chunk joins the last unsent chunk of its sequence. num_tokens: what OnWriteDone
  // gives back for it. Dropped after Finish. Flush sends.
  void Push(v1::GenerateResponse response, int64_t num_tokens);
  // Starts a write if none is in flight.
  void Flush();
  // The write in flight ended; ok = false: no message will reach the client any more. Returns the
  // tokens of the message.
  int64_t OnWriteDone(bool ok);

  // Sets the status, once. It goes out after what was pushed, or at once in place of it.
  enum class Rest { kSend, kDiscard };
  void Finish(grpc::Status status, Rest rest);

 private:
  struct Message {
    v1::GenerateResponse response;
    int64_t num_tokens;
  };
  void Pump();
  bool TryMerge(v1::GenerateResponse& response, int64_t num_tokens);

  std::mutex mutex_;
  ResponseSink* sink_ = nullptr;  // not owned; not used after its Finish
  std::deque<Message> waiting_;
  std::optional<Message> in_flight_;
  std::optional<grpc::Status> status_;
  bool is_broken_ = false;    // a write failed
  bool is_pumping_ = false;   // some thread is calling the sink; it looks again afterwards
  bool is_finished_ = false;  // the sink's Finish was called or is being called
  bool finish_at_once_ = false;
};

}  // namespace longspan
