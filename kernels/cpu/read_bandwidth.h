// How fast this machine reads memory with the given threads: the ceiling that decode attention is
// measured against. A STREAM-like sum over a buffer larger than the caches.
#pragma once

#include <cstdint>

namespace longspan {

class ThreadPool;

// Bytes per second, the best of `passes` passes over `bytes` bytes (allocated and freed inside).
double MeasureReadBandwidth(ThreadPool& pool, int64_t bytes, int passes);

}  // namespace longspan
