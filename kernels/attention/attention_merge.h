// The merge rule of partial attention results and the last step to an output row, over the vector
// class of an instruction set. A partial result in memory: see PartialFloats. Internal to
// kernels/attention.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_tiling.h"

namespace longspan {

template <typename Simd>
struct AttentionMerge {
  using F = typename Simd::F;
  static constexpr int kLanes = Simd::kLanes;
  static constexpr float kInf = __builtin_inff();
  static constexpr float kLog2E = 1.44269504088896341f;
  static constexpr float kLn2 = 0.69314718055994531f;

  static void ClearTotal(float* total, int padded) {
    for (int d = 0; d < padded; d += kLanes) Simd::Store(total + d, Simd::Zero());
    total[padded] = -kInf;
    total[padded + 1] = 0.0f;
  }

  static void Merge(const float* partial, float* total, int padded) {
    MergeRow(partial, partial[padded], partial[padded + 1], total, padded);
  }

  // total := total + (o, m, l). l = 0 means that no key was seen; a NaN is never taken for that.
  static void MergeRow(const float* o, float m, float l, float* total, int padded) {
    if (l == 0.0f) return;
    const float total_m = total[padded];
    const float total_l = total[padded + 1];
    if (total_l == 0.0f) {
      for (int d = 0; d < padded; d += kLanes) Simd::Store(total + d, Simd::Load(o + d));
      total[padded] = m;
      total[padded + 1] = l;
      return;
    }
    const float top = m <= total_m ? total_m : m;
    const F old_weight = Simd::Exp2(Simd::Set(total_m - top));
    const F new_weight = Simd::Exp2(Simd::Set(m - top));
    for (int d = 0; d < padded; d += kLanes) {
      const F scaled = Simd::Mul(Simd::Load(total + d), old_weight);
      Simd::Store(total + d, Simd::Fma(Simd::Load(o + d), new_weight, scaled));
    }
    total[padded] = top;
    total[padded + 1] = total_l * Simd::First(old_weight) + l * Simd::First(new_weight);
  }

  // Divides, adds the sink to the denominator, converts, and writes exactly head_dim elements.
  static void WriteRow(const AttentionParams& params, float* total, int64_t token, int32_t q_head) {
    const int padded = PaddedHeadDim(params.head_dim);
    const float m = total[padded];
    const float l = total[padded + 1];
    if (params.lse != nullptr) {
      params.lse[token * params.num_q_heads + q_head] =
          l == 0.0f ? -kInf : (m + __builtin_log2f(l)) * kLn2;
    }
    float denominator = l;
    if (params.sinks != nullptr && l != 0.0f) {
      const float sink = params.sinks[q_head] * kLog2E - m;
      // Beyond 2^127 the sink takes all the weight; below, Exp2 is in range.
      denominator += sink > 127.0f ? kInf : Simd::First(Simd::Exp2(Simd::Set(sink)));
    }
    const F factor = Simd::Set(l == 0.0f ? 0.0f : 1.0f / denominator);
    for (int d = 0; d < padded; d += kLanes) {
      Simd::Store(total + d, Simd::Mul(Simd::Load(total + d), factor));
    }
    const int64_t offset = token * params.o_token_stride + int64_t{q_head} * params.o_head_stride;
    switch (params.q_dtype) {
      case DType::kFloat32:
        __builtin_memcpy(static_cast<float*>(params.o) + offset, total,
                         params.head_dim * sizeof(float));
        break;
      case DType::kFloat16:
        WriteNarrow(total, params.head_dim, static_cast<uint16_t*>(params.o) + offset,
                    Simd::StoreHalf);
        break;
      default:
        WriteNarrow(total, params.head_dim, static_cast<uint16_t*>(params.o) + offset,
                    Simd::StoreBFloat);
        break;
    }
  }
  static void WriteNarrow(const float* from, int count, uint16_t* to, void (*store)(uint16_t*, F)) {
    int d = 0;
    for (; d + kLanes <= count; d += kLanes) store(to + d, Simd::Load(from + d));
    if (d == count) return;
    alignas(64) uint16_t few[kLanes];
    store(few, Simd::Load(from + d));
    for (int i = 0; d < count; ++i, ++d) to[d] = few[i];
  }
};

}  // namespace longspan
