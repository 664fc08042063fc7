// Element types of tensors in memory, and scalar conversions between float and the 16-bit formats.
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

}  // namespace longspan
