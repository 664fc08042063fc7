// What gRPC and Protobuf want to say goes through our logger: rate-limited and escaped, since
// callers can provoke it (bytes that are no message, connections that are no HTTP/2).
#pragma once

namespace longspan {

// For the whole process; idempotent.
void RedirectLibraryLogs();

}  // namespace longspan
