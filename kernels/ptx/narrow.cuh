// 8-bit elements to float16, four at a time and exactly; and the transposition that turns scores
// into weights of the next product.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace longspan::ptx {

// The elements of the lower two bytes and of the upper two (sm_89 and up). NaN stays NaN.
__device__ __forceinline__ void Float8E4M3ToFloat16(uint32_t packed, uint32_t& low,
                                                    uint32_t& high) {
  asm("{\n"
      ".reg .b16 first, second;\n"
      "mov.b32 {first, second}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, first;\n"
      "cvt.rn.f16x2.e4m3x2 %1, second;\n"
      "}"
      : "=r"(low), "=r"(high)
      : "r"(packed));
}

// Transposes an 8x8 matrix of 16-bit elements: lane 4g + t gives (g, 2t) and (g, 2t + 1), gets
// (2t, g) and (2t + 1, g).
__device__ __forceinline__ uint32_t TransposeMatrix(uint32_t elements) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(elements));
  return transposed;
}

// The 8-bit types as kernels take them. Neighbours: bytes 0, 1 and bytes 2, 3. Alternate: bytes 0,
// 2 and bytes 1, 3.
struct E4M3 {
  static constexpr bool kHasNan = true;
  static __device__ __forceinline__ void Neighbours(uint32_t bytes, uint32_t& low, uint32_t& high) {
    Float8E4M3ToFloat16(bytes, low, high);
  }
  static __device__ __forceinline__ void Alternate(uint32_t bytes, uint32_t& low, uint32_t& high) {
    Float8E4M3ToFloat16(__byte_perm(bytes, 0, 0x3120), low, high);
  }
};

// 0x6400 + u is the float16 1024 + u for u in 0..255, and x + 128 is such a u.
struct Int8 {
  static constexpr bool kHasNan = false;
  static __device__ __forceinline__ uint32_t Centre(uint32_t biased) {
    constexpr uint32_t kMinus1152 = 0xe480e480u;
    uint32_t halves;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(halves) : "r"(biased), "r"(kMinus1152));
    return halves;
  }
  static __device__ __forceinline__ void Neighbours(uint32_t bytes, uint32_t& low, uint32_t& high) {
    const uint32_t shifted = bytes ^ 0x80808080u;
    low = Centre(__byte_perm(shifted, 0x64646464u, 0x4140));
    high = Centre(__byte_perm(shifted, 0x64646464u, 0x4342));
  }
  static __device__ __forceinline__ void Alternate(uint32_t bytes, uint32_t& low, uint32_t& high) {
    low = Centre((bytes & 0x00ff00ffu) ^ 0x64806480u);
    high = Centre((bytes >> 8 & 0x00ff00ffu) ^ 0x64806480u);
  }
};

}  // namespace longspan::ptx
