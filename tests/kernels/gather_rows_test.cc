// Gathering rows on the CPU: every format decoded as defined, rounding, rows outside the table,
// refusals.
#include "kernels/gather_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/cpu/thread_pool.h"

namespace longspan {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kF32,  WeightFormat::kF16,  WeightFormat::kBF16,
                                     WeightFormat::kQ4_0, WeightFormat::kQ4_1, WeightFormat::kQ5_0,
                                     WeightFormat::kQ5_1, WeightFormat::kQ8_0, WeightFormat::kQ4_K,
                                     WeightFormat::kQ5_K, WeightFormat::kQ6_K};

TEST(GatherRows, EveryFormatIsDecodedAsDefinedAndRounded) {
  ThreadPool pool(2);
  constexpr int64_t kDim = 768, kTableRows = 5;
  for (const WeightFormat format : kFormats) {
    const int64_t used = kDim / WeightBlockElements(format) * WeightBlockBytes(format);
    const int64_t row_bytes = used + 12;
    std::vector<uint8_t> table(static_cast<size_t>(kTableRows * row_bytes));
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<uint8_t>((i * 37) % 61);
    const std::vector<int32_t> rows = {4, 0, 4, 2};
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      std::vector<float> wide(4 * (kDim + 1), 9.0f);  // also room for 16-bit rows
      GatherRowsParams params{.table = table.data(),
                              .format = format,
                              .table_row_bytes = row_bytes,
                              .rows = rows.data(),
                              .y = wide.data(),
                              .dtype = dtype,
                              .y_stride = kDim + 1,
                              .num_table_rows = kTableRows,
                              .num_rows = 4,
                              .dim = kDim};
      ASSERT_EQ(GatherRowsCpu(pool, params), KernelStatus::kOk);
      std::vector<float> decoded(kDim);
      for (size_t i = 0; i < rows.size(); ++i) {
        DequantizeRow(format, table.data() + rows[i] * row_bytes, kDim, decoded.data());
        for (int64_t d = 0; d < kDim; ++d) {
          const int64_t at = static_cast<int64_t>(i) * (kDim + 1) + d;
          if (dtype == DType::kFloat32) {
            ASSERT_EQ(wide[at], decoded[d]) << WeightFormatName(format);
          } else {
            const auto* narrow = reinterpret_cast<const uint16_t*>(wide.data());
            ASSERT_EQ(narrow[at], dtype == DType::kFloat16 ? FloatToFloat16(decoded[d])
                                                           : FloatToBFloat16(decoded[d]));
          }
        }
      }
      if (dtype == DType::kFloat32) {
        EXPECT_EQ(wide[kDim], 9.0f);
      }
    }
  }
}

TEST(GatherRows, ARowOutsideTheTableIsNan) {
  ThreadPool pool(1);
  const std::vector<float> table = {1.0f, 2.0f, 3.0f, 4.0f};
  const std::vector<int32_t> rows = {-1, 1, 2};
  std::vector<float> y(6);
  ASSERT_EQ(GatherRowsCpu(pool, {.table = table.data(),
                                 .table_row_bytes = 8,
                                 .rows = rows.data(),
                                 .y = y.data(),
                                 .y_stride = 2,
                                 .num_table_rows = 2,
                                 .num_rows = 3,
                                 .dim = 2}),
            KernelStatus::kOk);
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]) && std::isnan(y[4]) && std::isnan(y[5]));
  EXPECT_EQ(y[2], 3.0f);
  EXPECT_EQ(y[3], 4.0f);
}

TEST(GatherRows, NonsenseIsRefused) {
  ThreadPool pool(1);
  const GatherRowsParams good{.table_row_bytes = 34, .num_table_rows = 1, .dim = 32};
  GatherRowsParams p = good;
  p.format = WeightFormat::kQ8_0;
  EXPECT_EQ(GatherRowsCpu(pool, p), KernelStatus::kOk);  // 0 rows
  p.dtype = DType::kInt8;
  EXPECT_EQ(GatherRowsCpu(pool, p), KernelStatus::kUnsupportedDType);
  p = good;
  p.format = WeightFormat::kQ8_0;
  p.dim = 33;
  EXPECT_EQ(GatherRowsCpu(pool, p), KernelStatus::kBadShape);
  p.dim = 64;
  EXPECT_EQ(GatherRowsCpu(pool, p), KernelStatus::kBadStride);
  p.dim = 32;
  p.num_rows = -1;
  EXPECT_EQ(GatherRowsCpu(pool, p), KernelStatus::kBadShape);
}

}  // namespace
}  // namespace longspan
