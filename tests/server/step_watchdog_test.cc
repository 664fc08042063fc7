// Said once when a step takes too long, and never otherwise.
#include "server/step_watchdog.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace longspan {
namespace {

using std::chrono::milliseconds;

TEST(StepWatchdog, Fault_D4_AStuckStepIsTold) {
  std::promise<Duration> told;
  const StepWatchdog watchdog(
      [] { return milliseconds(50); }, milliseconds(4),
      [&](Duration age) { told.set_value(age); });  // throws when told twice
  EXPECT_EQ(told.get_future().get(), milliseconds(50));
}

TEST(StepWatchdog, StepsWithinTheLimitAreNot) {
  std::atomic<int> looks{0};
  std::promise<void> looked;
  const StepWatchdog watchdog(
      [&] {
        if (++looks == 3) looked.set_value();
        return milliseconds(4);
      },
      milliseconds(4), [](Duration) { ADD_FAILURE() << "told"; });
  looked.get_future().wait();
}

TEST(StepWatchdog, OneLateLookIsNotEnough) {
  // As after the whole process was stopped: the step moves on before the next look.
  std::atomic<int> looks{0};
  std::promise<void> looked;
  const StepWatchdog watchdog(
      [&] {
        const int look = ++looks;
        if (look == 6) looked.set_value();
        return look % 2 == 1 ? milliseconds(50) : milliseconds(0);
      },
      milliseconds(4), [](Duration) { ADD_FAILURE() << "told"; });
  looked.get_future().wait();
}

TEST(StepWatchdog, WithoutALimitNobodyLooks) {
  const StepWatchdog watchdog(
      []() -> Duration {
        ADD_FAILURE() << "looked";
        return {};
      },
      Duration::zero(), [](Duration) { ADD_FAILURE() << "told"; });
}

}  // namespace
}  // namespace longspan
