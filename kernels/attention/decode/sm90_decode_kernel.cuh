// Decode attention on paged keys and values, sm_90a, 16-bit elements.
//
// Computes softmax(scale * Q K^T + mask) V of the plan's units. Grid: one CTA per SM, each with the
// range of tiles that the plan gave it. Warp 4 is the producer: it walks the range and lets the
// copy engine bring a tile of keys, then its values, into a ring of stages. Warps 0..3 are
// consumers: each takes 16 of a tile's 64 tokens, with its own softmax state and output, so they
// meet only when a unit ends. Packed query rows (query x head of the group) are the 16 rows of
// mma.m16n8k16. With at most 8 rows (kHiLo) the other 8 carry what rounding the weights lost, so
// that the product with V is as exact as with 16 more bits. Bound by the reading of keys and
// values; shared memory: decode_traits.cuh. Supported: what decode.h says.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/attention/decode/decode_traits.cuh"
#include "kernels/attention/decode/sm90_decode_pipeline.cuh"

namespace longspan {

// What of a part's keys a lane's two rows (g and g + 8 of the row tile) may see.
struct DecodeMask : DecodeBounds {
  int32_t first[2], last[2];  // tokens, inclusive
};

// A consumer warp's share of a part: 16 tokens of every tile against all rows.
template <typename Traits, bool kHiLo>
class DecodeConsumer {
 public:
  using Element = typename Traits::Element;
  using Storage = typename Traits::Storage;
  static constexpr int kHeadDim = Traits::kHeadDim;
  static constexpr int kRowsPerLane = kHiLo ? 1 : 2;  // g, and g + 8

  __device__ __forceinline__ DecodeConsumer(const DecodeArgs& args, Storage& shared)
      : args_(args),
        shared_(shared),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32),
        g_(lane_ / 4),
        t_(lane_ % 4),
        column_bytes_(args.box_tokens * Traits::kRowBytes),
        rows_(Traits::kWarpTokens * warp_ / args.box_tokens * column_bytes_ * Traits::kColumns +
              Traits::kWarpTokens * warp_ % args.box_tokens * Traits::kRowBytes),
        ring_(ptx::SharedAddress(shared.ring)),
        full_(ptx::SharedAddress(shared.full)),
        empty_(ptx::SharedAddress(shared.empty)) {}

