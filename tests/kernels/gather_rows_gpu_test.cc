// Gathering rows on a device: the bits of the CPU in the whole output, padding included.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kernels/gather_rows.h"
#include "tests/kernels/device_array.h"

namespace longspan {
namespace {

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
    for (const DType dtype : kFloatTypes) {
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
      for (const DType dtype : kFloatTypes) ExpectGather(format, dtype, dim, {9, 1, 1}, 0, 1);
    }
  }
}

TEST_F(GatherRowsOnGpu, ARowOutsideTheTableIsNan) {
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kQ8_0, WeightFormat::kQ4_1}) {
    for (const DType dtype : kFloatTypes) {
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

// No device is needed: the answer comes before anything is asked of one.
TEST(GatherRowsRefusals, NameTheReason) {
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
