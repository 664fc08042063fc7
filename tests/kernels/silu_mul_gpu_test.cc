// SiLU-mul on a device against its CPU twin: the rounding of the type and a few float32 roundings
// apart.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kernels/silu_mul.h"
#include "tests/kernels/device_array.h"

namespace longspan {
namespace {

class SiluMulOnGpu : public GpuKernel {};

void ExpectSiluMul(int64_t rows, int64_t dim, DType dtype, int64_t padding, bool in_place) {
  SCOPED_TRACE(testing::Message() << rows << " rows, dim " << dim << " " << DTypeName(dtype)
                                  << " padding " << padding << " in place " << in_place);
  const int64_t stride = dim + padding;
  const auto count = static_cast<size_t>(rows * stride);
  std::vector<float> gate = NormalFloats(count, 9);
  for (size_t i = 0; i < count; ++i) gate[i] *= i % 3 == 0 ? 30.0f : 2.0f;
  gate = Stored(dtype, gate);
  const std::vector<float> up = Stored(dtype, NormalFloats(count, 10));
  const std::vector<float> untouched = in_place ? gate : std::vector<float>(count, 0.375f);
  std::vector<float> expected = untouched;
  SiluMulParams params{.gate = gate.data(),
                       .up = up.data(),
                       .y = expected.data(),
                       .gate_stride = stride,
                       .up_stride = stride,
                       .y_stride = stride,
                       .num_rows = rows,
                       .dim = dim};
  ThreadPool threads(1);
  ASSERT_EQ(SiluMulCpu(threads, params), KernelStatus::kOk);
  DeviceBytes device_gate(Encoded(dtype, gate)), device_up(Encoded(dtype, up));
  DeviceBytes device_y(Encoded(dtype, untouched));
  params.gate = device_gate.data();
  params.up = device_up.data();
  params.y = in_place ? device_gate.data() : device_y.data();
  params.dtype = dtype;
  ASSERT_EQ(SiluMulGpu(params, nullptr), KernelStatus::kOk);
  // The CPU's activation is off by 4e-7 at most, the device's exponential by two last places.
  ExpectClose(Decoded(dtype, (in_place ? device_gate : device_y).Bytes("y")), expected,
              [&](float ref) { return RoundingTolerance(dtype, ref, 1.5e-6); });
}

TEST_F(SiluMulOnGpu, EveryDimAndTypeAgreesWithTheCpu) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t dim : {1, 3, 8, 255, 1536, 2048, 2056, 4097}) {
      ExpectSiluMul(3, dim, dtype, 0, false);
    }
    ExpectSiluMul(0, 8, dtype, 0, false);
    ExpectSiluMul(5, 0, dtype, 8, false);
    ExpectSiluMul(7, 1536, dtype, 8, true);
    ExpectSiluMul(7, 1536, dtype, 5, true);
    ExpectSiluMul(257, 14336, dtype, 0, true);
  }
}

TEST_F(SiluMulOnGpu, ExtremesAreZeroOrTheGateAndNanStays) {
  const float inf = std::numeric_limits<float>::infinity();
  DeviceArray<float> gate({-1e30f, 1e30f, -100.0f, std::nanf(""), -inf, inf, -87.5f});
  DeviceArray<float> up(std::vector<float>(7, 1.0f)), y(std::vector<float>(7, 9.0f));
  ASSERT_EQ(
      SiluMulGpu({.gate = gate.data(), .up = up.data(), .y = y.data(), .num_rows = 1, .dim = 7},
                 nullptr),
      KernelStatus::kOk);
  const std::vector<float> got = y.Host("y");
  EXPECT_EQ(got[0], 0.0f);
  EXPECT_EQ(got[1], 1e30f);
  EXPECT_EQ(got[2], 0.0f);
  EXPECT_TRUE(std::isnan(got[3]));
  EXPECT_EQ(got[4], 0.0f);
  EXPECT_EQ(got[5], inf);
  EXPECT_EQ(got[6], 0.0f);
}

TEST_F(SiluMulOnGpu, AReplayedGraphReadsWhatIsThereThen) {
  DeviceArray<float> gate(std::vector<float>(8, 0.0f)), up(std::vector<float>(8, 1.0f));
  DeviceArray<float> y(std::vector<float>(8, 9.0f));
  const SiluMulParams params{
      .gate = gate.data(), .up = up.data(), .y = y.data(), .num_rows = 1, .dim = 8};
  ASSERT_EQ(SiluMulGpu(params, nullptr), KernelStatus::kOk);
  EXPECT_EQ(y.Host("y"), std::vector<float>(8, 0.0f));
  auto stream = GpuStream::Create();
  ASSERT_TRUE(stream.has_value());
  auto graph = GpuGraph::Capture(
      *stream, [&] { EXPECT_EQ(SiluMulGpu(params, stream->handle()), KernelStatus::kOk); });
  ASSERT_TRUE(graph.has_value());
  gate.Set(std::vector<float>(8, 100.0f));
  gate.Host("gate");
  ASSERT_TRUE(graph->Launch(*stream).ok());
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(y.Host("y"), std::vector<float>(8, 100.0f));
}

// No device is needed: the answer comes before anything is asked of one.
TEST(SiluMulRefusals, NameTheReason) {
  alignas(16) float memory[16] = {};
  const SiluMulParams good{.gate = memory,
                           .up = memory,
                           .y = memory,
                           .gate_stride = 8,
                           .up_stride = 8,
                           .y_stride = 8,
                           .num_rows = 2,
                           .dim = 8};
  const auto silu = [&](auto change) {
    SiluMulParams params = good;
    change(params);
    return SiluMulGpu(params, nullptr);
  };
  using P = SiluMulParams&;
  EXPECT_EQ(silu([](P p) { p.num_rows = 0; }), KernelStatus::kOk);
  EXPECT_EQ(silu([](P p) { p.dim = 0; }), KernelStatus::kOk);
  EXPECT_EQ(silu([](P p) { p.dtype = DType::kFloat8E4M3; }), KernelStatus::kUnsupportedDType);
  EXPECT_EQ(silu([](P p) { p.dim = -1; }), KernelStatus::kBadShape);
  EXPECT_EQ(silu([](P p) { p.num_rows = int64_t{1} << 31; }), KernelStatus::kBadShape);
  EXPECT_EQ(silu([](P p) { p.up = nullptr; }), KernelStatus::kBadShape);
  EXPECT_EQ(silu([](P p) { p.y_stride = 7; }), KernelStatus::kBadStride);
  EXPECT_EQ(silu([](P p) { p.gate_stride = -8; }), KernelStatus::kBadStride);
  EXPECT_EQ(silu([](P p) { p.y = static_cast<char*>(p.y) + 1; }), KernelStatus::kMisaligned);
}

}  // namespace
}  // namespace longspan
