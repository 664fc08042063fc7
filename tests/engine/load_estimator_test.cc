// What the estimator says before it has measured, and how it forgets.
#include "engine/load_estimator.h"

#include <gtest/gtest.h>

namespace longspan {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(LoadEstimator, SaysNothingBeforeMeasurements) {
  LoadEstimator estimator;
  EXPECT_FALSE(estimator.prefill_tokens_per_second().has_value());
  EXPECT_FALSE(estimator.fastest_prefill_tokens_per_second().has_value());
  EXPECT_EQ(estimator.tokens_per_second(TimePoint()), 0.0);
}

TEST(LoadEstimator, TheBoundNeedsEnoughTokens) {
  LoadEstimator estimator;
  estimator.OnStep(1000, 0, seconds(1), TimePoint());
  EXPECT_FALSE(estimator.fastest_prefill_tokens_per_second().has_value());
  estimator.OnStep(500, 0, seconds(1), TimePoint());
  EXPECT_EQ(estimator.fastest_prefill_tokens_per_second(), 1000.0);
}

TEST(LoadEstimator, TokensPerSecondForgetsOldSteps) {
  LoadEstimator estimator;
  const TimePoint start;
  estimator.OnStep(0, 100, milliseconds(10), start);
  EXPECT_EQ(estimator.tokens_per_second(start + seconds(1)), 10.0);
  EXPECT_EQ(estimator.tokens_per_second(start + seconds(11)), 0.0);
}

}  // namespace
}  // namespace longspan
