// The bounded queue beside gRPC's threads.
#include "server/tokenizer_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/fake_clock.h"

namespace longspan {
namespace {

constexpr int64_t kLarge = TokenizerThread::kSmallJobBytes + 1;

const SteadyClock& AnyClock() {
  static const SteadyClock clock;
  return clock;
}

// Holds the thread inside a job until released. Outlives the thread: declared before it.
struct Blocker {
  std::promise<void> entered;
  std::promise<void> release;
  TokenizerThread::Job job() {
    return [this](bool stopping) {
      if (stopping) return;
      entered.set_value();
      release.get_future().wait();
    };
  }
};

TEST(TokenizerThread, RunsJobsInOrder) {
  std::vector<int> order;
  std::promise<void> done;
  TokenizerThread thread(AnyClock(), 8, 1000);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(thread.TryPost(1, [&order, i](bool) { order.push_back(i); }));
  }
  ASSERT_TRUE(thread.TryPost(1, [&done](bool stopping) {
    if (!stopping) done.set_value();
  }));
  done.get_future().wait();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(TokenizerThread, RefusesMoreJobsThanItsLimit) {
  Blocker blocker;
  TokenizerThread thread(AnyClock(), 2, 1000);
  ASSERT_TRUE(thread.TryPost(1, blocker.job()));
  blocker.entered.get_future().wait();
  EXPECT_TRUE(thread.TryPost(1, [](bool) {}));
  EXPECT_TRUE(thread.TryPost(1, [](bool) {}));
  EXPECT_FALSE(thread.TryPost(1, [](bool) {}));
  blocker.release.set_value();
}

TEST(TokenizerThread, OneLargeRunningJobShutsNobodyOut) {
  Blocker blocker;
  TokenizerThread thread(AnyClock(), 8, 2 * kLarge);
  ASSERT_TRUE(thread.TryPost(1000 * kLarge, blocker.job())) << "one larger job alone is accepted";
  blocker.entered.get_future().wait();
  EXPECT_TRUE(thread.TryPost(1, [](bool) {}));
  EXPECT_TRUE(thread.TryPost(kLarge, [](bool) {}));
  blocker.release.set_value();
}

TEST(TokenizerThread, LargeWaitingJobsAreBoundedInBytesAndLeaveRoomForSmallOnes) {
  Blocker blocker;
  TokenizerThread thread(AnyClock(), 5, 2 * kLarge);
  ASSERT_TRUE(thread.TryPost(1, blocker.job()));
  blocker.entered.get_future().wait();
  EXPECT_TRUE(thread.TryPost(3 * kLarge, [](bool) {})) << "nothing large waits";
  EXPECT_FALSE(thread.TryPost(kLarge, [](bool) {}));
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(thread.TryPost(TokenizerThread::kSmallJobBytes, [](bool) {}));
  }
  EXPECT_FALSE(thread.TryPost(1, [](bool) {})) << "five wait";
  blocker.release.set_value();
}

TEST(TokenizerThreads, ALongTextDoesNotStandBeforeShortOnes) {
  Blocker blocker;
  TokenizerThreads threads(AnyClock(), 8, 2 * kLarge);
  ASSERT_TRUE(threads.For(kLarge).TryPost(kLarge, blocker.job()));
  blocker.entered.get_future().wait();
  std::promise<void> done;
  ASSERT_TRUE(threads.For(1).TryPost(1, [&done](bool stopping) {
    if (!stopping) done.set_value();
  }));
  done.get_future().wait();
  blocker.release.set_value();
}

TEST(TokenizerThread, EstimatesTheDelayFromItsPace) {
  FakeClock clock;
  Blocker blocker;
  TokenizerThread thread(clock, 8, 1000);
  EXPECT_FALSE(thread.estimated_delay_seconds().has_value());
  ASSERT_TRUE(thread.TryPost(100, [&](bool) { clock.Advance(std::chrono::seconds(2)); }));
  ASSERT_TRUE(thread.TryPost(300, blocker.job()));
  blocker.entered.get_future().wait();
  ASSERT_TRUE(thread.TryPost(200, [](bool) {}));
  EXPECT_DOUBLE_EQ(thread.estimated_delay_seconds().value(), 10.0) << "500 bytes, 50 a second";
  blocker.release.set_value();
}

TEST(TokenizerThread, Case_054_StopReachesTheJobThatRuns) {
  TokenizerThread thread(AnyClock(), 8, 1000);
  std::promise<void> entered;
  std::atomic<bool> told{false};
  ASSERT_TRUE(thread.TryPost(1, [&](bool stopping) {
    if (stopping) return told.store(true);
    entered.set_value();
    while (!told.load()) std::this_thread::yield();  // as a long Encode looks at its flag
  }));
  entered.get_future().wait();
  thread.Stop();
  EXPECT_TRUE(told.load());
}

TEST(TokenizerThread, StopTellsWaitingJobsAndTakesNoMore) {
  Blocker blocker;
  std::atomic<int> told{0};
  std::atomic<int> ran{0};
  auto thread = std::make_unique<TokenizerThread>(AnyClock(), 1 << 28, int64_t{1} << 40);
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
