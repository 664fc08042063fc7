// What can be asserted without the right to set the clock; jumps are emulated in
// tests/integration/test_clocks.py.
#include "server/wall_clock_watch.h"

#include <gtest/gtest.h>

#include <atomic>

namespace longspan {
namespace {

TEST(WallClockWatch, EndsWhileItSleepsAndSaysNothingWithoutAJump) {
  std::atomic<int> num_jumps = 0;
  for (int i = 0; i < 50; ++i) WallClockWatch watch([&] { ++num_jumps; });
  EXPECT_EQ(num_jumps.load(), 0);
}

TEST(GrpcTimerWaker, MayBeAskedAgainBeforeAndAfterItsAlarm) {
  GrpcTimerWaker waker;
  for (int i = 0; i < 3; ++i) waker.Wake();
}

}  // namespace
}  // namespace longspan
