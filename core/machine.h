// What this process may use of the machine: memory and cores, limits of the container (cgroup v2)
// included.
#pragma once

#include <cstdint>

namespace longspan {

// The smallest of the machine's memory, the cgroup's memory.max (and those above it) and RLIMIT_AS,
// in bytes.
int64_t MemoryLimitBytes();

// Resident memory of this process now, in bytes; 0 when unknown.
int64_t ResidentMemoryBytes();

// Cores this process may run on: its affinity, cut to the cgroup's cpu.max (rounded up), at
// least 1.
int AvailableCores();

}  // namespace longspan
