// The compute threads: regions, barriers, task counters, sleeping workers. Also what
// ThreadSanitizer is run on.
#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

namespace longspan {
namespace {

TEST(ThreadPool, RunsEveryThreadOnceAndOrdersMemory) {
  for (int num_threads = 1; num_threads <= 5; ++num_threads) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(pool.num_threads(), num_threads);
    std::vector<int64_t> calls(static_cast<size_t>(num_threads) *
                               16);  // plain memory: TSan watches
    for (int region = 1; region <= 500; ++region) {
      pool.Run([&](int t) { calls[static_cast<size_t>(t) * 16] += region; });
      for (int t = 0; t < num_threads; ++t) {
        ASSERT_EQ(calls[static_cast<size_t>(t) * 16], region * (region + 1) / 2);
      }
    }
  }
}

TEST(ThreadPool, BarrierSeparatesPhases) {
  for (int num_threads = 1; num_threads <= 4; ++num_threads) {
    ThreadPool pool(num_threads);
    std::vector<int> value(static_cast<size_t>(num_threads));
    std::vector<int> seen(static_cast<size_t>(num_threads));
    for (int region = 0; region < 100; ++region) {
      pool.Run([&](int t) {
        for (int phase = 0; phase < 5; ++phase) {
          value[static_cast<size_t>(t)] = region * 5 + phase;
          pool.Barrier();
          seen[static_cast<size_t>(t)] = std::accumulate(value.begin(), value.end(), 0);
          pool.Barrier();
        }
      });
      for (const int sum : seen) ASSERT_EQ(sum, num_threads * (region * 5 + 4));
    }
  }
}

TEST(ThreadPool, TasksAreHandedOutOnceAndRestartAtABarrier) {
  ThreadPool pool(3);
  constexpr int64_t kTasks = 1000;
  std::vector<int> done(2 * kTasks);
  for (int region = 1; region <= 20; ++region) {
    pool.Run([&](int) {
      for (int phase = 0; phase < 2; ++phase) {
        for (int64_t i = pool.NextTask(); i < kTasks; i = pool.NextTask()) {
          ++done[static_cast<size_t>(phase * kTasks + i)];
        }
        pool.Barrier();
      }
    });
    for (const int count : done) ASSERT_EQ(count, region);
  }
}

TEST(ThreadPool, IdleWorkersFallAsleepAndAreWoken) {
  ThreadPool pool(3);
  for (int region = 0; region < 20; ++region) {
    while (pool.num_sleeping() < 2) std::this_thread::yield();  // asleep: no processor time at all
    std::atomic<int> calls{0};
    pool.Run([&](int) { calls.fetch_add(1); });
    EXPECT_EQ(calls.load(), 3);
  }
}

TEST(ThreadPool, LivesAndDiesWithoutARegion) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(1 + i % 4);
}

TEST(ThreadPool, MoreThreadsThanCoresFinish) {
  ThreadPool pool(16);
  int64_t total = 0;
  for (int region = 0; region < 50; ++region) {
    std::vector<int64_t> part(16);
    pool.Run([&](int t) {
      part[static_cast<size_t>(t)] = t;
      pool.Barrier();
    });
    total += std::accumulate(part.begin(), part.end(), int64_t{0});
  }
  EXPECT_EQ(total, 50 * 120);
}

}  // namespace
}  // namespace longspan
