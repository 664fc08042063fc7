// RMSNorm, rotary embedding, SiLU-mul and row gathering on a device against their CPU twins: bits
// where arithmetic is the same, else the rounding of the output type and a few float32 roundings.
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kernels/gather_rows.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/silu_mul.h"
#include "tests/kernels/gpu/device_array.h"

namespace longspan {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// Fails at the first of `count` elements that lies further from its reference than allowed.
template <typename Tolerance>
void ExpectClose(const std::vector<float>& got, const std::vector<float>& expected,
                 Tolerance tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double off = std::fabs(double{got[i]} - double{expected[i]});
    const bool same = got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i]));
    ASSERT_TRUE(same || off <= tolerance(expected[i]))
        << "element " << i << ": " << got[i] << ", not " << expected[i] << " within "
        << tolerance(expected[i]);
  }
}

// ---- RMSNorm

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
  for (const DType dtype : kTypes) {
    for (const int32_t dim :
         {1, 2, 7, 8, 64, 127, 128, 576, 1000, 1024, 1031, 1032, 4096, 8192, 8200, 8209, 16384}) {
      ExpectNorm({.dim = dim, .dtype = dtype});
    }
  }
}

TEST_F(RmsNormOnGpu, HeadsRowsPaddingAndInPlace) {
  for (const DType dtype : kTypes) {
    ExpectNorm({.rows = 1, .heads = 1, .dim = 576, .dtype = dtype});
    ExpectNorm({.rows = 7, .heads = 9, .dim = 128, .dtype = dtype, .in_place = true});
    ExpectNorm({.rows = 5, .heads = 3, .dim = 64, .dtype = dtype, .padding = 8});
    ExpectNorm({.rows = 5, .heads = 3, .dim = 64, .dtype = dtype, .padding = 1});
    ExpectNorm({.rows = 1031, .dim = 2048, .dtype = dtype, .in_place = true});
  }
}

