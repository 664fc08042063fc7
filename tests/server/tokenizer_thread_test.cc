// The bounded queue beside gRPC's threads.
#include "server/tokenizer_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

namespace longspan {
namespace {

// Holds the thread inside a job until released.
struct Blocker {
  std::promise<void> entered;
  std::promise<void> release;
  TokenizerThread::Job job() {
    return [this](bool) {
      entered.set_value();
      release.get_future().wait();
    };
  }
};

TEST(TokenizerThread, RunsJobsInOrder) {
  std::vector<int> order;
  std::promise<void> done;
  TokenizerThread thread(8, 1000);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(thread.TryPost(1, [&order, i](bool) { order.push_back(i); }));
  }
  ASSERT_TRUE(thread.TryPost(1, [&done](bool) { done.set_value(); }));
  done.get_future().wait();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(TokenizerThread, RefusesMoreJobsThanItsLimit) {
  Blocker blocker;
  TokenizerThread thread(2, 1000);
  ASSERT_TRUE(thread.TryPost(1, blocker.job()));
  blocker.entered.get_future().wait();
  EXPECT_TRUE(thread.TryPost(1, [](bool) {}));
  EXPECT_TRUE(thread.TryPost(1, [](bool) {}));
  EXPECT_FALSE(thread.TryPost(1, [](bool) {}));
  blocker.release.set_value();
}

TEST(TokenizerThread, CountsTheBytesOfTheRunningJobToo) {
  Blocker blocker;
  TokenizerThread thread(8, 100);
  ASSERT_TRUE(thread.TryPost(1000, blocker.job())) << "one larger job alone is accepted";
  blocker.entered.get_future().wait();
  EXPECT_FALSE(thread.TryPost(1, [](bool) {}));
  blocker.release.set_value();
}

TEST(TokenizerThread, StopTellsWaitingJobsAndTakesNoMore) {
  Blocker blocker;
  std::atomic<int> told{0};
  std::atomic<int> ran{0};
  auto thread = std::make_unique<TokenizerThread>(1 << 28, int64_t{1} << 40);
  ASSERT_TRUE(thread->TryPost(1, blocker.job()));
  blocker.entered.get_future().wait();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(thread->TryPost(1, [&](bool stopping) { ++(stopping ? told : ran); }));
  }
  std::thread stopper([&] { thread->Stop(); });
  // Once Stop has begun nothing is accepted any more; then the blocker may go.
  while (thread->TryPost(1, [&](bool stopping) { ++(stopping ? told : ran); })) {
  }
  blocker.release.set_value();
  stopper.join();
  EXPECT_EQ(ran.load(), 0);
  EXPECT_GE(told.load(), 3);
}

}  // namespace
}  // namespace longspan
