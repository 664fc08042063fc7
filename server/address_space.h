// Whether the limit of address space (ulimit -v) leaves room for the process as such: libraries,
// allocator and the stacks of its threads. Below that gRPC and the C library do not fail but crash,
// so it is asked before. What model and KV pool need is asked where they are made.
#pragma once

#include <cstdint>

#include "core/status.h"

namespace longspan {

// To read options and to check a model. (Below some 45 MB the dynamic linker or the allocator gives
// up before main begins.)
inline constexpr int64_t kAddressSpaceToStart = 128 * 1024 * 1024;

// To serve with so many compute threads: besides, gRPC's own threads.
int64_t AddressSpaceToServe(int threads);

// RESOURCE_EXHAUSTED when the limit is lower. Makes no threads and needs hardly any memory.
Status CheckAddressSpace(int64_t needed_bytes);

}  // namespace longspan