TEST_F(RmsNormOnGpu, AResidualIsAddedRoundedAndKept) {
  for (const DType dtype : kTypes) {
    for (const DType residual_dtype : kTypes) {
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

// ---- Rotary embedding

class RopeOnGpu : public GpuKernel {};

TEST_F(RopeOnGpu, TheTableAgreesWithTheCpuAtFarPositions) {
  for (const RopeFrequencyParams& rule :
       {RopeFrequencyParams{.theta = 10000.0, .rotary_dim = 64},
        {.theta = 10000.0, .rotary_dim = 64, .rule = RopeRule::kLinear, .factor = 4.0},
        {.theta = 500000.0,
        .rotary_dim = 128,
        .rule = RopeRule::kLlama3,
        .factor = 8.0,
        .original_context_length = 8192},
        {.theta = 1e6,
        .rotary_dim = 18,
        .rule = RopeRule::kYarn,
        .factor = 4.0,
        .original_context_length = 32768}}) {
    RopeFrequencies frequencies;
    ASSERT_EQ(MakeRopeFrequencies(rule, frequencies), KernelStatus::kOk);
    std::vector<int32_t> positions = {0, 1, 7899, 131071, 1000000, 2147483647};
    for (int32_t i = 0; i < 500; ++i) positions.push_back(i * 2097143);
    ThreadPool threads(2);
    std::vector<float> expected(positions.size() * static_cast<size_t>(rule.rotary_dim));
    FillRopeTableCpu(threads, frequencies, positions, expected.data());
    DeviceArray<float> inv_freq(frequencies.inv_freq);
    DeviceArray<int32_t> device_positions(positions);
    DeviceArray<float> table(std::vector<float>(expected.size(), 9.0f));
    ASSERT_EQ(FillRopeTableGpu({.inv_freq = inv_freq.data(),
                                .positions = device_positions.data(),
                                .cos_sin = table.data(),
                                .num_positions = static_cast<int64_t>(positions.size()),
                                .num_pairs = rule.rotary_dim / 2,
                                .magnitude = frequencies.magnitude},
                               nullptr),
              KernelStatus::kOk);
    SCOPED_TRACE(testing::Message() << "rule " << static_cast<int>(rule.rule));
    // Doubles that differ in their last bits, rounded to float: one last place below 1, or the
    // 2^-52 * 2^31 of an angle near a zero crossing.
    ExpectClose(table.Host("table"), expected, [](float) { return 1.3e-7; });
  }
}

struct RopeShape {
  int64_t tokens = 5;
  int32_t heads = 3;
  int32_t head_dim = 64;
  int32_t rotary_dim = 64;
  RopePairs pairs = RopePairs::kHalfSplit;
  DType dtype = DType::kBFloat16;
  int64_t padding = 0;
};

void ExpectRotation(const RopeShape& s) {
  SCOPED_TRACE(testing::Message() << s.tokens << " tokens, " << s.heads << " heads, head_dim "
                                  << s.head_dim << " rotary_dim " << s.rotary_dim << " "
                                  << (s.pairs == RopePairs::kHalfSplit ? "half" : "interleaved")
                                  << " " << DTypeName(s.dtype) << " padding " << s.padding);
  const int64_t token_stride = int64_t{s.heads} * s.head_dim + s.padding;
  const std::vector<float> before =
      Stored(s.dtype, NormalFloats(static_cast<size_t>(s.tokens * token_stride), 8));
  RopeFrequencies frequencies;
  ASSERT_EQ(MakeRopeFrequencies({.rotary_dim = s.rotary_dim}, frequencies), KernelStatus::kOk);
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < s.tokens; ++i) positions.push_back(static_cast<int32_t>(17 * i + 3));
  std::vector<float> table(static_cast<size_t>(s.tokens * s.rotary_dim));
  ThreadPool threads(1);
  FillRopeTableCpu(threads, frequencies, positions, table.data());
  std::vector<float> expected = before;
  RopeParams params{.x = expected.data(),
                    .token_stride = token_stride,
                    .head_stride = s.head_dim,
                    .num_tokens = s.tokens,
                    .num_heads = s.heads,
                    .head_dim = s.head_dim,
                    .rotary_dim = s.rotary_dim,
                    .pairs = s.pairs,
                    .cos_sin = table.data()};
  ASSERT_EQ(RopeCpu(threads, params), KernelStatus::kOk);
  DeviceBytes x(Encoded(s.dtype, before));
  DeviceArray<float> device_table(table);
  params.x = x.data();
  params.cos_sin = device_table.data();
  params.dtype = s.dtype;
  ASSERT_EQ(RopeGpu(params, nullptr), KernelStatus::kOk);
  const std::vector<float> got = Decoded(s.dtype, x.Bytes("x"));
  // a * c - b * s with |a|, |b| < 6: two roundings of products, fused or not.
  ExpectClose(got, expected,
              [&](float ref) { return RoundingTolerance(s.dtype, ref, 0.0) + 1e-6; });
  for (int64_t i = 0; i < s.tokens * token_stride; ++i) {
    const int64_t within = i % token_stride;
    const bool rotated =
        within < int64_t{s.heads} * s.head_dim && within % s.head_dim < s.rotary_dim;
    if (!rotated) {
      ASSERT_EQ(got[static_cast<size_t>(i)], before[static_cast<size_t>(i)]) << "untouched " << i;
    }
  }
}

TEST_F(RopeOnGpu, EveryShapeTypeAndPairingAgreesWithTheCpu) {
  for (const RopePairs pairs : {RopePairs::kHalfSplit, RopePairs::kInterleaved}) {
    for (const DType dtype : kTypes) {
      ExpectRotation({.pairs = pairs, .dtype = dtype});
      ExpectRotation({.head_dim = 128, .rotary_dim = 128, .pairs = pairs, .dtype = dtype});
      ExpectRotation({.head_dim = 80, .rotary_dim = 80, .pairs = pairs, .dtype = dtype});
      ExpectRotation({.head_dim = 96, .rotary_dim = 48, .pairs = pairs, .dtype = dtype});
      ExpectRotation({.head_dim = 64, .rotary_dim = 24, .pairs = pairs, .dtype = dtype});
      ExpectRotation({.head_dim = 20, .rotary_dim = 18, .pairs = pairs, .dtype = dtype});
      ExpectRotation({.heads = 1, .head_dim = 5, .rotary_dim = 2, .pairs = pairs, .dtype = dtype});
      ExpectRotation({.head_dim = 64, .rotary_dim = 0, .pairs = pairs, .dtype = dtype});
      ExpectRotation({.tokens = 1009,
                      .heads = 40,
                      .head_dim = 128,
                      .rotary_dim = 128,
                      .pairs = pairs,
                      .dtype = dtype,
                      .padding = 8});
      ExpectRotation({.pairs = pairs, .dtype = dtype, .padding = 3});
      ExpectRotation({.tokens = 0, .pairs = pairs, .dtype = dtype});
      ExpectRotation({.tokens = 1, .heads = 1, .pairs = pairs, .dtype = dtype});
    }
  }
}

TEST_F(RopeOnGpu, AReplayedGraphRotatesAgain) {
  const std::vector<float> before = {1.0f, 2.0f};
  DeviceArray<float> x(before), table(std::vector<float>{0.0f, 1.0f});  // a quarter turn
  const RopeParams params{.x = x.data(),
                          .num_tokens = 1,
                          .num_heads = 1,
                          .head_dim = 2,
                          .rotary_dim = 2,
                          .cos_sin = table.data()};
  ASSERT_EQ(RopeGpu(params, nullptr), KernelStatus::kOk);
  EXPECT_EQ(x.Host("x"), (std::vector<float>{-2.0f, 1.0f}));
  auto stream = GpuStream::Create();
  ASSERT_TRUE(stream.has_value());
  auto graph = GpuGraph::Capture(
      *stream, [&] { EXPECT_EQ(RopeGpu(params, stream->handle()), KernelStatus::kOk); });
  ASSERT_TRUE(graph.has_value());
  ASSERT_TRUE(graph->Launch(*stream).ok());
  ASSERT_TRUE(graph->Launch(*stream).ok());
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(x.Host("x"), (std::vector<float>{2.0f, -1.0f}));
}

// ---- SiLU-mul

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
  for (const DType dtype : kTypes) {
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

// ---- Row gathering

class GatherRowsOnGpu : public GpuKernel {};

// Bytes of a table whose scales are ordinary numbers.
std::vector<uint8_t> Table(WeightFormat format, int64_t rows, int64_t dim, int64_t row_bytes) {
  std::vector<uint8_t> table(static_cast<size_t>(rows * row_bytes));
  std::mt19937 rng(11);
  const std::vector<float> values = NormalFloats(static_cast<size_t>(rows * dim), 12);
  for (int64_t row = 0; row < rows; ++row) {
    uint8_t* to = table.data() + row * row_bytes;
    const auto* from = values.data() + row * dim;
    if (format == WeightFormat::kF32) {
      std::memcpy(to, from, static_cast<size_t>(dim) * 4);
    } else if (WeightBlockElements(format) == 1) {
      for (int64_t d = 0; d < dim; ++d) {
        const uint16_t bits =
            format == WeightFormat::kF16 ? FloatToFloat16(from[d]) : FloatToBFloat16(from[d]);
        std::memcpy(to + 2 * d, &bits, 2);
      }
    } else {
      const int64_t block_bytes = WeightBlockBytes(format);
      for (int64_t b = 0; b < dim / 32; ++b) {
        for (int64_t i = 0; i < block_bytes; ++i)
          to[b * block_bytes + i] = static_cast<uint8_t>(rng());
        const uint16_t scale = FloatToFloat16(from[b] * 0.1f), least = FloatToFloat16(from[b + 1]);
        std::memcpy(to + b * block_bytes, &scale, 2);
        if (format == WeightFormat::kQ4_1) std::memcpy(to + b * block_bytes + 2, &least, 2);
      }
    }
  }
  return table;
}

void ExpectGather(WeightFormat format, DType dtype, int64_t dim, const std::vector<int32_t>& rows,
                  int64_t row_padding_bytes, int64_t y_padding) {
  SCOPED_TRACE(testing::Message() << WeightFormatName(format) << " to " << DTypeName(dtype)
                                  << " dim " << dim << " rows " << rows.size() << " padding "
                                  << row_padding_bytes << " " << y_padding);
  constexpr int64_t kTableRows = 11;
  const int64_t row_bytes =
      dim / WeightBlockElements(format) * WeightBlockBytes(format) + row_padding_bytes;
  const std::vector<uint8_t> table = Table(format, kTableRows, dim, row_bytes);
  const int64_t y_stride = dim + y_padding;
  const std::vector<std::byte> before(
      rows.size() * static_cast<size_t>(y_stride * DTypeBytes(dtype)), std::byte{0x3d});
  std::vector<std::byte> expected = before;
  GatherRowsParams params{.table = table.data(),
                          .format = format,
                          .table_row_bytes = row_bytes,
                          .rows = rows.data(),
                          .y = expected.data(),
                          .dtype = dtype,
                          .y_stride = y_stride,
                          .num_table_rows = kTableRows,
                          .num_rows = static_cast<int64_t>(rows.size()),
                          .dim = dim};
  ThreadPool threads(1);
  ASSERT_EQ(GatherRowsCpu(threads, params), KernelStatus::kOk);
  DeviceArray<uint8_t> device_table(table);
  DeviceArray<int32_t> device_rows(rows);
  DeviceBytes y(before);
  params.table = device_table.data();
  params.rows = device_rows.data();
  params.y = y.data();
  ASSERT_EQ(GatherRowsGpu(params, nullptr), KernelStatus::kOk);
  EXPECT_EQ(FirstDifference(y.Bytes("y"), expected, DTypeBytes(dtype)), "");
}

TEST_F(GatherRowsOnGpu, EveryFormatAndTypeGivesTheCpusBits) {
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16,
                                    WeightFormat::kQ8_0, WeightFormat::kQ4_1}) {
    for (const DType dtype : kTypes) {
      for (const int64_t dim : {32, 576, 2048, 4128}) {
        ExpectGather(format, dtype, dim, {0, 10, 3, 3, 7}, 0, 0);
        ExpectGather(format, dtype, dim, {10}, 4, 3);
        ExpectGather(format, dtype, dim, {5, 6}, 16, 8);
      }
      ExpectGather(format, dtype, 64, {}, 0, 0);
      std::vector<int32_t> many(3001);
      for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<int32_t>(i % 11);
      ExpectGather(format, dtype, 96, many, 0, 0);
    }
  }
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16}) {
    for (const int64_t dim : {1, 7, 257}) {
      for (const DType dtype : kTypes) ExpectGather(format, dtype, dim, {9, 1, 1}, 0, 1);
    }
  }
}

