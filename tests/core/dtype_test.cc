// Conversions of 16-bit floats: every float16 there and back, and rounding at the halves.
#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace longspan {
namespace {

TEST(DType, EveryFloat16RoundTripsThroughFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = Float16ToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Float16ToFloat(FloatToFloat16(value)))) << bits;
    } else {
      EXPECT_EQ(FloatToFloat16(value), bits);
    }
  }
}

TEST(DType, Float16RoundsToNearestEven) {
  EXPECT_EQ(FloatToFloat16(1.0f + 0x1p-11f), 0x3c00);            // halfway: down to even
  EXPECT_EQ(FloatToFloat16(1.0f + 3 * 0x1p-11f), 0x3c02);        // halfway: up to even
  EXPECT_EQ(FloatToFloat16(65519.0f), 0x7bff);                   // largest finite
  EXPECT_EQ(FloatToFloat16(65520.0f), 0x7c00);                   // first that overflows
  EXPECT_EQ(FloatToFloat16(0x1p-25f), 0x0000);                   // half of the least denormal
  EXPECT_EQ(FloatToFloat16(std::nextafter(0x1p-25f, 1.0f)), 1);  // just above it
  EXPECT_EQ(FloatToFloat16(-0.0f), 0x8000);
}

TEST(DType, BFloat16RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(FloatToBFloat16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(FloatToBFloat16(1.0f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_TRUE(
      std::isnan(BFloat16ToFloat(FloatToBFloat16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(BFloat16ToFloat(FloatToBFloat16(std::numeric_limits<float>::infinity())),
            std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace longspan
