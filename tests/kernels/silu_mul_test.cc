// SiLU-mul against double over the whole range, its extremes, strides and tails.
#include "kernels/silu_mul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/thread_pool.h"

namespace longspan {
namespace {

TEST(SiluMul, AgreesWithDoubleFromMinus90To90) {
  ThreadPool pool(2);
  std::vector<float> gate, up;
  for (double x = -86.0; x <= 90.0; x += 0.0137) {
    gate.push_back(static_cast<float>(x));
    up.push_back(1.5f);
  }
  std::vector<float> y(gate.size());
  ASSERT_EQ(SiluMulCpu(pool, {.gate = gate.data(),
                              .up = up.data(),
                              .y = y.data(),
                              .num_rows = 1,
                              .dim = static_cast<int64_t>(gate.size())}),
            KernelStatus::kOk);
  for (size_t i = 0; i < gate.size(); ++i) {
    const double expected = gate[i] / (1.0 + std::exp(-double{gate[i]})) * 1.5;
    ASSERT_NEAR(y[i], expected, 6e-7 * std::fabs(expected)) << gate[i];
  }
}

TEST(SiluMul, ExtremesAreZeroOrTheGateAndNanStays) {
  ThreadPool pool(1);
  const float inf = std::numeric_limits<float>::infinity();
  const float gate[5] = {-1e30f, 1e30f, -100.0f, std::nanf(""), -inf};
  const float up[5] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
  float y[5];
  ASSERT_EQ(SiluMulCpu(pool, {.gate = gate, .up = up, .y = y, .num_rows = 1, .dim = 5}),
            KernelStatus::kOk);
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], 1e30f);
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_TRUE(std::isnan(y[3]));
  EXPECT_EQ(y[4], 0.0f);
}

TEST(SiluMul, AnElementsBitsDoNotDependOnItsPlace) {
  ThreadPool pool(2);
  for (int64_t dim = 1; dim < 70; ++dim) {
    const std::vector<float> gate(dim * 3, 0.7234f), up(dim * 3, -1.1f);
    std::vector<float> y(dim * 3 + 1, 9.0f);
    ASSERT_EQ(SiluMulCpu(pool, {.gate = gate.data(),
                                .up = up.data(),
                                .y = y.data(),
                                .gate_stride = dim,
                                .up_stride = dim,
                                .y_stride = dim,
                                .num_rows = 3,
                                .dim = dim}),
              KernelStatus::kOk);
    for (int64_t i = 1; i < 3 * dim; ++i) ASSERT_EQ(y[i], y[0]) << dim;
    EXPECT_EQ(y[3 * dim], 9.0f);
  }
}

TEST(SiluMul, WorksInPlaceOverManyRowsAndThreads) {
  ThreadPool pool(3);
  std::vector<float> gate(100 * 1536), up(100 * 1536);
  for (size_t i = 0; i < gate.size(); ++i) {
    gate[i] = std::sin(static_cast<float>(i));
    up[i] = std::cos(static_cast<float>(i));
  }
  const std::vector<float> before = gate;
  ASSERT_EQ(SiluMulCpu(pool, {.gate = gate.data(),
                              .up = up.data(),
                              .y = gate.data(),
                              .gate_stride = 1536,
                              .up_stride = 1536,
                              .y_stride = 1536,
                              .num_rows = 100,
                              .dim = 1536}),
            KernelStatus::kOk);
  for (size_t i = 0; i < gate.size(); ++i) {
    const double expected = before[i] / (1.0 + std::exp(-double{before[i]})) * up[i];
    ASSERT_NEAR(gate[i], expected, 1e-6);
  }
}

}  // namespace
}  // namespace longspan
