// Opens plaintext channels without a limit on message sizes (the server has its own), and maps
// outcomes to the client's exit codes.
#include "clients/connection.h"

#include <cstdio>
#include <limits>

namespace longspan {

Connection Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  Connection connection;
  connection.channel =
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  connection.inference = v1::Inference::NewStub(connection.channel);
  connection.admin = v1::Admin::NewStub(connection.channel);
  return connection;
}

const char* CodeName(grpc::StatusCode code) {
  constexpr const char* kNames[] = {"OK",
                                    "CANCELLED",
                                    "UNKNOWN",
                                    "INVALID_ARGUMENT",
                                    "DEADLINE_EXCEEDED",
                                    "NOT_FOUND",
                                    "ALREADY_EXISTS",
                                    "PERMISSION_DENIED",
                                    "RESOURCE_EXHAUSTED",
                                    "FAILED_PRECONDITION",
                                    "ABORTED",
                                    "OUT_OF_RANGE",
                                    "UNIMPLEMENTED",
                                    "INTERNAL",
                                    "UNAVAILABLE",
                                    "DATA_LOSS",
                                    "UNAUTHENTICATED"};
  return code >= 0 && code < static_cast<int>(std::size(kNames)) ? kNames[code] : "UNKNOWN";
}

int ExitCodeOf(const grpc::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "longspan: %s: %s\n", CodeName(status.error_code()),
               status.error_message().c_str());
  return 64 + status.error_code();
}

}  // namespace longspan
