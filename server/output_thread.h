// The thread between the engine's outbox and gRPC's writes: hands every event to its call and
// starts the writes once all events of a batch are in, so that a stream gets one message for all of
// them.
#pragma once

#include <thread>

#include "engine/token_stream.h"

namespace longspan {

// Borrows the outbox, which outlives it. Streams in the outbox are GenerateCalls.
class OutputThread {
 public:
  explicit OutputThread(Outbox& outbox);
  ~OutputThread();  // closes the outbox, handles what is left, ends
  OutputThread(const OutputThread&) = delete;
  OutputThread& operator=(const OutputThread&) = delete;

 private:
  void Loop();

  Outbox& outbox_;
  std::thread thread_;
};

}  // namespace longspan