TEST_F(GatherRowsOnGpu, ARowOutsideTheTableIsNan) {
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kQ8_0, WeightFormat::kQ4_1}) {
    for (const DType dtype : kTypes) {
      const int64_t row_bytes = 32 / WeightBlockElements(format) * WeightBlockBytes(format);
      DeviceArray<uint8_t> table(Table(format, 2, 32, row_bytes));
      DeviceArray<int32_t> rows({-1, 1, 2, 2147483647});
      DeviceBytes y(Encoded(dtype, std::vector<float>(4 * 32, 1.0f)));
      ASSERT_EQ(GatherRowsGpu({.table = table.data(),
                               .format = format,
                               .table_row_bytes = row_bytes,
                               .rows = rows.data(),
                               .y = y.data(),
                               .dtype = dtype,
                               .y_stride = 32,
                               .num_table_rows = 2,
                               .num_rows = 4,
                               .dim = 32},
                              nullptr),
                KernelStatus::kOk);
      const std::vector<float> got = Decoded(dtype, y.Bytes("y"));
      for (int i = 0; i < 4 * 32; ++i) EXPECT_EQ(std::isnan(got[i]), i / 32 != 1) << i;
    }
  }
}

TEST_F(GatherRowsOnGpu, AGraphReadsTheRowsOfEachReplay) {
  DeviceArray<float> table({1.0f, 2.0f, 3.0f});
  DeviceArray<int32_t> rows({0, 2});
  DeviceArray<float> y({9.0f, 9.0f});
  const GatherRowsParams params{.table = table.data(),
                                .table_row_bytes = 4,
                                .rows = rows.data(),
                                .y = y.data(),
                                .y_stride = 1,
                                .num_table_rows = 3,
                                .num_rows = 2,
                                .dim = 1};
  ASSERT_EQ(GatherRowsGpu(params, nullptr), KernelStatus::kOk);
  EXPECT_EQ(y.Host("y"), (std::vector<float>{1.0f, 3.0f}));
  auto stream = GpuStream::Create();
  ASSERT_TRUE(stream.has_value());
  auto graph = GpuGraph::Capture(
      *stream, [&] { EXPECT_EQ(GatherRowsGpu(params, stream->handle()), KernelStatus::kOk); });
  ASSERT_TRUE(graph.has_value());
  rows.Set({1, 1});
  rows.Host("rows");
  ASSERT_TRUE(graph->Launch(*stream).ok());
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(y.Host("y"), (std::vector<float>{2.0f, 2.0f}));
}

