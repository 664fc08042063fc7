// From four bytes of e4m3 or int8 to float16, exactly: the two even bytes and the two odd ones,
// each pair in one register (the lower byte first). By bit operations where the card has no
// instruction.
#pragma once

#include <cstdint>

#include "kernels/ptx/matrix.cuh"

namespace longspan::ptx {

// OCP's e4m3 by bit operations. A stored value is the unpacked one times kFactor; NaN stays NaN.
// Exponent and mantissa keep their places relative to each other; float16's larger bias makes the
// value 2^-8 of what it was, denormals included.
struct Float8E4M3Bits {
  static constexpr float kFactor = 256.0f;

  static __device__ __forceinline__ void Unpack(uint32_t four, uint32_t& even, uint32_t& odd) {
    even = Place(four << 8);
    odd = Place(four);
  }

 private:
  // Of the upper byte of each half.
  static __device__ __forceinline__ uint32_t Place(uint32_t upper) {
    const uint32_t magnitude = (upper & 0x7f007f00u) >> 1;
    // Only NaN's magnitude, all ones, carries into the next bit: with it the exponent is all ones.
    const uint32_t nan = (magnitude + 0x00800080u) & 0x40004000u;
    return (upper & 0x80008000u) | magnitude | nan;
  }
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
// The same by the card's own conversion.
struct Float8E4M3 {
  static constexpr float kFactor = 1.0f;

  static __device__ __forceinline__ void Unpack(uint32_t four, uint32_t& even, uint32_t& odd) {
    even = Convert(__byte_perm(four, 0, 0x4420));
    odd = Convert(__byte_perm(four, 0, 0x4431));
  }

 private:
  static __device__ __forceinline__ uint32_t Convert(uint32_t two) {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(two)));
    return halves;
  }
};
#else
using Float8E4M3 = Float8E4M3Bits;
#endif

// Two's complement. A byte with its sign bit flipped is the value + 128; as the lowest bits of 1024
// in float16 it counts ones.
struct SignedInt8 {
  static constexpr float kFactor = 1.0f;

  static __device__ __forceinline__ void Unpack(uint32_t four, uint32_t& even, uint32_t& odd) {
    constexpr uint32_t k1152 = 0x64806480u;  // 1024 + 128, twice
    even = SubtractFloat16x2((four & 0x00ff00ffu) ^ k1152, k1152);
    odd = SubtractFloat16x2(((four >> 8) & 0x00ff00ffu) ^ k1152, k1152);
  }
};

}  // namespace longspan::ptx
