// RMSNorm against double; rows and heads by strides; bits of a row alone and among others.
#include "kernels/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/thread_pool.h"

namespace longspan {
namespace {

std::vector<float> Random(size_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& x : out) x = normal(rng);
  return out;
}

TEST(RmsNorm, AgreesWithDoubleForEveryDim) {
  ThreadPool pool(2);
  for (int32_t dim = 1; dim <= 140; ++dim) {
    const std::vector<float> x = Random(2 * dim, dim), weight = Random(dim, dim + 1000);
    std::vector<float> y(2 * dim + 1, 77.0f);
    ASSERT_EQ(RmsNormCpu(pool, {.x = x.data(),
                                .y = y.data(),
                                .weight = weight.data(),
                                .x_row_stride = dim,
                                .y_row_stride = dim,
                                .num_rows = 2,
                                .dim = dim,
                                .eps = 1e-5f}),
              KernelStatus::kOk);
    for (int row = 0; row < 2; ++row) {
      double sum = 0.0;
      for (int32_t i = 0; i < dim; ++i) sum += double{x[row * dim + i]} * x[row * dim + i];
      const double scale = 1.0 / std::sqrt(sum / dim + 1e-5);
      for (int32_t i = 0; i < dim; ++i) {
        const double expected = x[row * dim + i] * scale * weight[i];
        ASSERT_NEAR(y[row * dim + i], expected, 2e-6 * (1.0 + std::fabs(expected))) << dim;
      }
    }
    EXPECT_EQ(y[2 * dim], 77.0f);
  }
}

TEST(RmsNorm, NormalisesHeadsByThemselvesInPlace) {
  ThreadPool pool(2);
  const std::vector<float> original = Random(4 * 200, 5), weight = Random(64, 6);
  std::vector<float> x = original;
  // 4 rows of 3 heads of 64 with stride 200: the last 8 of a row are not touched.
  ASSERT_EQ(RmsNormCpu(pool, {.x = x.data(),
                              .y = x.data(),
                              .weight = weight.data(),
                              .x_row_stride = 200,
                              .x_head_stride = 64,
                              .y_row_stride = 200,
                              .y_head_stride = 64,
                              .num_rows = 4,
                              .num_heads = 3,
                              .dim = 64}),
            KernelStatus::kOk);
  std::vector<float> one(64);
  ASSERT_EQ(RmsNormCpu(pool, {.x = original.data() + 2 * 200 + 64,
                              .y = one.data(),
                              .weight = weight.data(),
                              .num_rows = 1,
                              .dim = 64}),
            KernelStatus::kOk);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(x[2 * 200 + 64 + i], one[i]);
  for (int i = 192; i < 200; ++i) EXPECT_EQ(x[i], original[i]);
}

TEST(RmsNorm, ARowsBitsAreItsOwnHoweverManyRowsAndThreads) {
  const std::vector<float> x = Random(300 * 576, 7), weight = Random(576, 8);
  std::vector<float> many(300 * 576), one(576);
  ThreadPool pool(3);
  const RmsNormParams base{
      .weight = weight.data(), .x_row_stride = 576, .y_row_stride = 576, .dim = 576};
  RmsNormParams all = base;
  all.x = x.data();
  all.y = many.data();
  all.num_rows = 300;
  ASSERT_EQ(RmsNormCpu(pool, all), KernelStatus::kOk);
  for (const int row : {0, 99, 100, 299}) {
    RmsNormParams single = base;
    single.x = x.data() + row * 576;
    single.y = one.data();
    single.num_rows = 1;
    ASSERT_EQ(RmsNormCpu(pool, single), KernelStatus::kOk);
    for (int i = 0; i < 576; ++i) ASSERT_EQ(many[row * 576 + i], one[i]);
  }
}

TEST(RmsNorm, ZeroRowsAndZerosAreFine) {
  ThreadPool pool(1);
  EXPECT_EQ(RmsNormCpu(pool, {.num_rows = 0, .dim = 4}), KernelStatus::kOk);
  EXPECT_EQ(RmsNormCpu(pool, {.num_rows = 1, .dim = 0}), KernelStatus::kBadShape);
  const std::vector<float> x(8, 0.0f), weight(8, 1.0f);
  std::vector<float> y(8, 1.0f);
  ASSERT_EQ(
      RmsNormCpu(pool,
                 {.x = x.data(), .y = y.data(), .weight = weight.data(), .num_rows = 1, .dim = 8}),
      KernelStatus::kOk);
  for (const float value : y) EXPECT_EQ(value, 0.0f);
}

TEST(RmsNorm, AResidualIsAddedFirstAndKept) {
  ThreadPool pool(2);
  for (const int32_t dim : {1, 7, 64, 577}) {
    const std::vector<float> x = Random(6 * dim, 1), weight = Random(dim, 2);
    std::vector<float> residual = Random(6 * dim + 1, 3), sum(6 * dim), y(6 * dim),
                       expected(6 * dim);
    for (int32_t i = 0; i < 6 * dim; ++i) sum[i] = residual[i] + x[i];
    const float canary = residual.back();
    RmsNormParams params{.x = sum.data(),
                         .y = expected.data(),
                         .weight = weight.data(),
                         .x_row_stride = 2 * dim,
                         .x_head_stride = dim,
                         .y_row_stride = 2 * dim,
                         .y_head_stride = dim,
                         .num_rows = 3,
                         .num_heads = 2,
                         .dim = dim};
    ASSERT_EQ(RmsNormCpu(pool, params), KernelStatus::kOk);
    params.x = x.data();
    params.y = y.data();
    params.residual = residual.data();
    params.residual_row_stride = 2 * dim;
    params.residual_head_stride = dim;
    ASSERT_EQ(RmsNormCpu(pool, params), KernelStatus::kOk);
    EXPECT_EQ(y, expected) << dim;
    EXPECT_EQ(residual.back(), canary);
    residual.pop_back();
    EXPECT_EQ(residual, sum) << dim;
  }
}

TEST(RmsNorm, OnlyFloat32OnTheCpu) {
  ThreadPool pool(1);
  float residual = 0.0f;
  EXPECT_EQ(RmsNormCpu(pool, {.dim = 1, .dtype = DType::kBFloat16}),
            KernelStatus::kUnsupportedDType);
  EXPECT_EQ(RmsNormCpu(pool, {.dim = 1, .residual = &residual, .residual_dtype = DType::kFloat16}),
            KernelStatus::kUnsupportedDType);
}

}  // namespace
}  // namespace longspan
