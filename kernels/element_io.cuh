// Loads and stores of kWidth consecutive elements (1, or 8 in 16-byte accesses) of a type known at
// run time, as floats in registers. The type is the same for a whole launch, so its branches are
// uniform; the kernels that use this are bound by memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/dtype.h"

namespace longspan {

inline constexpr int kVectorWidth = 8;

__device__ __forceinline__ float HalfBitsToFloat(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

__device__ __forceinline__ uint32_t PackHalves(float low, float high) {
  return uint32_t{__half_as_ushort(__float2half_rn(low))} |
         uint32_t{__half_as_ushort(__float2half_rn(high))} << 16;
}

__device__ __forceinline__ uint32_t PackBFloats(float low, float high) {
  return uint32_t{__bfloat16_as_ushort(__float2bfloat16_rn(low))} |
         uint32_t{__bfloat16_as_ushort(__float2bfloat16_rn(high))} << 16;
}

// As FloatToFloat8E4M3: the instruction of sm_89 and newer keeps -0 and may keep a NaN's sign.
__device__ __forceinline__ uint32_t Float8Code(float value) {
#if __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  const uint32_t code = pair & 0xffu;
  if ((code & 0x7fu) == 0x7fu) return 0x7fu;
  return code == 0x80u ? 0u : code;
#else
  return FloatToFloat8E4M3(value);
#endif
}

__device__ __forceinline__ uint32_t Int8Code(float value) {
  return static_cast<uint8_t>(FloatToInt8(value));
}

// elements[index .. index + kWidth) of float32, float16 or bfloat16.
template <int kWidth>
__device__ __forceinline__ void LoadElements(const void* elements, DType dtype, int64_t index,
                                             float (&x)[kWidth]) {
  static_assert(kWidth == 1 || kWidth == kVectorWidth);
  if constexpr (kWidth == 1) {
    if (dtype == DType::kFloat32) {
      x[0] = static_cast<const float*>(elements)[index];
    } else {
      const uint32_t bits = static_cast<const uint16_t*>(elements)[index];
      x[0] = dtype == DType::kFloat16 ? HalfBitsToFloat(bits) : __uint_as_float(bits << 16);
    }
  } else {
    if (dtype == DType::kFloat32) {
      const auto* from =
          reinterpret_cast<const float4*>(static_cast<const float*>(elements) + index);
      const float4 a = from[0];
      const float4 b = from[1];
      x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
      x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
      return;
    }
    const uint4 raw =
        *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(elements) + index);
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (dtype == DType::kFloat16) {
        x[2 * i] = HalfBitsToFloat(words[i] & 0xffffu);
        x[2 * i + 1] = HalfBitsToFloat(words[i] >> 16);
      } else {
        x[2 * i] = __uint_as_float(words[i] << 16);
        x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
      }
    }
  }
}

// Rounds to nearest even; 8-bit types as core/dtype.h says, the scale already divided out.
template <int kWidth>
__device__ __forceinline__ void StoreElements(void* elements, DType dtype, int64_t index,
                                              const float (&x)[kWidth]) {
  static_assert(kWidth == 1 || kWidth == kVectorWidth);
  if constexpr (kWidth == 1) {
    switch (dtype) {
      case DType::kFloat32:
        static_cast<float*>(elements)[index] = x[0];
        return;
      case DType::kFloat16:
        static_cast<uint16_t*>(elements)[index] = __half_as_ushort(__float2half_rn(x[0]));
        return;
      case DType::kBFloat16:
        static_cast<uint16_t*>(elements)[index] = __bfloat16_as_ushort(__float2bfloat16_rn(x[0]));
        return;
      case DType::kFloat8E4M3:
        static_cast<uint8_t*>(elements)[index] = static_cast<uint8_t>(Float8Code(x[0]));
        return;
      case DType::kInt8:
        static_cast<uint8_t*>(elements)[index] = static_cast<uint8_t>(Int8Code(x[0]));
        return;
    }
  } else {
    switch (dtype) {
      case DType::kFloat32: {
        auto* to = reinterpret_cast<float4*>(static_cast<float*>(elements) + index);
        to[0] = make_float4(x[0], x[1], x[2], x[3]);
        to[1] = make_float4(x[4], x[5], x[6], x[7]);
        return;
      }
      case DType::kFloat16:
        *reinterpret_cast<uint4*>(static_cast<uint16_t*>(elements) + index) =
            make_uint4(PackHalves(x[0], x[1]), PackHalves(x[2], x[3]), PackHalves(x[4], x[5]),
                       PackHalves(x[6], x[7]));
        return;
      case DType::kBFloat16:
        *reinterpret_cast<uint4*>(static_cast<uint16_t*>(elements) + index) =
            make_uint4(PackBFloats(x[0], x[1]), PackBFloats(x[2], x[3]), PackBFloats(x[4], x[5]),
                       PackBFloats(x[6], x[7]));
        return;
      case DType::kFloat8E4M3:
      case DType::kInt8: {
        uint32_t words[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const uint32_t code = dtype == DType::kInt8 ? Int8Code(x[i]) : Float8Code(x[i]);
          words[i / 4] |= code << (8 * (i % 4));
        }
        *reinterpret_cast<uint2*>(static_cast<uint8_t*>(elements) + index) =
            make_uint2(words[0], words[1]);
        return;
      }
    }
  }
}

// What a float becomes when it is stored as dtype and loaded again; 16-bit types and float32.
__device__ __forceinline__ float Rounded(float x, DType dtype) {
  if (dtype == DType::kFloat16) return __half2float(__float2half_rn(x));
  if (dtype == DType::kBFloat16) return __bfloat162float(__float2bfloat16_rn(x));
  return x;
}

}  // namespace longspan
