// Products on every instruction set x weight format x precision that this machine has: against sums
// in double, bit for bit under other neighbours and threads, and what is refused. matmul_fixture.h
// makes the matrices.
#include "kernels/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/kernels/matmul_fixture.h"

namespace longspan {
namespace {

using testing::kAllFormats;
using testing::kBothPrecisions;
using testing::Oracle;
using testing::OracleValue;
using testing::RandomFloats;
using testing::RoundsActivations;
using testing::RunMatmul;
using testing::TestMatrix;

constexpr float kGuard = 12345.0f;

// Largest error that sums of this length can have: every product and sum rounded once in float.
// Minima and codes are added apart, so what is added may exceed the dequantised values: by 33 in
// Q4_1 at most.
double Bound(const OracleValue& oracle, std::span<const float> x, float largest_part,
             int64_t cols) {
  double parts = oracle.magnitude;
  for (const float v : x) parts += std::abs(v) * largest_part * 2;
  const double steps = 32.0 + 3.0 * static_cast<double>(cols) / 16 + 8;
  return steps * 0x1p-24 * parts;
}

float LargestPart(const TestMatrix& w) {
  float largest = 0.0f;
  for (const float v : w.values) largest = std::max(largest, std::abs(v));
  return largest;
}

// Every instruction set of this machine x format x precision.
struct Path {
  const MatmulKernels* kernels;
  WeightFormat format;
  MatmulPrecision precision;
};

std::vector<Path> AllPaths() {
  std::vector<Path> paths;
  for (const MatmulKernels* kernels : SupportedMatmulKernels()) {
    for (const WeightFormat format : kAllFormats) {
      for (const MatmulPrecision precision : kBothPrecisions) {
        paths.push_back({kernels, format, precision});
      }
    }
  }
  return paths;
}

std::string PathName(const ::testing::TestParamInfo<Path>& info) {
  return std::string(info.param.kernels->name) + "_" +
         std::string(WeightFormatName(info.param.format)) +
         (info.param.precision == MatmulPrecision::kFloat32 ? "_float32" : "_bfloat16");
}

class MatmulPath : public ::testing::TestWithParam<Path> {
 protected:
  TestMatrix Make(int64_t rows, int64_t cols) {
    return TestMatrix(*GetParam().kernels, GetParam().format, rows, cols, GetParam().precision,
                      random_);
  }
  // Columns that are a legal length, longer than one decoded chunk when `factor` is large.
  int64_t Cols(int64_t factor) const {
    const int64_t block = WeightBlockElements(GetParam().format);
    return block == 1 ? 32 * factor + 5 : block == 32 ? 32 * factor : 256 * ((factor + 7) / 8);
  }
  bool Rounds() const { return RoundsActivations(GetParam().format, GetParam().precision); }