// ---- Refusals: no device is needed, the answer comes before anything is asked of one.

TEST(ElementWiseRefusals, RmsNormNamesTheReason) {
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

TEST(ElementWiseRefusals, RopeNamesTheReason) {
  alignas(16) float memory[16] = {};
  const RopeParams good{.x = memory,
                        .token_stride = 8,
                        .head_stride = 8,
                        .num_tokens = 2,
                        .num_heads = 1,
                        .head_dim = 8,
                        .rotary_dim = 8,
                        .cos_sin = memory};
  const auto rope = [&](auto change) {
    RopeParams params = good;
    change(params);
    return RopeGpu(params, nullptr);
  };
  using P = RopeParams&;
  EXPECT_EQ(rope([](P p) { p.num_tokens = 0; }), KernelStatus::kOk);
  EXPECT_EQ(rope([](P p) { p.rotary_dim = 0; }), KernelStatus::kOk);
  EXPECT_EQ(rope([](P p) { p.dtype = DType::kInt8; }), KernelStatus::kUnsupportedDType);
  EXPECT_EQ(rope([](P p) { p.rotary_dim = 7; }), KernelStatus::kBadShape);
  EXPECT_EQ(rope([](P p) { p.rotary_dim = 10; }), KernelStatus::kBadShape);
  EXPECT_EQ(rope([](P p) { p.num_heads = 0; }), KernelStatus::kBadShape);
  EXPECT_EQ(rope([](P p) { p.cos_sin = nullptr; }), KernelStatus::kBadShape);
  EXPECT_EQ(rope([](P p) { p.token_stride = 4; }), KernelStatus::kBadStride);
  EXPECT_EQ(rope([](P p) { p.head_stride = -8; }), KernelStatus::kBadStride);
  EXPECT_EQ(rope([](P p) { p.x = static_cast<char*>(p.x) + 2; }), KernelStatus::kMisaligned);
  EXPECT_EQ(FillRopeTableGpu({}, nullptr), KernelStatus::kOk);
  EXPECT_EQ(FillRopeTableGpu({.num_positions = 1, .num_pairs = 1}, nullptr),
            KernelStatus::kBadShape);
  EXPECT_EQ(FillRopeTableGpu({.num_positions = -1, .num_pairs = 1}, nullptr),
            KernelStatus::kBadShape);
}

TEST(ElementWiseRefusals, SiluMulNamesTheReason) {
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

TEST(ElementWiseRefusals, GatherRowsNamesTheReason) {
  alignas(16) float memory[32] = {};
  const int32_t row = 0;
  const GatherRowsParams good{.table = memory,
                              .format = WeightFormat::kQ8_0,
                              .table_row_bytes = 34,
                              .rows = &row,
                              .y = memory,
                              .y_stride = 32,
                              .num_table_rows = 1,
                              .num_rows = 1,
                              .dim = 32};
  const auto gather = [&](auto change) {
    GatherRowsParams params = good;
    change(params);
    return GatherRowsGpu(params, nullptr);
  };
  using P = GatherRowsParams&;
  EXPECT_EQ(gather([](P p) { p.num_rows = 0; }), KernelStatus::kOk);
  EXPECT_EQ(gather([](P p) { p.format = WeightFormat::kQ4_0; }), KernelStatus::kUnsupportedDType);
  EXPECT_EQ(gather([](P p) { p.dtype = DType::kInt8; }), KernelStatus::kUnsupportedDType);
  EXPECT_EQ(gather([](P p) { p.dim = 33; }), KernelStatus::kBadShape);
  EXPECT_EQ(gather([](P p) { p.rows = nullptr; }), KernelStatus::kBadShape);
  EXPECT_EQ(gather([](P p) { p.num_rows = -1; }), KernelStatus::kBadShape);
  EXPECT_EQ(gather([](P p) { p.table_row_bytes = 33; }), KernelStatus::kBadStride);
  EXPECT_EQ(gather([](P p) {
              p.num_rows = 2;
              p.y_stride = 31;
            }),
            KernelStatus::kBadStride);
  EXPECT_EQ(gather([](P p) { p.table_row_bytes = 35; }), KernelStatus::kMisaligned);
  EXPECT_EQ(gather([](P p) { p.table = static_cast<const char*>(p.table) + 1; }),
            KernelStatus::kMisaligned);
}

}  // namespace
}  // namespace longspan
