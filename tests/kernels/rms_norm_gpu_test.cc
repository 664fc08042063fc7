// RMSNorm on a device against its CPU twin: the rounding of the output type and a few float32
// roundings apart; the residual to the bit.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kernels/rms_norm.h"
#include "tests/kernels/device_array.h"

namespace longspan {
namespace {

class RmsNormOnGpu : public GpuKernel {};

struct NormShape {
  int64_t rows = 3;
  int32_t heads = 1;
  int32_t dim = 64;
  DType dtype = DType::kBFloat16;
  bool residual = false;
  DType residual_dtype = DType::kFloat32;
  bool in_place = false;
  int64_t padding = 0;  // elements after each row
};

void ExpectNorm(const NormShape& s) {
  SCOPED_TRACE(testing::Message() << s.rows << " rows, " << s.heads << " heads, dim " << s.dim
                                  << " " << DTypeName(s.dtype) << " residual " << s.residual << " "
                                  << DTypeName(s.residual_dtype) << " in place " << s.in_place
                                  << " padding " << s.padding);
  const int64_t stride = int64_t{s.heads} * s.dim + s.padding;
  const auto count = static_cast<size_t>(s.rows * stride);
  const std::vector<float> x = Stored(s.dtype, NormalFloats(count, 1));
  const std::vector<float> weight = NormalFloats(static_cast<size_t>(s.dim), 2);
  const std::vector<float> before = Stored(s.residual_dtype, NormalFloats(count, 3));
  std::vector<float> sums(count);  // what is normalised
  for (size_t i = 0; i < count; ++i) sums[i] = s.residual ? before[i] + x[i] : x[i];
  if (s.residual) sums = Stored(s.residual_dtype, sums);

  const std::vector<float> untouched =
      s.in_place ? x : Stored(s.dtype, std::vector<float>(count, 0.375f));
  std::vector<float> expected = untouched;
  RmsNormParams params{.x = sums.data(),
                       .y = expected.data(),
                       .weight = weight.data(),
                       .x_row_stride = stride,
                       .x_head_stride = s.dim,
                       .y_row_stride = stride,
                       .y_head_stride = s.dim,
                       .num_rows = s.rows,
                       .num_heads = s.heads,
                       .dim = s.dim,
                       .eps = 1e-5f};
  ThreadPool threads(1);
  ASSERT_EQ(RmsNormCpu(threads, params), KernelStatus::kOk);

  DeviceBytes device_x(Encoded(s.dtype, x)), device_y(Encoded(s.dtype, untouched));
  DeviceBytes device_residual(Encoded(s.residual_dtype, before));
  DeviceArray<float> device_weight(weight);
  params.x = device_x.data();
  params.y = s.in_place ? device_x.data() : device_y.data();
  params.weight = device_weight.data();
  params.dtype = s.dtype;
  if (s.residual) {
    params.residual = device_residual.data();
    params.residual_row_stride = stride;
    params.residual_head_stride = s.dim;
    params.residual_dtype = s.residual_dtype;
  }
  ASSERT_EQ(RmsNormGpu(params, nullptr), KernelStatus::kOk);
  const std::vector<std::byte> y = (s.in_place ? device_x : device_y).Bytes("y");
  // A sum of squares of n terms in another order: its error is far below 32 roundings here.
  ExpectClose(Decoded(s.dtype, y), expected,
              [&](float ref) { return RoundingTolerance(s.dtype, ref, 4e-6); });
  if (!s.residual) return;
  std::vector<float> residual = before;
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t i = 0; i < int64_t{s.heads} * s.dim; ++i) {
      residual[static_cast<size_t>(row * stride + i)] = sums[static_cast<size_t>(row * stride + i)];
    }
  }
  EXPECT_EQ(FirstDifference(device_residual.Bytes("residual"), Encoded(s.residual_dtype, residual),
                            DTypeBytes(s.residual_dtype)),
            "")
      << "residual";
}

TEST_F(RmsNormOnGpu, EveryDimAndTypeAgreesWithTheCpu) {
  for (const DType dtype : kFloatTypes) {
    for (const int32_t dim :
         {1, 2, 7, 8, 64, 127, 128, 576, 1000, 1024, 1031, 1032, 4096, 8192, 8200, 8209, 16384}) {
      ExpectNorm({.dim = dim, .dtype = dtype});
    }
  }
}

TEST_F(RmsNormOnGpu, HeadsRowsPaddingAndInPlace) {
  for (const DType dtype : kFloatTypes) {
    ExpectNorm({.rows = 1, .heads = 1, .dim = 576, .dtype = dtype});
    ExpectNorm({.rows = 7, .heads = 9, .dim = 128, .dtype = dtype, .in_place = true});
    ExpectNorm({.rows = 5, .heads = 3, .dim = 64, .dtype = dtype, .padding = 8});
    ExpectNorm({.rows = 5, .heads = 3, .dim = 64, .dtype = dtype, .padding = 1});
    ExpectNorm({.rows = 1031, .dim = 2048, .dtype = dtype, .in_place = true});
  }
}

