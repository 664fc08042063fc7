// Matrix units by mma.sync, and ldmatrix that feeds them. Fragments of a lane, g = lane / 4,
// t = lane % 4 (each register holds two 16-bit elements, the lower one first):
//   A 16x16: a0 (g, 2t), a1 (g + 8, 2t), a2 (g, 2t + 8), a3 (g + 8, 2t + 8)      (row, k)
//   B 16x8:  b0 (2t, g), b1 (2t + 8, g)                                          (k, column)
//   C 16x8:  c0 (g, 2t), c1 (g, 2t + 1), c2 (g + 8, 2t), c3 (g + 8, 2t + 1)      (row, column)
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace longspan::ptx {

// Four 8x8 matrices of 16-bit elements. Lanes 8i..8i+7 give the addresses of matrix i's rows (16
// bytes each, aligned); lane gets elements (g, 2t) and (g, 2t + 1) of matrix i in r[i].
__device__ __forceinline__ void LoadMatrixX4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// The same of the transposed matrices: elements (2t, g) and (2t + 1, g).
__device__ __forceinline__ void LoadMatrixX4Transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Stores what LoadMatrixX4 loads (sm_90).
__device__ __forceinline__ void StoreMatrixX4(uint32_t address, uint32_t r0, uint32_t r1,
                                              uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// c += a * b.
__device__ __forceinline__ void MmaBFloat16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void MmaFloat16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two floats rounded to nearest even; low becomes the lower half.
__device__ __forceinline__ uint32_t PackBFloat16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ uint32_t PackFloat16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// a - b of both halves, to nearest even.
__device__ __forceinline__ uint32_t SubtractFloat16x2(uint32_t a, uint32_t b) {
  uint32_t difference;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
  return difference;
}

// 2^x to two units in the last place; 2^-inf = 0; results below the normal range are 0.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2(x) and 1 / x of a positive normal x, to about 2^-22.
__device__ __forceinline__ float Log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The 16-bit types as kernels take them: how two values are packed, unpacked and multiplied.
struct BFloat16 {
  static __device__ __forceinline__ void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
    MmaBFloat16(c, a, b0, b1);
  }
  static __device__ __forceinline__ uint32_t Pack(float low, float high) {
    return PackBFloat16(low, high);
  }
  static __device__ __forceinline__ float2 Unpack(uint32_t packed) {
    return make_float2(__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u));
  }
};
struct Float16 {
  static __device__ __forceinline__ void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
    MmaFloat16(c, a, b0, b1);
  }
  static __device__ __forceinline__ uint32_t Pack(float low, float high) {
    return PackFloat16(low, high);
  }
  static __device__ __forceinline__ float2 Unpack(uint32_t packed) {
    __half2_raw halves;
    halves.x = static_cast<uint16_t>(packed);
    halves.y = static_cast<uint16_t>(packed >> 16);
    return __half22float2(__half2(halves));
  }
};

}  // namespace longspan::ptx
