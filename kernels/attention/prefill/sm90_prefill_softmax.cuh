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
  static constexpr int kScores = Traits::kKeys / 8, kOutputs = Traits::kHeadDim / 8;
  static constexpr int kEarly = 8;  // column groups whose exponentials begin while a product runs

  float maximum[2];   // of the scores, not scaled
  float sum[2];       // of weights, of this thread's columns, until SumOfRow
  float factor[2];    // what sums and outputs so far are worth under the new maximum
  float tile_sum[2];  // of one tile's: added to the long sum one by one they would lose digits

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

  // Of row r; sums so far are brought to it, outputs by Finish.
  __device__ __forceinline__ void NewMaximum(const float (&s)[kScores][4], int r,
                                             float scale_log2) {
    float top[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) top[j] = fmaxf(s[j][2 * r], s[j][2 * r + 1]);
#pragma unroll
    for (int j = 4; j < kScores; ++j) {
      top[j % 4] = fmaxf(top[j % 4], fmaxf(s[j][2 * r], s[j][2 * r + 1]));
    }
    float whole = fmaxf(fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3])), maximum[r]);
    whole = fmaxf(whole, __shfl_xor_sync(~0u, whole, 1));
    whole = fmaxf(whole, __shfl_xor_sync(~0u, whole, 2));
    const float before = maximum[r];
    maximum[r] = whole;
    // Of rounded products, so that it is 1 while the maximum stays: the rest of an exact one, tile
    // after tile, would be off by the context's length.
    factor[r] = ptx::Exp2(__fsub_rn(__fmul_rn(before, scale_log2), Shift(r, scale_log2)));
    sum[r] *= factor[r];
  }

  // What is taken off a row's scaled scores: the maximum; 0 while it is -inf.
  __device__ __forceinline__ float Shift(int r, float scale_log2) const {
    return maximum[r] == -INFINITY ? 0.0f : __fmul_rn(maximum[r], scale_log2);
  }

  // The first kEarly column groups of row 0: scores to weights 2^(scaled score - maximum). Maxima
  // of both rows came before.
  __device__ __forceinline__ void Begin(float (&s)[kScores][4], float scale_log2) {
    tile_sum[0] = tile_sum[1] = 0.0f;
    Exponentials(s, 0, 0, kEarly, scale_log2);
  }
  // All other weights and, if there is output so far, `o` under the new maxima. One column group
  // after the other, so that multiplications and conversions fall between exponentials, which are
  // slow.
  template <bool kHasOutput>
  __device__ __forceinline__ void Finish(float (&s)[kScores][4], float (&o)[kOutputs][4],
                                         uint32_t (&p)[kScores / 2][4], float scale_log2) {
    using Element = typename Traits::Element;
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      if (j >= kEarly) Exponentials(s, 0, j, j + 1, scale_log2);
      Exponentials(s, 1, j, j + 1, scale_log2);
      if constexpr (kHasOutput) {
#pragma unroll
        for (int i = j * kOutputs / kScores; i < (j + 1) * kOutputs / kScores; ++i) {
          o[i][0] *= factor[0];
          o[i][1] *= factor[0];
          o[i][2] *= factor[1];
          o[i][3] *= factor[1];
        }
      }
      // Scores in the layout of a product's result are weights in that of the next one's first
      // matrix.
      p[j / 2][j % 2 * 2] = Element::Pack(s[j][0], s[j][1]);
      p[j / 2][j % 2 * 2 + 1] = Element::Pack(s[j][2], s[j][3]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += tile_sum[r];
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
    return sum[r] == 0.0f ? -INFINITY : kLn2 * (Shift(r, scale_log2) + log2f(sum[r]));
  }

 private:
  __device__ __forceinline__ void Exponentials(float (&s)[kScores][4], int r, int from, int to,
                                               float scale_log2) {
    const float shift = Shift(r, scale_log2);
#pragma unroll
    for (int j = from; j < to; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        s[j][2 * r + i] = ptx::Exp2(fmaf(s[j][2 * r + i], scale_log2, -shift));
        tile_sum[r] += s[j][2 * r + i];
      }
    }
  }
};

}  // namespace longspan
