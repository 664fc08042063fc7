// The thread that waits for signals. Everything here is sent to the test's own process.
#include "server/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

namespace longspan {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

class Received {
 public:
  void Add(int number) {
    const std::lock_guard lock(mutex_);
    numbers_.push_back(number);
    changed_.notify_all();
  }
  bool WaitFor(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return numbers_.size() >= count; });
  }
  std::vector<int> numbers() {
    const std::lock_guard lock(mutex_);
    return numbers_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> numbers_;
};

TEST(SignalThread, AStraySecondUserSignalDoesNotEndIt) {
  BlockSignals();
  Received received;
  {
    const SignalThread thread([&](int number) { received.Add(number); });
    for (int i = 0; i < 3; ++i) {
      ::kill(::getpid(), SIGUSR2);  // taken before the others: pending ones come in their order
      ::kill(::getpid(), SIGTERM);
      ASSERT_TRUE(received.WaitFor(static_cast<size_t>(i) + 1));
    }
  }
  EXPECT_EQ(received.numbers(), (std::vector<int>{SIGTERM, SIGTERM, SIGTERM}));
}

TEST(SignalThread, EndsWithoutASignalOfItsOwn) {
  BlockSignals();
  Received received;
  {
    const SignalThread thread([&](int number) { received.Add(number); });
  }
  EXPECT_TRUE(received.numbers().empty());
}

}  // namespace
}  // namespace longspan
