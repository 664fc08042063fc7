// A plan is a function of its seed, within its ranges and with the asked arrival rate.
#include "clients/load_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace longspan {
namespace {

LoadPlanOptions Options() {
  LoadPlanOptions options;
  options.num_requests = 2000;
  options.input_len = 100;
  options.output_len = 10;
  options.vocab_size = 50;
  return options;
}

TEST(LoadPlan, SameSeedSamePlan) {
  const auto a = MakeLoadPlan(Options());
  const auto b = MakeLoadPlan(Options());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].prompt, b[i].prompt);
  LoadPlanOptions other = Options();
  other.seed = 1;
  EXPECT_NE(MakeLoadPlan(other)[0].prompt, a[0].prompt);
}

TEST(LoadPlan, IdsAndLengthsAreInRange) {
  LoadPlanOptions options = Options();
  options.range_ratio = 0.5;
  for (const PlannedRequest& request : MakeLoadPlan(options)) {
    EXPECT_GE(request.prompt.size(), 50u);
    EXPECT_LE(request.prompt.size(), 150u);
    EXPECT_GE(request.output_len, 5);
    EXPECT_LE(request.output_len, 15);
    EXPECT_TRUE(std::all_of(request.prompt.begin(), request.prompt.end(),
                            [](int32_t id) { return id >= 0 && id < 50; }));
  }
}

TEST(LoadPlan, PoissonArrivalsHaveTheAskedMeanRate) {
  LoadPlanOptions options = Options();
  options.request_rate = 10.0;
  const auto plan = MakeLoadPlan(options);
  EXPECT_EQ(plan.front().start_seconds, 0.0);
  EXPECT_NEAR(plan.back().start_seconds, 200.0, 20.0);  // 4.5 standard deviations
  EXPECT_TRUE(std::is_sorted(plan.begin(), plan.end(), [](const auto& a, const auto& b) {
    return a.start_seconds < b.start_seconds;
  }));
}

TEST(LoadPlan, AllPromptsShareThePrefix) {
  LoadPlanOptions options = Options();
  options.prefix_len = 30;
  const auto plan = MakeLoadPlan(options);
  for (const PlannedRequest& request : plan) {
    EXPECT_EQ(request.prompt.size(), 130u);
    EXPECT_TRUE(
        std::equal(request.prompt.begin(), request.prompt.begin() + 30, plan[0].prompt.begin()));
  }
}

TEST(LoadPlan, LengthsAreNeverZero) {
  LoadPlanOptions options = Options();
  options.input_len = 1;
  options.range_ratio = 1.0;
  for (const PlannedRequest& request : MakeLoadPlan(options)) EXPECT_GE(request.prompt.size(), 1u);
}

}  // namespace
}  // namespace longspan
