// Rotary embedding on a device against its CPU twin: the table to the last place, the rotation up
// to the rounding of its type; what is not rotated to the bit.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kernels/rope.h"
#include "tests/kernels/device_array.h"

namespace longspan {
namespace {

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
    for (const DType dtype : kFloatTypes) {
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

// No device is needed: the answer comes before anything is asked of one.
TEST(RopeRefusals, NameTheReason) {
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

}  // namespace
}  // namespace longspan
