// What launchers of the sm_80 line, decode and prefill, ask of keys and values alike.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/attention/attention_params.h"
#include "kernels/kernel_status.h"

namespace longspan {

constexpr bool IsSixteenBit(DType dtype) {
  return dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

// Queries of 16 bits; keys and values of the same type, or of 8 bits.
inline KernelStatus CheckSm80Types(const AttentionParams& p) {
  const bool fits =
      IsSixteenBit(p.q_dtype) && (p.kv_dtype == p.q_dtype || DTypeBytes(p.kv_dtype) == 1);
  return fits ? KernelStatus::kOk : KernelStatus::kUnsupportedDType;
}

// Scales belong to 8-bit keys and values. Shape alone: strides and whether there are scales.
inline KernelStatus CheckSm80Scales(const AttentionParams& p) {
  const KvScales& s = p.scales;
  const bool wanted = DTypeBytes(p.kv_dtype) == 1;
  if ((s.k != nullptr) != wanted || (s.v != nullptr) != wanted) {
    return KernelStatus::kUnsupportedScales;
  }
  for (const int64_t stride :
       {s.k_block_stride, s.k_head_stride, s.v_block_stride, s.v_head_stride}) {
    if (stride < 0) return KernelStatus::kUnsupportedScales;
  }
  const bool aligned =
      std::bit_cast<uintptr_t>(s.k) % 4 == 0 && std::bit_cast<uintptr_t>(s.v) % 4 == 0;
  return aligned ? KernelStatus::kOk : KernelStatus::kMisaligned;
}

// Whether 16 bytes of keys and values can be copied at a time.
inline bool HasWideKv(const AttentionParams& p) {
  const int64_t step = 16 / DTypeBytes(p.kv_dtype);
  for (const int64_t stride : {p.k_block_stride, p.k_token_stride, p.k_head_stride,
                               p.v_block_stride, p.v_token_stride, p.v_head_stride}) {
    if (stride % step != 0) return false;
  }
  return std::bit_cast<uintptr_t>(p.k) % 16 == 0 && std::bit_cast<uintptr_t>(p.v) % 16 == 0;
}

// Keys and values are copied 8 elements or more at a time.
inline KernelStatus CheckSm80Kv(const AttentionParams& p) {
  if (p.k == nullptr || p.v == nullptr) return KernelStatus::kBadShape;
  for (const int64_t stride : {p.k_block_stride, p.k_token_stride, p.k_head_stride,
                               p.v_block_stride, p.v_token_stride, p.v_head_stride}) {
    if (stride % 8 != 0) return KernelStatus::kBadStride;
  }
  const uintptr_t bytes = 8 * static_cast<uintptr_t>(DTypeBytes(p.kv_dtype));
  const bool aligned =
      std::bit_cast<uintptr_t>(p.k) % bytes == 0 && std::bit_cast<uintptr_t>(p.v) % bytes == 0;
  return aligned ? KernelStatus::kOk : KernelStatus::kMisaligned;
}

}  // namespace longspan
