// NaN and infinity are found wherever they hide in each format, and nothing else is.
#include "model/weight_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace longspan {
namespace {

using ::testing::HasSubstr;

constexpr WeightFormat kFormats[] = {WeightFormat::kF32,  WeightFormat::kF16,  WeightFormat::kBF16,
                                     WeightFormat::kQ4_0, WeightFormat::kQ4_1, WeightFormat::kQ5_0,
                                     WeightFormat::kQ5_1, WeightFormat::kQ8_0, WeightFormat::kQ4_K,
                                     WeightFormat::kQ5_K, WeightFormat::kQ6_K};

// The definition: decode and look at every value.
std::optional<int64_t> ByDecoding(WeightFormat format, std::span<const std::byte> blocks) {
  const int block = WeightBlockElements(format);
  const auto count = static_cast<int64_t>(blocks.size()) / WeightBlockBytes(format) * block;
  std::vector<float> values(static_cast<size_t>(count));
  DequantizeRow(format, blocks.data(), count, values.data());
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(values[static_cast<size_t>(i)])) return i / block * block;
  }
  return std::nullopt;
}

// Random bytes hold non-finite scales every few dozen blocks; both ways must name the same block.
TEST(FindNonFinite, AgreesWithDecodingOnRandomBytes) {
  std::mt19937 random(5);
  for (const WeightFormat format : kFormats) {
    int num_found = 0;
    for (int round = 0; round < 300; ++round) {
      std::vector<std::byte> bytes(static_cast<size_t>(8 * WeightBlockBytes(format)));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      const auto found = FindNonFinite(format, bytes);
      ASSERT_EQ(found, ByDecoding(format, bytes)) << WeightFormatName(format) << " round " << round;
      num_found += found ? 1 : 0;
    }
    EXPECT_GT(num_found, 0) << WeightFormatName(format);
    EXPECT_LT(num_found, 300) << WeightFormatName(format);
  }
}

TEST(CheckFinite, NamesTensorAndPlace) {
  float values[] = {0.0f, -0.0f, std::numeric_limits<float>::max(),
                    std::numeric_limits<float>::denorm_min(), 1.0f};
  const WeightTensor tensor{"blk.0.x", WeightRole::kUp, 0, WeightFormat::kF32, {5}, 20};
  EXPECT_TRUE(CheckFinite(tensor, std::as_bytes(std::span(values))).ok());
  values[4] = -std::numeric_limits<float>::infinity();
  EXPECT_THAT(StatusMessage(CheckFinite(tensor, std::as_bytes(std::span(values)))),
              HasSubstr("tensor blk.0.x is NaN or infinite at element 4"));
}

}  // namespace
}  // namespace longspan
