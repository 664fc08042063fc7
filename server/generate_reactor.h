// gRPC's side of one Generate call: turns gRPC's callbacks into GenerateCall's methods and messages
// into writes. No decisions here.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "server/generate_call.h"
#include "server/response_queue.h"

namespace longspan {

// Deletes itself in OnDone, gRPC's last callback. At most one write is in flight.
class GenerateReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                              public ResponseSink {
 public:
  // num_open: how many of these live; outlives them.
  GenerateReactor(std::shared_ptr<GenerateCall> call, std::atomic<int32_t>& num_open);
  ~GenerateReactor() override { num_open_.fetch_sub(1); }

  // ResponseSink
  void StartWrite(const v1::GenerateResponse& response) override;
  void Finish(const grpc::Status& status) override;

 private:
  void OnWriteDone(bool ok) override { call_->OnWriteDone(ok); }
  void OnCancel() override { call_->OnClientGone(); }
  void OnDone() override { delete this; }

  const std::shared_ptr<GenerateCall> call_;
  std::atomic<int32_t>& num_open_;
  grpc::ByteBuffer message_;  // gRPC reads it until OnWriteDone
};

}  // namespace longspan
