// The few members of the reactor that need more than a line. Everything that decides is in
// generate_call.cc.
#include "server/generate_reactor.h"

#include <utility>

#include "server/raw_method.h"

namespace longspan {

GenerateReactor::GenerateReactor(std::shared_ptr<GenerateCall> call, std::atomic<int32_t>& num_open)
    : call_(std::move(call)), num_open_(num_open) {
  num_open_.fetch_add(1);
  call_->Attach(*this);
}

void GenerateReactor::StartWrite(const v1::GenerateResponse& response) {
  message_ = SerializeMessage(response);
  grpc::ServerWriteReactor<grpc::ByteBuffer>::StartWrite(&message_);
}

void GenerateReactor::Finish(const grpc::Status& status) {
  grpc::ServerWriteReactor<grpc::ByteBuffer>::Finish(status);
}

}  // namespace longspan