  __device__ __forceinline__ void Attend(const DecodePart& part) {
    LoadQueries(part);
#pragma unroll
    for (auto& four : o_) four[0] = four[1] = four[2] = four[3] = 0.0f;
    maximum_[0] = maximum_[1] = -INFINITY;
    sum_[0] = sum_[1] = 0.0f;
    DecodeMask mask = {MakeDecodeBounds(args_, part.sequence)};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t position = DecodePosition(args_, part, g_ + 8 * r);
      mask.first[r] = FirstVisible(args_, position);
      mask.last[r] = LastVisible(args_, position, part.sequence.length);
    }
    const int32_t first_tile = mask.owned_begin / Traits::kTile;
    int32_t token = (first_tile + part.begin) * Traits::kTile + Traits::kWarpTokens * warp_;
    for (int32_t tile = part.begin; tile < part.end; ++tile, token += Traits::kTile) {
      float x[2][4];
      Scores(x);
      if (token < mask.all_from || token + Traits::kWarpTokens - 1 > mask.all_to) {
        ApplyMask(mask, token, x);
      }
      RaiseMaximum(x);
      uint32_t weights[4];
      Weights(x, weights);
      AddValues(mask, token, weights);
    }
    StoreForMerge();
  }

 private:
  __device__ __forceinline__ void WaitFull() {
    ptx::MbarrierWait(full_ + 8 * at_.stage, at_.parity);
  }
  __device__ __forceinline__ void ReleaseStage() {
    __syncwarp();
    if (lane_ == 0) ptx::MbarrierArrive(empty_ + 8 * at_.stage);
    at_.Advance();
  }
  // 16-byte chunk `chunk` (over the whole head) of row `row` of the stage.
  __device__ __forceinline__ uint32_t ChunkAddress(uint32_t row, uint32_t chunk) const {
    return ring_ + at_.stage * Traits::kStageBytes + rows_ + chunk / 8 * column_bytes_ +
           ptx::Swizzle128(row, chunk % 8);
  }

  __device__ __forceinline__ void LoadQueries(const DecodePart& part) {
    const int32_t num_rows = DecodeNumRows(args_, part);
    const auto* q = static_cast<const uint16_t*>(args_.q);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = g_ + 8 * r;
      const bool real = r < kRowsPerLane && row < num_rows;
      const int64_t at = real ? DecodeToken(args_, part, row) * args_.q_token_stride +
                                    DecodeQueryHead(args_, part, row) * args_.q_head_stride
                              : 0;
#pragma unroll
      for (int k = 0; k < kHeadDim / 16; ++k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const auto* pair = reinterpret_cast<const uint32_t*>(q + at + 16 * k + 8 * half + 2 * t_);
          q_[k][r + 2 * half] = real ? *pair : 0u;
        }
      }
    }
  }

  // x[j]: scores of the warp's tokens 8j..8j+7 in the layout of C, in units of log2.
  __device__ __forceinline__ void Scores(float (&x)[2][4]) {
    WaitFull();
    float s[2][2][4] = {};  // two chains, so that products do not wait for each other
    const uint32_t row = lane_ / 16 * 8 + lane_ % 8;
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      uint32_t keys[4];
      ptx::LoadMatrixX4(keys, ChunkAddress(row, 2 * k + lane_ / 8 % 2));
      Element::Mma(s[k % 2][0], q_[k], keys[0], keys[1]);
      Element::Mma(s[k % 2][1], q_[k], keys[2], keys[3]);
    }
    ReleaseStage();
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) x[j][c] = (s[0][j][c] + s[1][j][c]) * args_.scale_log2;
    }
  }

  // By selection: whatever was computed for a token that nobody owns is gone.
  __device__ __forceinline__ void ApplyMask(const DecodeMask& mask, int32_t token,
                                            float (&x)[2][4]) const {
#pragma unroll
    for (int r = 0; r < kRowsPerLane; ++r) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int32_t key = token + 8 * j + 2 * t_ + c;
          if (key < mask.first[r] || key > mask.last[r]) x[j][2 * r + c] = -INFINITY;
        }
      }
    }
  }

  __device__ __forceinline__ void RaiseMaximum(const float (&x)[2][4]) {
    float raised[2];
    bool any_rose = false;
#pragma unroll
    for (int r = 0; r < kRowsPerLane; ++r) {
      float top = fmaxf(fmaxf(x[0][2 * r], x[0][2 * r + 1]), fmaxf(x[1][2 * r], x[1][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      raised[r] = fmaxf(maximum_[r], top);
      any_rose |= raised[r] != maximum_[r];
    }
    // The vote saves work and changes no bit: a row that did not rise is multiplied by 1.
    if (!__any_sync(~0u, any_rose)) return;
    float factor[2];
#pragma unroll
    for (int r = 0; r < kRowsPerLane; ++r) {
      factor[r] = raised[r] == maximum_[r] ? 1.0f : ptx::Exp2(maximum_[r] - raised[r]);
      maximum_[r] = raised[r];
      sum_[r] *= factor[r];
    }
    if (kHiLo) factor[1] = factor[0];
#pragma unroll
    for (auto& four : o_) {
      four[0] *= factor[0];
      four[1] *= factor[0];
      four[2] *= factor[1];
      four[3] *= factor[1];
    }
  }

  // Scores to weights, as the A fragment of the product with V.
  __device__ __forceinline__ void Weights(const float (&x)[2][4], uint32_t (&weights)[4]) {
#pragma unroll
    for (int r = 0; r < kRowsPerLane; ++r) {
      const float base = maximum_[r] == -INFINITY ? 0.0f : maximum_[r];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float a = ptx::Exp2(x[j][2 * r] - base);
        const float b = ptx::Exp2(x[j][2 * r + 1] - base);
        sum_[r] += a + b;
        weights[2 * j + r] = Element::Pack(a, b);
        if (kHiLo) {
          const float2 high = Element::Unpack(weights[2 * j]);
          weights[2 * j + 1] = Element::Pack(a - high.x, b - high.y);
        }
      }
    }
  }

  __device__ __forceinline__ void AddValues(const DecodeMask& mask, int32_t token,
                                            const uint32_t (&weights)[4]) {
    WaitFull();
    if (token < mask.owned_begin || token + Traits::kWarpTokens > mask.owned_end) {
      ZeroUnownedValues(mask, token);
    }
    const uint32_t row = lane_ / 8 % 2 * 8 + lane_ % 8;
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      uint32_t values[4];
      ptx::LoadMatrixX4Transposed(values, ChunkAddress(row, 2 * i + lane_ / 16));
      Element::Mma(o_[2 * i], weights, values[0], values[1]);
      Element::Mma(o_[2 * i + 1], weights, values[2], values[3]);
    }
    ReleaseStage();
  }

  // A weight of 0 times NaN is NaN: values that no row may see are overwritten.
  __device__ __forceinline__ void ZeroUnownedValues(const DecodeMask& mask, int32_t token) {
    constexpr int kChunks = kHeadDim / 8;
    for (int i = lane_; i < Traits::kWarpTokens * kChunks; i += 32) {
      const int row = i / kChunks;
      const int chunk = i % kChunks;
      if (token + row >= mask.owned_begin && token + row < mask.owned_end) continue;
      uint8_t* to =
          shared_.ring[at_.stage] + rows_ + chunk / 8 * column_bytes_ + row * 128 + chunk % 8 * 16;
      *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    }
    ptx::FenceProxyAsyncShared();  // the copy engine fills the stage again later
    __syncwarp();
  }

  __device__ __forceinline__ void StoreForMerge() {
#pragma unroll
    for (int r = 0; r < kRowsPerLane; ++r) {
      sum_[r] += __shfl_xor_sync(~0u, sum_[r], 1);
      sum_[r] += __shfl_xor_sync(~0u, sum_[r], 2);
      const int row = g_ + 8 * r;
      if (t_ == 0) shared_.merge_sum[warp_][row] = make_float2(maximum_[r], sum_[r]);
#pragma unroll
      for (int i = 0; i < kHeadDim / 8; ++i) {
        auto* to = reinterpret_cast<float2*>(&shared_.merge_o[warp_][row][8 * i + 2 * t_]);
        *to = kHiLo ? make_float2(o_[i][0] + o_[i][2], o_[i][1] + o_[i][3])
                    : make_float2(o_[i][2 * r], o_[i][2 * r + 1]);
      }
    }
  }

  const DecodeArgs& args_;
  Storage& shared_;
  const int warp_, lane_, g_, t_;
  const uint32_t column_bytes_;  // from a column of a box to the next
  const uint32_t rows_;          // the warp's first row in a stage
  const uint32_t ring_, full_, empty_;
  RingPosition<Traits::kStages> at_{0, 0};
  uint32_t q_[kHeadDim / 16][4];
  float o_[kHeadDim / 8][4];  // with kHiLo rows g + 8 are the low halves' products of rows g
  float maximum_[2], sum_[2];
};

}  // namespace longspan