  std::mt19937 random_{20261130};
  ThreadPool pool_{2};
};

TEST_P(MatmulPath, AgreesWithDoubleForEveryNumberOfRows) {
  const int64_t kRows = 37;
  const int64_t cols = Cols(27);
  const TestMatrix w = Make(kRows, cols);
  ASSERT_EQ(w.status, KernelStatus::kOk);
  const float largest = LargestPart(w);
  const int64_t x_stride = cols + 3;
  const int64_t y_stride = kRows + 2;
  for (const int64_t num_rows : {0, 1, 2, 3, 5, 7, 8, 16, 17, 32, 33, 64, 100}) {
    // One float past an aligned address: callers' tensors need no alignment.
    std::vector<float> x = RandomFloats(num_rows * x_stride + 1, random_);
    std::vector<float> y(static_cast<size_t>(num_rows * y_stride + 1), kGuard);
    const MatmulParams product{.w = w.packed.get(),
                               .x = x.data() + 1,
                               .x_stride = x_stride,
                               .y = y.data() + 1,
                               .y_stride = y_stride};
    ASSERT_EQ(RunMatmul(pool_, {&product, 1}, num_rows), KernelStatus::kOk);
    double worst = 0.0;
    for (int64_t r = 0; r < num_rows; ++r) {
      const std::span<const float> row(x.data() + 1 + r * x_stride, static_cast<size_t>(cols));
      for (int64_t n = 0; n < kRows; ++n) {
        const OracleValue oracle = Oracle(w.Row(n), row, Rounds());
        const double error = std::abs(y[static_cast<size_t>(1 + r * y_stride + n)] - oracle.value);
        worst = std::max(worst, error / Bound(oracle, row, largest, cols));
      }
      EXPECT_EQ(y[static_cast<size_t>(1 + r * y_stride + kRows)], kGuard) << "row " << r;
    }
    EXPECT_LE(worst, 1.0) << num_rows << " rows";
    EXPECT_EQ(y[0], kGuard);
  }
}

TEST_P(MatmulPath, BitsOfARowDependOnNothingElse) {
  const int64_t kRows = 50;
  const int64_t kMax = 300;
  const int64_t cols = Cols(19);
  const TestMatrix w = Make(kRows, cols);
  const std::vector<float> x = RandomFloats(kMax * cols, random_);
  std::vector<float> alone(static_cast<size_t>(kMax * kRows));
  ThreadPool one(1);
  for (int64_t r = 0; r < kMax; ++r) {
    const MatmulParams product{.w = w.packed.get(),
                               .x = x.data() + r * cols,
                               .x_stride = cols,
                               .y = alone.data() + r * kRows,
                               .y_stride = kRows};
    ASSERT_EQ(RunMatmul(one, {&product, 1}, 1), KernelStatus::kOk);
  }
  const std::vector<int64_t> few = {2, 5, 300};
  const std::vector<int64_t> many = {2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 24, 31, 100, 257};
  for (int num_threads = 1; num_threads <= 4; ++num_threads) {
    ThreadPool pool(num_threads);
    for (const int64_t num_rows : num_threads == 1 ? many : few) {
      const int64_t first = kMax - num_rows;
      std::vector<float> y(static_cast<size_t>(num_rows * kRows));
      const MatmulParams product{.w = w.packed.get(),
                                 .x = x.data() + first * cols,
                                 .x_stride = cols,
                                 .y = y.data(),
                                 .y_stride = kRows};
      ASSERT_EQ(RunMatmul(pool, {&product, 1}, num_rows), KernelStatus::kOk);
      ASSERT_EQ(std::memcmp(y.data(), alone.data() + first * kRows, y.size() * sizeof(float)), 0)
          << num_rows << " rows, " << num_threads << " threads";
    }
  }
}

TEST_P(MatmulPath, NanStaysInItsRow) {
  const int64_t kRows = 20;
  const int64_t cols = Cols(8);
  const TestMatrix w = Make(kRows, cols);
  for (const int64_t num_rows : {3, 9, 40}) {
    std::vector<float> x = RandomFloats(num_rows * cols, random_);
    std::vector<float> clean(static_cast<size_t>(num_rows * kRows));
    std::vector<float> dirty = clean;
    MatmulParams product{
        .w = w.packed.get(), .x = x.data(), .x_stride = cols, .y = clean.data(), .y_stride = kRows};
    ASSERT_EQ(RunMatmul(pool_, {&product, 1}, num_rows), KernelStatus::kOk);
    x[static_cast<size_t>(1 * cols + cols - 1)] = std::numeric_limits<float>::quiet_NaN();
    product.y = dirty.data();
    ASSERT_EQ(RunMatmul(pool_, {&product, 1}, num_rows), KernelStatus::kOk);
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t n = 0; n < kRows; ++n) {
        const auto at = static_cast<size_t>(r * kRows + n);
        if (r == 1) {
          EXPECT_TRUE(std::isnan(dirty[at])) << n;
        } else {
          EXPECT_EQ(dirty[at], clean[at]) << r << ", " << n;
        }
      }
    }
  }
}

TEST_P(MatmulPath, ReadRowEqualsDequantizeRow) {
  const int64_t kRows = 19;
  const int64_t cols = Cols(3);
  const TestMatrix w = Make(kRows, cols);
  std::vector<float> row(static_cast<size_t>(cols));
  for (int64_t r = 0; r < kRows; ++r) {
    w.packed->ReadRow(r, row.data());
    EXPECT_EQ(std::memcmp(row.data(), w.Row(r).data(), row.size() * sizeof(float)), 0) << r;
  }
}

TEST_P(MatmulPath, HoldsAboutTheBytesOfTheFile) {
  const int64_t cols = 256 * 6;
  const TestMatrix w = Make(16 * 4, cols);
  const int64_t file = 16 * 4 * cols / WeightBlockElements(w.format) * WeightBlockBytes(w.format);
  EXPECT_LE(w.packed->size_bytes(), file + 64 * 4);
}

