// Decode attention on paged 8-bit keys and values, sm_90a; queries and output float16 or bfloat16.
//
// As sm90_decode_kernel.cuh, with these differences. Up to head_dim 128 two teams of four warps
// take tiles in turn, 16 tokens a warp; above, one team with more registers. Tokens are the rows of
// the matrix unit and query rows its columns, so that few query rows cost half: scores are K Q^T,
// outputs V^T P^T. Keys and values become float16 in registers, exactly, and no byte moves between
// lanes (sm90_decode_layout.h); bfloat16 queries become float16 by a power of two per row. A tile's
// scales stand beside its keys: that of keys goes into the score's factor; that of values is added
// to the score as a logarithm and taken out of the softmax sum, so that weights stay in float16's
// range whatever the scales. Weights are float16 with the row's largest at 2^15: what is rounded
// off is a tenth of what rounding the output to bfloat16 costs. Bound by the reading of keys and
// values.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/attention/decode/decode_traits.cuh"
#include "kernels/attention/decode/sm90_decode_pipeline.cuh"
#include "kernels/ptx/narrow.cuh"

namespace longspan {

// A consumer warp's share of a part: 16 tokens of every tile of its team against 8 * kRowTiles
// rows. Fragments are those of matrix.cuh, g = lane / 4, t = lane % 4. As a column of scores,
// weights and outputs, lane t has rows 8 r + 2 t + i (r < kRowTiles, i < 2); as a row of queries,
// row 8 r + g.
template <typename Traits, int kRowTiles>
class Kv8DecodeConsumer {
 public:
  using Narrow = typename Traits::Narrow;
  using Storage = typename Traits::Storage;
  static constexpr int kHeadDim = Traits::kHeadDim;
  static constexpr int kChunks = kHeadDim / 16;  // of 16 dimensions, 16 bytes

  __device__ __forceinline__ Kv8DecodeConsumer(const DecodeArgs& args, Storage& shared)
      : args_(args),
        shared_(shared),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32),
        g_(lane_ / 4),
        t_(lane_ % 4),
        base_(ptx::SharedAddress(&shared)) {
    const uint32_t row = Traits::kWarpTokens * Quarter() + lane_ % 16;
    lane_address_ =
        base_ + offsetof(Storage, ring) + Sm90DecodeSwizzle(Traits::kRowBytes, row, lane_ / 16);
  }

