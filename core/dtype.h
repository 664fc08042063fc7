// Element types of tensors in memory, and scalar conversions between float and the 16-bit and
// 8-bit formats.
// Block-quantised weight formats are not here: they belong to kernels/matmul.h.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace longspan {

enum class DType : uint8_t { kFloat32, kFloat16, kBFloat16, kFloat8E4M3, kInt8 };

constexpr int DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kFloat8E4M3:
    case DType::kInt8:
      return 1;
  }
  return 0;
}

// "float32", "float16", "bfloat16", "fp8_e4m3", "int8": as in flags and GetModelInfo.
std::string_view DTypeName(DType dtype);

// bfloat16: the upper half of a float; rounding to nearest even; NaN stays NaN.
constexpr float BFloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
constexpr uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// IEEE binary16, denormals included; rounding to nearest even; overflow becomes infinity.
float Float16ToFloat(uint16_t bits);
uint16_t FloatToFloat16(float value);

// e4m3 as OCP defines it: bias 7, largest 448, no infinities, NaN 0x7f and 0xff. Rounding to
// nearest even, saturating, infinities too; NaN gives 0x7f, and what rounds to -0 gives +0 (0x80 is
// NaN in another dialect of the format).
constexpr float Float8E4M3ToFloat(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7fu;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude >= 8) return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
  const float denormal = static_cast<float>(magnitude) * 0x1p-9f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(denormal));
}
constexpr uint8_t FloatToFloat8E4M3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7f;
  if (magnitude > 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);  // above 448
  if (magnitude < 0x3c800000u) {                                           // below 2^-6: denormal
    // Adding 2^14 lines the code's last bit, 2^-9, up with the float's last bit.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    const uint32_t code = std::bit_cast<uint32_t>(shifted) - 0x46800000u;
    return static_cast<uint8_t>(code == 0 ? 0 : sign | code);
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((rounded - (120u << 23)) >> 20));
}

// Symmetric int8: to nearest even, saturating at -127 and 127; NaN gives 0.
constexpr int8_t FloatToInt8(float value) {
  if (!(value == value)) return 0;
  const float kept = value < -127.0f ? -127.0f : value > 127.0f ? 127.0f : value;
  const float shifted = kept + 0x1.8p23f;  // lines 1 up with the float's last bit
  return static_cast<int8_t>(static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - 0x4b400000u));
}

}  // namespace longspan
