// Sum of 64-bit words with independent accumulators, one contiguous share per thread.
#include "kernels/cpu/read_bandwidth.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "kernels/cpu/thread_pool.h"

namespace longspan {
namespace {

constexpr int64_t kUnroll = 32;  // words, four cache lines

uint64_t Sum(const uint64_t* words, int64_t count) {
  uint64_t sums[kUnroll] = {};
  for (int64_t i = 0; i + kUnroll <= count; i += kUnroll) {
    for (int64_t j = 0; j < kUnroll; ++j) sums[j] += words[i + j];
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

double MeasureReadBandwidth(ThreadPool& pool, int64_t bytes, int passes) {
  const int64_t share = bytes / pool.num_threads() / static_cast<int64_t>(sizeof(uint64_t));
  const auto words = std::make_unique<uint64_t[]>(static_cast<size_t>(share * pool.num_threads()));
  std::vector<uint64_t> sums(
      static_cast<size_t>(pool.num_threads()));  // used, so that nothing is optimised away
  double best = 0.0;
  for (int pass = 0; pass < passes; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    pool.Run([&](int thread) {
      sums[static_cast<size_t>(thread)] += Sum(words.get() + share * thread, share);
    });
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    best = std::max(best, static_cast<double>(share * pool.num_threads() * 8) / elapsed.count());
  }
  for (const uint64_t sum : sums) {
    if (sum != 0) return 0.0;  // the buffer holds zeros
  }
  return best;
}

}  // namespace longspan
