// How the process gives memory back after a flood of large messages: the bound of gRPC's
// read-ahead, and (process_memory.cc) the settings of the allocator. It measures and frees nothing
// itself.
#pragma once

namespace longspan {

// What a connection may allocate for its next read. gRPC lets that grow with the largest burst it
// has seen, and an idle connection keeps it: 60 MiB after 500 messages of 1 MiB.
inline constexpr int kMaxReadChunkBytes = 64 * 1024;

// Makes gRPC heed kMaxReadChunkBytes (GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE); an operator's own
// GRPC_EXPERIMENTS wins. Changes the environment: call before the first thread.
void BoundReadAhead();

}  // namespace longspan