INSTANTIATE_TEST_SUITE_P(All, MatmulPath, ::testing::ValuesIn(AllPaths()), PathName);

// What does not depend on the format, once per instruction set.
class MatmulTable : public ::testing::TestWithParam<const MatmulKernels*> {
 protected:
  TestMatrix Make(WeightFormat format, int64_t rows, int64_t cols,
                  MatmulPrecision precision = MatmulPrecision::kFloat32) {
    return TestMatrix(*GetParam(), format, rows, cols, precision, random_);
  }
  std::mt19937 random_{7};
  ThreadPool pool_{2};
};

TEST_P(MatmulTable, BiasAndResidualAreAdded) {
  const int64_t kRows = 21;
  const int64_t kCols = 64;
  const TestMatrix w = Make(WeightFormat::kQ4_1, kRows, kCols);
  for (const int64_t num_rows : {1, 6}) {
    const std::vector<float> x = RandomFloats(num_rows * kCols, random_);
    const std::vector<float> bias = RandomFloats(kRows, random_);
    const std::vector<float> residual = RandomFloats(num_rows * kRows, random_);
    std::vector<float> plain(residual.size());
    std::vector<float> y = residual;
    std::vector<float> biased(residual.size());
    MatmulParams product{.w = w.packed.get(),
                         .x = x.data(),
                         .x_stride = kCols,
                         .y = plain.data(),
                         .y_stride = kRows};
    ASSERT_EQ(RunMatmul(pool_, {&product, 1}, num_rows), KernelStatus::kOk);
    product.bias = bias.data();
    product.y = biased.data();
    ASSERT_EQ(RunMatmul(pool_, {&product, 1}, num_rows), KernelStatus::kOk);
    product.y = y.data();
    product.epilogue = MatmulEpilogue::kAdd;
    ASSERT_EQ(RunMatmul(pool_, {&product, 1}, num_rows), KernelStatus::kOk);
    for (size_t i = 0; i < y.size(); ++i) {
      EXPECT_EQ(biased[i], plain[i] + bias[i % kRows]);
      EXPECT_EQ(y[i], residual[i] + biased[i]);
    }
  }
}

TEST_P(MatmulTable, SiluMulEqualsTwoProducts) {
  const int64_t kRows = 40;
  const int64_t kCols = 96;
  for (const MatmulPrecision precision : kBothPrecisions) {
    const TestMatrix gate = Make(WeightFormat::kQ8_0, kRows, kCols, precision);
    const TestMatrix up = Make(WeightFormat::kQ4_1, kRows, kCols, precision);
    for (const int64_t num_rows : {1, 3, 30}) {
      const std::vector<float> x = RandomFloats(num_rows * kCols, random_);
      std::vector<float> g(static_cast<size_t>(num_rows * kRows));
      std::vector<float> u = g;
      std::vector<float> y = g;
      const MatmulParams base{.w = gate.packed.get(),
                              .x = x.data(),
                              .x_stride = kCols,
                              .y = g.data(),
                              .y_stride = kRows};
      MatmulParams products[3] = {base, base, base};
      products[1].w = up.packed.get();
      products[1].y = u.data();
      products[2].w_up = up.packed.get();
      products[2].y = y.data();
      products[2].epilogue = MatmulEpilogue::kSiluMul;
      ASSERT_EQ(RunMatmul(pool_, products, num_rows), KernelStatus::kOk);
      for (size_t i = 0; i < y.size(); ++i) {
        const double silu = g[i] / (1.0 + std::exp(-static_cast<double>(g[i])));
        EXPECT_NEAR(y[i], silu * u[i], 6e-7 * std::abs(silu * u[i])) << g[i];
      }
    }
  }
}

