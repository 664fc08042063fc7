// Both queues pop the same candidates under random pushes and pops.
#include "tokenizer/merge_queue.h"

#include <gtest/gtest.h>

#include <random>

namespace longspan {
namespace {

TEST(MergeQueues, PopTheSameInAnyOrderOfPushesAndPops) {
  std::mt19937 random(5);
  BucketMergeQueue buckets;
  for (int round = 0; round < 2000; ++round) {
    HeapMergeQueue heap;
    const uint32_t num_ranks = 1 + random() % 8;
    buckets.Clear(num_ranks);
    const uint32_t num_steps = random() % 200;
    for (uint32_t step = 0; step < num_steps; ++step) {
      if (random() % 3 != 0) {
        const MergeCandidate candidate{static_cast<uint32_t>(random() % num_ranks),
                                       static_cast<int32_t>(random() % 50)};
        heap.Push(candidate);
        buckets.Push(candidate);
        continue;
      }
      const auto want = heap.Pop();
      const auto got = buckets.Pop();
      ASSERT_EQ(got.has_value(), want.has_value());
      if (!want) continue;
      ASSERT_EQ(got->rank, want->rank);
      ASSERT_EQ(got->position, want->position);
    }
  }
}

}  // namespace
}  // namespace longspan