  __device__ __forceinline__ void Attend(const DecodePart& part) {
    LoadQueries(part);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (auto& four : o_[r]) four[0] = four[1] = four[2] = four[3] = 0.0f;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        maximum_[r][i] = -INFINITY;
        sum_[r][i] = 0.0f;
      }
    }
    const DecodeBounds bounds = MakeDecodeBounds(args_, part.sequence);
    const int32_t first_tile = bounds.owned_begin / Traits::kTile;
    int32_t token = (first_tile + part.begin) * Traits::kTile + Traits::kWarpTokens * Quarter();
    int team = 0;  // whose tile it is
    for (int32_t tile = part.begin; tile < part.end; ++tile, token += Traits::kTile) {
      if (team == warp_ / Traits::kTileConsumers) AttendTile(part, bounds, token);
      team = (team + 1) % Traits::kTeams;
      at_.Advance();
    }
    StoreForMerge();
  }

 private:
  // Where registers do not suffice, queries wait where the part's result is stored at its end.
  static constexpr bool kQueriesInShared = kRowTiles * kHeadDim > 384;
  static_assert(sizeof(Storage::merge_o[0]) >= 32 * kRowTiles * kChunks * sizeof(uint2));
  static constexpr float kWeightBits = 15.0f;  // the largest weight is 2^15
  static constexpr float kWeightUnit = 0x1p-15f;

  // Which 16 tokens of a tile are the warp's.
  __device__ __forceinline__ int Quarter() const { return warp_ % Traits::kTileConsumers; }

  // A tile's keys lie in stage 2 * at_.stage, its values in the one behind.
  __device__ __forceinline__ void WaitFull(int values) {
    ptx::MbarrierWait(base_ + offsetof(Storage, full) + 16 * at_.stage + 8 * values, at_.parity);
  }
  __device__ __forceinline__ void ReleaseStage(int values) {
    __syncwarp();
    if (lane_ == 0)
      ptx::MbarrierArrive(base_ + offsetof(Storage, empty) + 16 * at_.stage + 8 * values);
  }
  // What the lane gives ldmatrix for chunks 2 pair and 2 pair + 1: lanes 0..15 rows of the first,
  // 16..31 of the second. Pairs of a column differ in address bits that rows do not carry into.
  __device__ __forceinline__ uint32_t PairAddress(int values, int pair) const {
    constexpr int kPairs = Traits::kRowBytes / 32;  // of a column
    const uint32_t stage = lane_address_ + (2 * at_.stage + values) * Traits::kStageBytes;
    return (stage ^ pair % kPairs << 5) + pair / kPairs * Traits::kColumnBytes;
  }

  __device__ __forceinline__ void LoadQueries(const DecodePart& part) {
    const int32_t num_rows = DecodeNumRows(args_, part);
    const auto* q = static_cast<const uint16_t*>(args_.q);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const int row = 8 * r + g_;
      const bool real = row < num_rows;
      uint32_t fragments[kChunks][2];
      const int64_t at = real ? DecodeToken(args_, part, row) * args_.q_token_stride +
                                    DecodeQueryHead(args_, part, row) * args_.q_head_stride
                              : 0;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int d = 16 * chunk + Kv8KeyDimension(8 * half) + t_ * Kv8KeyDimension(2);
          fragments[chunk][half] = real && 16 * chunk < args_.head_dim
                                       ? *reinterpret_cast<const uint32_t*>(q + at + d)
                                       : 0u;
        }
      }
      const float row_factor = args_.is_bfloat16 ? ToFloat16(fragments) : 1.0f;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        if constexpr (kQueriesInShared) {
          auto* pairs = reinterpret_cast<uint2*>(shared_.merge_o[warp_]);
          pairs[32 * (kChunks * r + chunk) + lane_] =
              make_uint2(fragments[chunk][0], fragments[chunk][1]);
        } else {
          q_[r][chunk] = make_uint2(fragments[chunk][0], fragments[chunk][1]);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // from the lane that has row 2t + i as g
        factor_[r][i] = args_.scale_log2 * __shfl_sync(~0u, row_factor, 4 * (2 * t_ + i));
      }
    }
  }

  __device__ __forceinline__ uint2 Query(int r, int chunk) const {
    if constexpr (kQueriesInShared) {
      const float2 bits =
          ptx::LoadShared2(base_ + offsetof(Storage, merge_o) + warp_ * sizeof(shared_.merge_o[0]) +
                           (32 * (kChunks * r + chunk) + lane_) * sizeof(uint2));
      return make_uint2(__float_as_uint(bits.x), __float_as_uint(bits.y));
    } else {
      return q_[r][chunk];
    }
  }

  // A row's bfloat16 elements to float16, times the power of two that brings the largest of the row
  // into [2^14, 2^15): exact but for elements 2^-30 of it and smaller. Returns what undoes it.
  __device__ __forceinline__ float ToFloat16(uint32_t (&row)[kChunks][2]) const {
    uint32_t top = 0;
#pragma unroll
    for (auto& pair : row) {
#pragma unroll
      for (const uint32_t packed : pair) {
        top = max(top, max(packed & 0x7fffu, packed >> 16 & 0x7fffu));
      }
    }
    top = max(top, __shfl_xor_sync(~0u, top, 1));
    top = max(top, __shfl_xor_sync(~0u, top, 2));
    const uint32_t exponent = max(top >> 7, 15u);  // biased by 127; zeros, denormals: any will do
    const float factor = __uint_as_float((2 * 127 + 14 - exponent) << 23);
#pragma unroll
    for (auto& pair : row) {
#pragma unroll
      for (uint32_t& packed : pair) {
        const float2 two = ptx::BFloat16::Unpack(packed);
        packed = ptx::PackFloat16(two.x * factor, two.y * factor);
      }
    }
    return __uint_as_float((exponent - 14) << 23);
  }

  __device__ __forceinline__ void AttendTile(const DecodePart& part, const DecodeBounds& bounds,
                                             int32_t token) {
    float x[kRowTiles][4];
    const float inverse_scale = Scores(x);
    if (token < bounds.all_from || token + Traits::kWarpTokens - 1 > bounds.all_to) {
      ApplyMask(part, token, x);
    }
    RaiseMaximum(x);
    uint32_t weights[kRowTiles][2];
    Weights(x, inverse_scale, weights);
    AddValues(bounds, token, weights);
  }

  // x[r]: scores of tokens g (first two) and g + 8 for rows 8 r + 2 t + {0, 1}, in units of log2,
  // plus the logarithm of the values' scale. Returns one over that scale.
  __device__ __forceinline__ float Scores(float (&x)[kRowTiles][4]) {
    WaitFull(0);
    constexpr int kChains = 2 / kRowTiles;  // of products that do not wait for each other
    float s[kChains][kRowTiles][4] = {};
#pragma unroll
    for (int pair = 0; pair < kChunks / 2; ++pair) {
      uint32_t keys[4];  // tokens 0..7 and 8..15 of one chunk, then of the next
      ptx::LoadMatrixX4(keys, PairAddress(0, pair));
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        uint32_t a[4];
        Narrow::Neighbours(keys[2 * c], a[0], a[2]);
        Narrow::Neighbours(keys[2 * c + 1], a[1], a[3]);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          const uint2 q = Query(r, 2 * pair + c);
          ptx::MmaFloat16(s[c % kChains][r], a, q.x, q.y);
        }
      }
    }
    const float2 scales =  // of keys and of values; 0 where nobody owns a token
        ptx::LoadShared2(base_ + offsetof(Storage, scales) +
                         (at_.stage * Traits::kScaleGroups + Quarter()) * sizeof(float2));
    ReleaseStage(0);
    const float log_scale = ptx::Log2(scales.y);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float sum = kChains == 1 ? s[0][r][c] : s[0][r][c] + s[kChains - 1][r][c];
        x[r][c] = fmaf(sum, factor_[r][c % 2] * scales.x, log_scale);
      }
    }
    return scales.y > 0.0f ? ptx::Reciprocal(scales.y) : 0.0f;
  }

  // By selection: whatever was computed for a token that nobody owns is gone. Tiles at an edge
  // only, so positions are not kept.
  __device__ __forceinline__ void ApplyMask(const DecodePart& part, int32_t token,
                                            float (&x)[kRowTiles][4]) const {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int32_t position = DecodePosition(args_, part, 8 * r + 2 * t_ + i);
        const int32_t first = FirstVisible(args_, position);
        const int32_t last = LastVisible(args_, position, part.sequence.length);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int32_t key = token + g_ + 8 * half;
          if (key < first || key > last) x[r][2 * half + i] = -INFINITY;
        }
      }
    }
  }

  // Lanes meet only when some score rises above its row's maximum: rarely, in a long context.
  __device__ __forceinline__ void RaiseMaximum(const float (&x)[kRowTiles][4]) {
    bool any_rises = false;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < 2; ++i) any_rises |= fmaxf(x[r][i], x[r][2 + i]) > maximum_[r][i];
    }
    if (!__any_sync(~0u, any_rises)) return;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      float factor[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float raised = fmaxf(x[r][i], x[r][2 + i]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
          raised = fmaxf(raised, __shfl_xor_sync(~0u, raised, step));
        }
        raised = fmaxf(raised, maximum_[r][i]);
        // A row that did not rise is multiplied by 1: no bit of it depends on the vote.
        factor[i] = raised == maximum_[r][i] ? 1.0f : ptx::Exp2(maximum_[r][i] - raised);
        maximum_[r][i] = raised;
        sum_[r][i] *= factor[i];
      }