TEST_P(MatmulTable, SiluOfLargeAndNonFiniteValues) {
  // A one-column identity: the gate is x itself, and so is up.
  const float one = 1.0f;
  std::unique_ptr<PackedMatrix> w;
  ASSERT_EQ(PackFor(*GetParam(), WeightFormat::kF32, 1, 1, &one, MatmulPrecision::kFloat32, w),
            KernelStatus::kOk);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {
      0.0f,    1e-30f, 20.0f,  -20.0f, 100.0f,
      -100.0f, 3e10f,  -1e10f, kInf,   std::numeric_limits<float>::quiet_NaN()};
  std::vector<float> y(x.size());
  const MatmulParams product{.w = w.get(),
                             .x = x.data(),
                             .x_stride = 1,
                             .y = y.data(),
                             .y_stride = 1,
                             .epilogue = MatmulEpilogue::kSiluMul,
                             .w_up = w.get()};
  ASSERT_EQ(RunMatmul(pool_, {&product, 1}, static_cast<int64_t>(x.size())), KernelStatus::kOk);
  for (size_t i = 0; i < 8; ++i) {
    const double silu = x[i] / (1.0 + std::exp(-static_cast<double>(x[i])));
    EXPECT_NEAR(y[i], silu * x[i], std::max(1e-6 * std::abs(silu * x[i]), 1e-17)) << x[i];
  }
  EXPECT_EQ(y[8], kInf);
  EXPECT_TRUE(std::isnan(y[9]));
}

TEST_P(MatmulTable, NormIsAppliedWhileConverting) {
  const int64_t kRows = 18;
  const int64_t kCols = 72;  // not whole blocks
  const float kEps = 1e-5f;
  const TestMatrix w = Make(WeightFormat::kF32, kRows, kCols);
  const std::vector<float> weight = RandomFloats(kCols, random_);
  for (const int64_t num_rows : {1, 9}) {
    const std::vector<float> x = RandomFloats(num_rows * kCols, random_);
    std::vector<float> y(static_cast<size_t>(num_rows * kRows));
    const MatmulParams product{.w = w.packed.get(),
                               .x = x.data(),
                               .x_stride = kCols,
                               .y = y.data(),
                               .y_stride = kRows,
                               .norm_weight = weight.data(),
                               .norm_eps = kEps};
    ASSERT_EQ(RunMatmul(pool_, {&product, 1}, num_rows), KernelStatus::kOk);
    for (int64_t r = 0; r < num_rows; ++r) {
      double squares = 0.0;
      for (int64_t c = 0; c < kCols; ++c) {
        squares += std::pow(static_cast<double>(x[static_cast<size_t>(r * kCols + c)]), 2);
      }
      const double inverse = 1.0 / std::sqrt(squares / kCols + kEps);
      for (int64_t n = 0; n < kRows; ++n) {
        OracleValue oracle;
        for (int64_t c = 0; c < kCols; ++c) {
          const double term = x[static_cast<size_t>(r * kCols + c)] * inverse *
                              weight[static_cast<size_t>(c)] * w.Row(n)[static_cast<size_t>(c)];
          oracle.value += term;
          oracle.magnitude += std::abs(term);
        }
        EXPECT_NEAR(y[static_cast<size_t>(r * kRows + n)], oracle.value, 4e-6 * oracle.magnitude);
      }
    }
  }
}

TEST_P(MatmulTable, ProductsOfOneCallAreIndependent) {
  // Shared x, other x, other arithmetic and other shapes, as a layer mixes them.
  const int64_t kCols = 64;
  const TestMatrix q = Make(WeightFormat::kQ4_1, 48, kCols, MatmulPrecision::kBFloat16);
  const TestMatrix k = Make(WeightFormat::kQ8_0, 17, kCols, MatmulPrecision::kBFloat16);
  const TestMatrix v = Make(WeightFormat::kF16, 33, kCols, MatmulPrecision::kBFloat16);
  const TestMatrix other = Make(WeightFormat::kQ5_1, 5, 96, MatmulPrecision::kFloat32);
  const std::vector<float> weight = RandomFloats(kCols, random_);
  for (const int64_t num_rows : {1, 4, 5, 40}) {
    const std::vector<float> x = RandomFloats(num_rows * kCols, random_);
    const std::vector<float> z = RandomFloats(num_rows * 96, random_);
    std::vector<MatmulParams> products;
    for (const TestMatrix* w : {&q, &k, &v}) {
      products.push_back({.w = w->packed.get(),
                          .x = x.data(),
                          .x_stride = kCols,
                          .y = nullptr,
                          .y_stride = w->rows});
    }
    products.push_back(products[1]);
    products.back().norm_weight = weight.data();
    products.push_back({.w = other.packed.get(),
                        .x = z.data(),
                        .x_stride = 96,
                        .y = nullptr,
                        .y_stride = other.rows});
    std::vector<std::vector<float>> together;
    std::vector<std::vector<float>> apart;
    for (MatmulParams& p : products) {
      apart.emplace_back(static_cast<size_t>(num_rows * p.w->rows()));
      together.push_back(apart.back());
      p.y = apart.back().data();
      ASSERT_EQ(RunMatmul(pool_, {&p, 1}, num_rows), KernelStatus::kOk);
    }
    for (size_t i = 0; i < products.size(); ++i) products[i].y = together[i].data();
    ASSERT_EQ(RunMatmul(pool_, products, num_rows), KernelStatus::kOk);
    EXPECT_EQ(together, apart) << num_rows;
  }
}