TEST_F(RmsNormOnGpu, AResidualIsAddedRoundedAndKept) {
  for (const DType dtype : kFloatTypes) {
    for (const DType residual_dtype : kFloatTypes) {
      for (const int32_t dim : {1, 13, 576, 4096, 8200}) {
        ExpectNorm(
            {.dim = dim, .dtype = dtype, .residual = true, .residual_dtype = residual_dtype});
      }
      ExpectNorm({.rows = 33,
                  .dim = 1536,
                  .dtype = dtype,
                  .residual = true,
                  .residual_dtype = residual_dtype,
                  .in_place = true,
                  .padding = 16});
    }
  }
}

TEST_F(RmsNormOnGpu, Trap_13_ARowsBitsAreItsOwn) {
  const int32_t dim = 2056;
  const std::vector<float> rows = NormalFloats(9 * dim, 4);
  DeviceArray<float> x(rows), y(std::vector<float>(9 * dim)), weight(NormalFloats(dim, 5));
  RmsNormParams params{.x = x.data(),
                       .y = y.data(),
                       .weight = weight.data(),
                       .x_row_stride = dim,
                       .y_row_stride = dim,
                       .num_rows = 9,
                       .dim = dim};
  ASSERT_EQ(RmsNormGpu(params, nullptr), KernelStatus::kOk);
  const std::vector<float> together = y.Host("y");
  params.x = x.data() + 4 * dim;
  params.num_rows = 1;
  ASSERT_EQ(RmsNormGpu(params, nullptr), KernelStatus::kOk);
  const std::vector<float> alone = y.Host("y");
  for (int32_t i = 0; i < dim; ++i) ASSERT_EQ(alone[i], together[4 * dim + i]) << i;
}

TEST_F(RmsNormOnGpu, NoRowsAndAReplayedGraph) {
  DeviceArray<float> x(NormalFloats(256, 6)), y(std::vector<float>(256, 5.0f));
  DeviceArray<float> weight(NormalFloats(128, 7));
  RmsNormParams params{.x = x.data(),
                       .y = y.data(),
                       .weight = weight.data(),
                       .x_row_stride = 128,
                       .y_row_stride = 128,
                       .num_rows = 0,
                       .dim = 128};
  ASSERT_EQ(RmsNormGpu(params, nullptr), KernelStatus::kOk);
  EXPECT_EQ(y.Host("y"), std::vector<float>(256, 5.0f));
  params.num_rows = 2;
  ASSERT_EQ(RmsNormGpu(params, nullptr), KernelStatus::kOk);
  const std::vector<float> expected = y.Host("y");
  y.Set(std::vector<float>(256, 5.0f));
  y.Host("y");
  auto stream = GpuStream::Create();
  ASSERT_TRUE(stream.has_value());
  auto graph = GpuGraph::Capture(
      *stream, [&] { EXPECT_EQ(RmsNormGpu(params, stream->handle()), KernelStatus::kOk); });
  ASSERT_TRUE(graph.has_value());
  ASSERT_TRUE(graph->Launch(*stream).ok());
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(y.Host("y"), expected);
}

// No device is needed: the answer comes before anything is asked of one.
TEST(RmsNormRefusals, NameTheReason) {
  alignas(16) float memory[16] = {};
  const RmsNormParams good{.x = memory,
                           .y = memory,
                           .weight = memory,
                           .x_row_stride = 8,
                           .y_row_stride = 8,
                           .num_rows = 2,
                           .dim = 8};
  const auto norm = [&](auto change) {
    RmsNormParams params = good;
    change(params);
    return RmsNormGpu(params, nullptr);
  };
  using P = RmsNormParams&;
  EXPECT_EQ(norm([](P p) { p.num_rows = 0; }), KernelStatus::kOk);
  EXPECT_EQ(norm([](P p) { p.dtype = DType::kInt8; }), KernelStatus::kUnsupportedDType);
  EXPECT_EQ(norm([](P p) { p.dim = 0; }), KernelStatus::kBadShape);
  EXPECT_EQ(norm([](P p) { p.num_heads = 0; }), KernelStatus::kBadShape);
  EXPECT_EQ(norm([](P p) { p.num_rows = -1; }), KernelStatus::kBadShape);
  EXPECT_EQ(norm([](P p) { p.num_rows = int64_t{1} << 31; }), KernelStatus::kBadShape);
  EXPECT_EQ(norm([](P p) { p.weight = nullptr; }), KernelStatus::kBadShape);
  EXPECT_EQ(norm([](P p) { p.x = nullptr; }), KernelStatus::kBadShape);
  EXPECT_EQ(norm([](P p) { p.y_row_stride = 7; }), KernelStatus::kBadStride);
  EXPECT_EQ(norm([](P p) { p.x_row_stride = -8; }), KernelStatus::kBadStride);
  EXPECT_EQ(norm([](P p) { p.num_heads = 2; }), KernelStatus::kBadStride);
  EXPECT_EQ(norm([](P p) { p.x = reinterpret_cast<const char*>(p.x) + 2; }),
            KernelStatus::kMisaligned);
  EXPECT_EQ(norm([](P p) {
              p.residual = p.y;
              p.residual_row_stride = 4;
            }),
            KernelStatus::kBadStride);
  EXPECT_EQ(norm([](P p) {
              p.residual = p.y;
              p.residual_row_stride = 8;
              p.residual_dtype = DType::kFloat8E4M3;
            }),
            KernelStatus::kUnsupportedDType);
}

}  // namespace
}  // namespace longspan
