// Conversions of 16-bit and 8-bit numbers: every code there and back, and rounding at the halves.
#include "core/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
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

// The value of a finite e4m3 code by the definition of the format.
double Float8Value(int code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

TEST(DType, Trap_16_EveryFloat8CodeHasItsValueAndRoundTrips) {
  for (int code = 0; code < 256; ++code) {
    const float value = Float8E4M3ToFloat(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_EQ(FloatToFloat8E4M3(value), 0x7f);
      continue;
    }
    EXPECT_EQ(value, Float8Value(code)) << code;
    EXPECT_EQ(FloatToFloat8E4M3(value), code == 0x80 ? 0 : code) << code;
  }
}

TEST(DType, Float8RoundsToNearestEvenAndSaturates) {
  const float inf = std::numeric_limits<float>::infinity();
  for (int code = 0; code < 0x7e; ++code) {
    const auto middle = static_cast<float>((Float8Value(code) + Float8Value(code + 1)) / 2);
    EXPECT_EQ(FloatToFloat8E4M3(middle), code % 2 == 0 ? code : code + 1) << code;
    EXPECT_EQ(FloatToFloat8E4M3(std::nextafter(middle, 0.0f)), code) << code;
    EXPECT_EQ(FloatToFloat8E4M3(std::nextafter(middle, inf)), code + 1) << code;
    const int negative = FloatToFloat8E4M3(-std::nextafter(middle, inf));
    EXPECT_EQ(negative, (code + 1) | 0x80) << code;
  }
  for (const float big : {448.0f, 449.0f, 464.0f, 479.0f, 1e30f, inf}) {
    EXPECT_EQ(FloatToFloat8E4M3(big), 0x7e) << big;
    EXPECT_EQ(FloatToFloat8E4M3(-big), 0xfe) << big;
  }
  for (const float small : {-0.0f, -1e-40f, -0x1p-10f}) EXPECT_EQ(FloatToFloat8E4M3(small), 0);
}

TEST(DType, Int8RoundsToNearestEvenAndSaturatesSymmetrically) {
  for (int code = -127; code <= 127; ++code) {
    EXPECT_EQ(FloatToInt8(static_cast<float>(code)), code);
    const float middle = static_cast<float>(code) + 0.5f;
    const int even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(FloatToInt8(middle), std::min(even, 127)) << code;
  }
  for (const float big : {127.5f, 128.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(FloatToInt8(big), 127);
    EXPECT_EQ(FloatToInt8(-big), -127);
  }
  EXPECT_EQ(FloatToInt8(std::numeric_limits<float>::quiet_NaN()), 0);
  EXPECT_EQ(FloatToInt8(-0.4f), 0);
}

}  // namespace
}  // namespace longspan