TEST_P(MatmulTable, RunsInsideARegionOfTheCaller) {
  const int64_t kHidden = 64;
  const int64_t kInner = 96;
  const TestMatrix first = Make(WeightFormat::kQ4_1, kInner, kHidden, MatmulPrecision::kBFloat16);
  const TestMatrix second = Make(WeightFormat::kQ4_1, kHidden, kInner, MatmulPrecision::kBFloat16);
  ThreadPool pool(3);
  for (const int64_t num_rows : {1, 20}) {
    const std::vector<float> x = RandomFloats(num_rows * kHidden, random_);
    std::vector<float> inner(static_cast<size_t>(num_rows * kInner));
    std::vector<float> want(static_cast<size_t>(num_rows * kHidden));
    std::vector<float> got = want;
    MatmulParams a{.w = first.packed.get(),
                   .x = x.data(),
                   .x_stride = kHidden,
                   .y = inner.data(),
                   .y_stride = kInner};
    MatmulParams b{.w = second.packed.get(),
                   .x = inner.data(),
                   .x_stride = kInner,
                   .y = want.data(),
                   .y_stride = kHidden};
    ASSERT_EQ(RunMatmul(pool, {&a, 1}, num_rows), KernelStatus::kOk);
    ASSERT_EQ(RunMatmul(pool, {&b, 1}, num_rows), KernelStatus::kOk);
    b.y = got.data();
    testing::AlignedBytes workspace(std::max(MatmulWorkspaceBytes({&a, 1}, num_rows, 3),
                                             MatmulWorkspaceBytes({&b, 1}, num_rows, 3)));
    ASSERT_EQ(CheckMatmul({&b, 1}, num_rows, workspace.span(), 3), KernelStatus::kOk);
    std::fill(inner.begin(), inner.end(), std::numeric_limits<float>::quiet_NaN());
    pool.Run([&](int thread) {
      MatmulInRegion(pool, thread, {&a, 1}, num_rows, workspace.span());
      pool.Barrier();
      MatmulInRegion(pool, thread, {&b, 1}, num_rows, workspace.span());
    });
    EXPECT_EQ(got, want);
  }
}

std::string TableName(const ::testing::TestParamInfo<const MatmulKernels*>& info) {
  return info.param->name;
}

INSTANTIATE_TEST_SUITE_P(All, MatmulTable,
                         ::testing::ValuesIn(SupportedMatmulKernels().begin(),
                                             SupportedMatmulKernels().end()),
                         TableName);

