// The running softmax of a consumer thread's two rows (g and g + 8 of its warp's sixteen) in the
// sm_90a prefill kernel: masks, maxima, exponentials. Registers only.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/attention/prefill/sm90_prefill_params.h"
#include "kernels/ptx/matrix.cuh"

namespace longspan {

template <typename Traits>
struct Sm90PrefillSoftmax {
  static constexpr int kScores = Traits::kKeys / 8;

  float maximum[2];  // of the scores, not scaled
  float sum[2];      // of this thread's columns, until SumOfRow
  float factor[2];   // what sums and outputs so far are worth under the new maximum

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      maximum[r] = -INFINITY;
      sum[r] = 0.0f;
    }
  }

  // Scores of keys from first_key on that a row may not see become -inf, whatever they hold. `row`
  // of the piece: the upper of the thread's two, which has columns 8 j + 2 quad and the next.
  __device__ __forceinline__ void Mask(float (&s)[kScores][4], int first_key,
                                       const Sm90PrefillArgs& args, const Sm90PrefillPiece& piece,
                                       int row, int quad) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int position = piece.first_position + row + 8 * r;
      int last = piece.length - 1;
      if (args.causal) last = min(last, position);
      last -= first_key + 2 * quad;
#pragma unroll
      for (int j = 0; j < kScores; ++j) {
        if (8 * j > last) s[j][2 * r] = -INFINITY;
        if (8 * j + 1 > last) s[j][2 * r + 1] = -INFINITY;
      }
    }
    if (args.window_left < 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int position = piece.first_position + row + 8 * r;
      const int first = position - args.window_left - first_key - 2 * quad;
#pragma unroll
      for (int j = 0; j < kScores; ++j) {
        if (8 * j < first) s[j][2 * r] = -INFINITY;
        if (8 * j + 1 < first) s[j][2 * r + 1] = -INFINITY;
      }
    }
  }
  // Scores that were not computed.
  __device__ __forceinline__ void HideUpperHalf(float (&s)[kScores][4]) const {
#pragma unroll
    for (int j = kScores / 2; j < kScores; ++j) {
      s[j][0] = s[j][1] = s[j][2] = s[j][3] = -INFINITY;
    }
  }

  __device__ __forceinline__ void NewMaximum(const float (&s)[kScores][4], float scale_log2) {
    float top[2][2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r][0] = fmaxf(s[0][2 * r], s[0][2 * r + 1]);
      top[r][1] = fmaxf(s[1][2 * r], s[1][2 * r + 1]);
    }
#pragma unroll
    for (int j = 2; j < kScores; j += 2) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[r][0] = fmaxf(top[r][0], fmaxf(s[j][2 * r], s[j][2 * r + 1]));
        top[r][1] = fmaxf(top[r][1], fmaxf(s[j + 1][2 * r], s[j + 1][2 * r + 1]));
      }
    }
    float whole[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) whole[r] = fmaxf(fmaxf(top[r][0], top[r][1]), maximum[r]);
#pragma unroll
    for (int r = 0; r < 2; ++r) whole[r] = fmaxf(whole[r], __shfl_xor_sync(~0u, whole[r], 1));
#pragma unroll
    for (int r = 0; r < 2; ++r) whole[r] = fmaxf(whole[r], __shfl_xor_sync(~0u, whole[r], 2));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = maximum[r];
      maximum[r] = whole[r];
      factor[r] = ptx::Exp2(fmaf(before, scale_log2, -Shift(r, scale_log2)));
      sum[r] *= factor[r];
    }
  }

  // What is taken off a row's scaled scores: the maximum; 0 while it is -inf.
  __device__ __forceinline__ float Shift(int r, float scale_log2) const {
    return maximum[r] == -INFINITY ? 0.0f : maximum[r] * scale_log2;
  }

  // Scores of row r to weights 2^(scaled score - maximum); NewMaximum came before.
  __device__ __forceinline__ void Exponentials(float (&s)[kScores][4], int r, float scale_log2) {
    const float shift = Shift(r, scale_log2);
    float other = 0.0f;
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      s[j][2 * r] = ptx::Exp2(fmaf(s[j][2 * r], scale_log2, -shift));
      s[j][2 * r + 1] = ptx::Exp2(fmaf(s[j][2 * r + 1], scale_log2, -shift));
      sum[r] += s[j][2 * r];
      other += s[j][2 * r + 1];
    }
    sum[r] += other;
  }

  // Scores in the layout of a product's result are weights in that of the next one's first matrix.
  __device__ __forceinline__ void Pack(const float (&s)[kScores][4],
                                       uint32_t (&p)[kScores / 2][4]) const {
    using Element = typename Traits::Element;
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      p[i][0] = Element::Pack(s[2 * i][0], s[2 * i][1]);
      p[i][1] = Element::Pack(s[2 * i][2], s[2 * i][3]);
      p[i][2] = Element::Pack(s[2 * i + 1][0], s[2 * i + 1][1]);
      p[i][3] = Element::Pack(s[2 * i + 1][2], s[2 * i + 1][3]);
    }
  }

  // Sums of the four threads that share the rows; once, at the end.
  __device__ __forceinline__ void SumOfRow() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    }
  }

  // Natural logarithm of the sum of exponentials.
  __device__ __forceinline__ float LogSum(int r, float scale_log2) const {
    constexpr float kLn2 = 0.693147181f;
    return sum[r] == 0.0f ? -INFINITY : kLn2 * fmaf(maximum[r], scale_log2, log2f(sum[r]));
  }
};

}  // namespace longspan