#pragma unroll
      for (auto& four : o_[r]) {
#pragma unroll
        for (int c = 0; c < 4; ++c) four[c] *= factor[c % 2];
      }
    }
  }

  // Scores to weights, as the B fragment of the product with V^T. The sum counts them without the
  // values' scale.
  __device__ __forceinline__ void Weights(const float (&x)[kRowTiles][4], float inverse_scale,
                                          uint32_t (&weights)[kRowTiles][2]) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      float w[4], base[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // nothing seen: any finite one
        base[i] = fmaxf(maximum_[r][i], -std::numeric_limits<float>::max());
      }
      // In this order: of large scores nothing above 2^15 comes out.
#pragma unroll
      for (int c = 0; c < 4; ++c) w[c] = ptx::Exp2(x[r][c] - base[c % 2] + kWeightBits);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        sum_[r][i] = fmaf(w[i] + w[2 + i], inverse_scale, sum_[r][i]);
        // (token g, rows 2t, 2t + 1) becomes (tokens 2t, 2t + 1, row g).
        weights[r][i] = ptx::TransposeMatrix(ptx::PackFloat16(w[2 * i], w[2 * i + 1]));
      }
    }
  }

  __device__ __forceinline__ void AddValues(const DecodeBounds& bounds, int32_t token,
                                            const uint32_t (&weights)[kRowTiles][2]) {
    WaitFull(1);
    if (Narrow::kHasNan &&
        (token < bounds.owned_begin || token + Traits::kWarpTokens > bounds.owned_end)) {
      ZeroUnownedValues(bounds, token);
    }
#pragma unroll
    for (int pair = 0; pair < kChunks / 2; ++pair) {
      uint32_t values[4];
      ptx::LoadMatrixX4Transposed(values, PairAddress(1, pair));
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        uint32_t a[4];
        Narrow::Alternate(values[2 * c], a[0], a[1]);
        Narrow::Alternate(values[2 * c + 1], a[2], a[3]);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          ptx::MmaFloat16(o_[r][2 * pair + c], a, weights[r][0], weights[r][1]);
        }
      }
    }
    ReleaseStage(1);
  }

  // A weight of 0 times NaN is NaN: values that no row may see are overwritten.
  __device__ __forceinline__ void ZeroUnownedValues(const DecodeBounds& bounds, int32_t token) {
    constexpr int kRowChunks = Traits::kRowBytes / 16;
    uint8_t* const tile = shared_.ring[2 * at_.stage + 1];
    for (int i = lane_; i < Traits::kWarpTokens * kChunks; i += 32) {
      const int row = i / kChunks;
      const int chunk = i % kChunks;
      if (token + row >= bounds.owned_begin && token + row < bounds.owned_end) continue;
      // Chunks of a row stay in the row, whatever the swizzle.
      uint8_t* to = tile + chunk / kRowChunks * Traits::kColumnBytes +
                    (Traits::kWarpTokens * Quarter() + row) * Traits::kRowBytes +
                    chunk % kRowChunks * 16;
      *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    }
    ptx::FenceProxyAsyncShared();  // the copy engine fills the stage again later
    __syncwarp();
  }

  __device__ __forceinline__ void StoreForMerge() {
    if (kQueriesInShared) __syncwarp();  // other lanes' queries are overwritten
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
          sum_[r][i] += __shfl_xor_sync(~0u, sum_[r][i], step);
        }
        const int row = 8 * r + 2 * t_ + i;
        if (g_ == 0) {
          shared_.merge_sum[warp_][row] = make_float2(maximum_[r][i], kWeightUnit * sum_[r][i]);
        }
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          const int d = 16 * chunk + g_ * Kv8ValueDimension(1);  // and the next: row g + 8
          *reinterpret_cast<float2*>(&shared_.merge_o[warp_][row][d]) =
              make_float2(kWeightUnit * o_[r][chunk][i], kWeightUnit * o_[r][chunk][2 + i]);
        }
      }
    }
  }
  static_assert(Kv8ValueDimension(8) == 1 && Kv8KeyDimension(1) == 1 && Kv8KeyDimension(9) == 3);

  const DecodeArgs& args_;
  Storage& shared_;
  const int warp_, lane_, g_, t_;
  const uint32_t base_;  // of the shared memory
  uint32_t lane_address_;
  RingPosition<Traits::kStages / 2> at_{0, 0};  // in tiles
  uint2 q_[kQueriesInShared ? 1 : kRowTiles][kQueriesInShared ? 1 : kChunks];
  float o_[kRowTiles][kChunks][4];
  float factor_[kRowTiles][2];  // of a score, without the keys' scale
  float maximum_[kRowTiles][2], sum_[kRowTiles][2];
};

}  // namespace longspan