TEST(Matmul, RefusesWhatItCannotRun) {
  std::mt19937 random(1);
  const std::vector<uint8_t> data(4096);
  std::unique_ptr<PackedMatrix> w;
  for (const WeightFormat format : kAllFormats) {
    const int64_t block = WeightBlockElements(format);
    EXPECT_EQ(PackedMatrix::Pack(format, 0, block, data.data(), MatmulPrecision::kFloat32, w),
              KernelStatus::kBadShape);
    EXPECT_EQ(PackedMatrix::Pack(format, 2, 0, data.data(), MatmulPrecision::kFloat32, w),
              KernelStatus::kBadShape);
    EXPECT_EQ(PackedMatrix::Pack(format, 1, std::numeric_limits<int64_t>::max() / block * block,
                                 data.data(), MatmulPrecision::kFloat32, w),
              KernelStatus::kBadShape);
    EXPECT_EQ(PackedMatrix::Pack(format, std::numeric_limits<int64_t>::max(), block * 64,
                                 data.data(), MatmulPrecision::kFloat32, w),
              KernelStatus::kBadShape);
    if (block == 1) continue;
    EXPECT_EQ(PackedMatrix::Pack(format, 2, block + 1, data.data(), MatmulPrecision::kFloat32, w),
              KernelStatus::kBadShape);
    EXPECT_EQ(PackedMatrix::Pack(format, 2, block / 2, data.data(), MatmulPrecision::kFloat32, w),
              KernelStatus::kBadShape);
  }
  EXPECT_EQ(w, nullptr);

  ASSERT_EQ(PackedMatrix::Pack(WeightFormat::kF32, 4, 8, data.data(), MatmulPrecision::kFloat32, w),
            KernelStatus::kOk);
  std::unique_ptr<PackedMatrix> wide;
  ASSERT_EQ(
      PackedMatrix::Pack(WeightFormat::kF32, 4, 16, data.data(), MatmulPrecision::kFloat32, wide),
      KernelStatus::kOk);
  ThreadPool pool(1);
  std::vector<float> x(64);
  std::vector<float> y(64);
  const MatmulParams good{.w = w.get(), .x = x.data(), .x_stride = 8, .y = y.data(), .y_stride = 4};
  testing::AlignedBytes workspace(MatmulWorkspaceBytes({&good, 1}, 2, 1));
  const auto run = [&](const MatmulParams& p, int64_t num_rows) {
    return Matmul(pool, {&p, 1}, num_rows, workspace.span());
  };
  EXPECT_EQ(run(good, 2), KernelStatus::kOk);
  EXPECT_EQ(run(good, -1), KernelStatus::kBadShape);
  MatmulParams bad = good;
  bad.x_stride = 7;
  EXPECT_EQ(run(bad, 2), KernelStatus::kBadStride);
  EXPECT_EQ(run(bad, 1), KernelStatus::kOk);  // one row has no stride
  bad = good;
  bad.y_stride = 3;
  EXPECT_EQ(run(bad, 2), KernelStatus::kBadStride);
  bad = good;
  bad.w_up = w.get();
  EXPECT_EQ(run(bad, 2), KernelStatus::kUnsupportedOption);
  bad.epilogue = MatmulEpilogue::kSiluMul;
  EXPECT_EQ(run(bad, 2), KernelStatus::kOk);
  bad.w_up = wide.get();
  EXPECT_EQ(run(bad, 2), KernelStatus::kBadShape);
  const std::span<std::byte> whole = workspace.span();
  EXPECT_EQ(Matmul(pool, {&good, 1}, 2, whole.first(whole.size() - 1)),
            KernelStatus::kWorkspaceTooSmall);
  EXPECT_EQ(Matmul(pool, {&good, 1}, 2, whole.subspan(1)), KernelStatus::kMisaligned);
  EXPECT_EQ(Matmul(pool, {}, 2, whole), KernelStatus::kOk);
}

TEST(Matmul, OffsetsBeyond32BitsAreReached) {
  // 2^31 elements apart: two rows of outputs and inputs in a sparse mapping would need gigabytes,
  // so the stride alone is that long and the memory between is never touched.
  const int64_t kCols = 32;
  const int64_t kStride = (int64_t{1} << 31) / 4 + 3;
  std::mt19937 random(3);
  const TestMatrix w(*SupportedMatmulKernels().front(), WeightFormat::kQ4_1, 16, kCols,
                     MatmulPrecision::kFloat32, random);
  const int64_t num_rows = 5;
  std::unique_ptr<float[]> x(new float[static_cast<size_t>(kStride * (num_rows - 1) + kCols)]);
  std::unique_ptr<float[]> y(new float[static_cast<size_t>(kStride * (num_rows - 1) + 16)]);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t c = 0; c < kCols; ++c) x[static_cast<size_t>(r * kStride + c)] = 1.0f;
  }
  ThreadPool pool(2);
  const MatmulParams product{
      .w = w.packed.get(), .x = x.get(), .x_stride = kStride, .y = y.get(), .y_stride = kStride};
  ASSERT_EQ(RunMatmul(pool, {&product, 1}, num_rows), KernelStatus::kOk);
  for (int64_t r = 1; r < num_rows; ++r) {
    for (int64_t n = 0; n < 16; ++n) {
      EXPECT_EQ(y[static_cast<size_t>(r * kStride + n)], y[static_cast<size_t>(n)]);
    }
  }
}

}  // namespace
}  // namespace longspan
