// A connection to a server and what every command does with the outcome of a call.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "longspan/v1/admin.grpc.pb.h"
#include "longspan/v1/inference.grpc.pb.h"

namespace longspan {

struct Connection {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Inference::Stub> inference;
  std::unique_ptr<v1::Admin::Stub> admin;
};

// address: HOST:PORT or unix:PATH. Nothing is sent yet.
Connection Connect(const std::string& address);

// 0 for OK, else the gRPC code + 64; the message goes to standard error.
int ExitCodeOf(const grpc::Status& status);

// "INVALID_ARGUMENT" and so on.
const char* CodeName(grpc::StatusCode code);

}  // namespace longspan
