// Deals the independent rows of an element-wise kernel to the threads of a pool, in one contiguous
// range each. Little work stays on the calling thread: waking others costs more than it saves.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/thread_pool.h"

namespace longspan {

// Calls body(begin, end) for disjoint ranges that cover [0, num_rows). row_elements: floats touched
// per row.
template <typename Body>
void SplitRows(ThreadPool& pool, int64_t num_rows, int64_t row_elements, Body&& body) {
  constexpr int64_t kWorthWaking = 16384;  // floats per thread
  const int64_t threads =
      std::min<int64_t>({pool.num_threads(), num_rows, num_rows * row_elements / kWorthWaking});
  if (threads <= 1) {
    if (num_rows > 0) body(int64_t{0}, num_rows);
    return;
  }
  pool.Run([&](int thread) {
    if (thread >= threads) return;
    body(num_rows * thread / threads, num_rows * (thread + 1) / threads);
  });
}

}  // namespace longspan
