// DequantizeRow against values that the gguf package made of the same bytes
// (make_dequantized_blocks.py).
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "kernels/matmul.h"
#include "tests/kernels/matmul_fixture.h"

namespace longspan {
namespace {

std::vector<uint8_t> FromHex(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

class DequantizeRowOf : public ::testing::TestWithParam<WeightFormat> {};

TEST_P(DequantizeRowOf, EqualsGgufToTheBit) {
  std::ifstream file(LONGSPAN_KERNEL_TEST_DATA "/dequantized_blocks.json");
  const nlohmann::json all = nlohmann::json::parse(file, nullptr, false);
  ASSERT_FALSE(all.is_discarded());
  const std::string name(WeightFormatName(GetParam()));
  ASSERT_TRUE(all.contains(name));
  const std::vector<uint8_t> blocks = FromHex(all[name]["blocks"]);
  std::istringstream text(all[name]["values"].get<std::string>());
  std::vector<float> want;
  for (std::string word; text >> word;) want.push_back(std::strtof(word.c_str(), nullptr));
  ASSERT_EQ(want.size() * static_cast<size_t>(WeightBlockBytes(GetParam())),
            blocks.size() * static_cast<size_t>(WeightBlockElements(GetParam())));
  std::vector<float> got(want.size() + 1, 77.0f);
  DequantizeRow(GetParam(), blocks.data(), static_cast<int64_t>(want.size()), got.data());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i], want[i]) << i;
  EXPECT_EQ(got.back(), 77.0f);
}

TEST_P(DequantizeRowOf, NothingForNoElements) { DequantizeRow(GetParam(), nullptr, 0, nullptr); }

INSTANTIATE_TEST_SUITE_P(All, DequantizeRowOf, ::testing::ValuesIn(testing::kAllFormats),
                         [](const ::testing::TestParamInfo<WeightFormat>& param) {
                           return std::string(WeightFormatName(param.param));
                         });

TEST(WeightFormat, BlockSizesAreGgufs) {
  const auto size = [](WeightFormat f) {
    return std::pair(WeightBlockElements(f), WeightBlockBytes(f));
  };
  EXPECT_EQ(size(WeightFormat::kF32), std::pair(1, 4));
  EXPECT_EQ(size(WeightFormat::kF16), std::pair(1, 2));
  EXPECT_EQ(size(WeightFormat::kBF16), std::pair(1, 2));
  EXPECT_EQ(size(WeightFormat::kQ4_0), std::pair(32, 18));
  EXPECT_EQ(size(WeightFormat::kQ4_1), std::pair(32, 20));
  EXPECT_EQ(size(WeightFormat::kQ5_0), std::pair(32, 22));
  EXPECT_EQ(size(WeightFormat::kQ5_1), std::pair(32, 24));
  EXPECT_EQ(size(WeightFormat::kQ8_0), std::pair(32, 34));
  EXPECT_EQ(size(WeightFormat::kQ4_K), std::pair(256, 144));
  EXPECT_EQ(size(WeightFormat::kQ5_K), std::pair(256, 176));
  EXPECT_EQ(size(WeightFormat::kQ6_K), std::pair(256, 210));
}

TEST(DequantizeRow, KeepsInfinitiesAndNan) {
  const uint16_t halves[3] = {0x7c00, 0xfc00, 0x7e00};
  const uint16_t bfloats[3] = {0x7f80, 0xff80, 0x7fc0};
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const auto& [format, data] :
       {std::pair(WeightFormat::kF16, halves), std::pair(WeightFormat::kBF16, bfloats)}) {
    float out[3];
    DequantizeRow(format, data, 3, out);
    EXPECT_EQ(out[0], kInf);
    EXPECT_EQ(out[1], -kInf);
    EXPECT_TRUE(std::isnan(out[2]));
  }
}

}  // namespace
}  // namespace longspan
