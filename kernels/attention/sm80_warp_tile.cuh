// A warp's online softmax over tiles of keys, by mma.sync m16n8k16: the arithmetic that decode and
// prefill of the sm_80 line share. No addresses of global memory and no barriers.
//
// Fragments of a lane (g = lane / 4, t = lane % 4): rows g and g + 8 of every block of 16 rows, and
// of every 8 keys or columns the two at 2t.
//
// 8-bit keys and values become float16, exactly. With them queries are float16 times a power of
// two, scores are multiplied by the keys' scales, and the output is counted in a unit of the
// values' scales, which changes with the blocks: the largest of a tile, so that no weight exceeds
// its room.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/ptx/eight_bit.cuh"
#include "kernels/ptx/matrix.cuh"

namespace longspan {

// Where a lane's ldmatrix addresses lie in a tile of Sm80ChunkOffset's layout. Tiles are given by
// the address of their first row, or of one 16 * n rows further.
struct Sm80LaneAddress {
  uint32_t base;     // of the lane's row
  uint32_t swizzle;  // of the lane's chunk

  __device__ __forceinline__ Sm80LaneAddress(int row, int chunk)
      : base(row * 128), swizzle((chunk ^ (row % 8)) << 4) {}

  // Row 16 * n + the lane's, chunk 2 * i + the lane's, of a tile of num_rows rows.
  __device__ __forceinline__ uint32_t At(uint32_t tile, uint32_t num_rows, int n, int i) const {
    return tile + base + i / 4 * num_rows * 128 + n * 16 * 128 + (swizzle ^ ((i % 4) << 5));
  }
};
// Rows are the fragment's rows: queries as A, and values (rows are k) as transposed B.
__device__ __forceinline__ Sm80LaneAddress Sm80RowsFirst() {
  const int lane = threadIdx.x % 32;
  return {lane / 8 % 2 * 8 + lane % 8, lane / 16};
}
// Rows are the fragment's columns: keys as B.
__device__ __forceinline__ Sm80LaneAddress Sm80ColumnsFirst() {
  const int lane = threadIdx.x % 32;
  return {lane / 16 * 8 + lane % 8, lane / 8 % 2};
}

// The power of two that brings a row of queries with this largest magnitude into [2^14, 2^15), for
// float16. Rows of zeros, and rows with an infinity or NaN, stay as they are.
__device__ __forceinline__ float Sm80QueryFactor(float largest) {
  const auto exponent = static_cast<int>(__float_as_uint(largest) >> 23);  // with float's bias
  if (largest == 0.0f || exponent >= 255) return 1.0f;
  return __uint_as_float(static_cast<uint32_t>(min(141 - exponent, 126) + 127) << 23);
}
__device__ __forceinline__ float Sm80InversePowerOfTwo(float x) {
  return __uint_as_float((254u << 23) - __float_as_uint(x));
}

// How keys and values lie in a tile. kFragments: as bytes, unpacked on the way into the matrix
// unit; columns of queries and output are then permuted: of every 16 a lane has the four at 4t, the
// even ones in the fragments of columns 0..7, the odd ones in those of 8..15. kConverted: as
// float16 that was made of bytes.
enum class Sm80Kv : uint8_t { k16Bit, kFragments, kConverted };

// kRowBlocks blocks of 16 rows against kKeys keys of every tile of kTileRows. kHiLo: rows 8..15 are
// not queries but carry what rounding the weights of rows 0..7 lost.
template <typename ElementT, int kHeadDimT, int kRowBlocksT, int kKeysT, int kTileRows,
          bool kHiLo = false, Sm80Kv kKv = Sm80Kv::k16Bit>
class Sm80WarpTile {
 public:
  using Element = ElementT;
  static constexpr int kHeadDim = kHeadDimT;
  static constexpr int kRowBlocks = kRowBlocksT;
  static constexpr int kKeys = kKeysT;
  static constexpr int kLaneRows = kHiLo ? 1 : 2 * kRowBlocks;  // row g + 8 * r, r the lane row
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr bool kHasScales = kKv != Sm80Kv::k16Bit;
  static_assert(kKeys % 16 == 0 && kHeadDim % 64 == 0 && (!kHiLo || kRowBlocks == 1));
  static_assert(!kHasScales || (std::is_same_v<Element, ptx::Float16> && !kHiLo));
  using Scores = float[kRowBlocks][kKeys / 8][4];
  using Weights = uint32_t[kRowBlocks][kKeys / 16][4];
  using GroupScales = float[kKeys / 16];  // of groups of 16 keys: those of one block

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kHeadDim / 8; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) o_[b][i][c] = 0.0f;
      }
    }
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      maximum_[r] = -INFINITY;
      sum_[r] = 0.0f;
    }
    unit_ = 1.0f;
  }

  // x = Q K^T. queries(b, k, a) gives the A fragment of row block b, columns 16k..16k+15.
  template <typename Queries>
  __device__ __forceinline__ static void Multiply(const Queries& queries, uint32_t tile,
                                                  const Sm80LaneAddress& keys_at, Scores& x) {
    // With few keys two chains, so that products do not wait for each other.
    constexpr int kChains = kKeys == 16 ? 2 : 1;
    float s[kChains][kRowBlocks][kKeys / 8][4] = {};
    static_assert(kKv != Sm80Kv::kFragments);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t a[kRowBlocks][4];
#pragma unroll
      for (int b = 0; b < kRowBlocks; ++b) queries(b, k, a[b]);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t keys[4];
        ptx::LoadMatrixX4(keys, keys_at.At(tile, kTileRows, n, k));
#pragma unroll
        for (int b = 0; b < kRowBlocks; ++b) {
          Element::Mma(s[k % kChains][b][2 * n], a[b], keys[0], keys[1]);
          Element::Mma(s[k % kChains][b][2 * n + 1], a[b], keys[2], keys[3]);
        }
      }
    }
    AddChains(s, x);
  }

  // The same of a tile of bytes. queries(k, a) gives the fragment with permuted columns.
  template <typename Packed, typename Queries>
  __device__ __forceinline__ static void MultiplyPacked(const Queries& queries, uint32_t tile,
                                                        const Sm80LaneAddress& keys_at, Scores& x) {
    static_assert(kKv == Sm80Kv::kFragments && kRowBlocks == 1 && kKeys == 16);
    float s[2][1][2][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; k += 2) {
      uint32_t a[2][4];
      queries(k, a[0]);
      queries(k + 1, a[1]);
      uint32_t packed[4];  // of 8 keys each: columns of k, of k + 1, then of the other 8 keys
      ptx::LoadMatrixX4(packed, keys_at.At(tile, kTileRows, 0, k / 2));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t even, odd;
        Packed::Unpack(packed[i], even, odd);
        Element::Mma(s[i % 2][0][i / 2], a[i % 2], even, odd);
      }
    }
    AddChains(s, x);
  }

  // Products to scores' scale: keys' scales by group, factor(r) of lane row r.
  template <typename Factor>
  __device__ __forceinline__ static void ScaleProducts(const GroupScales& scales,
                                                       const Factor& factor, Scores& x) {
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      const float of_row = factor(r);
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
        const float by = of_row * scales[j / 2];
        x[r / 2][j][r % 2 * 2] *= by;
        x[r / 2][j][r % 2 * 2 + 1] *= by;
      }
    }
  }

  // Products to scores in units of log2: scale, softcap, ALiBi. token: that of the first key.
  // row(r) gives {position, slope * log2(e)} of lane row r; asked for with ALiBi only.
  template <typename Args, typename Row>
  __device__ __forceinline__ static void Score(const Args& args, const Row& row, int32_t token,
                                               Scores& x) {
    if (args.cap_out == 0.0f) {
      ForEach(x, [&](float value, int, int) { return value * args.scale_log2; });
    } else {
      // tanh(y) = 1 - 2 / (1 + e^2y): to a few ulp of 1, where tanh.approx is to 2^-11.
      ForEach(x, [&](float value, int, int) {
        const float e = ptx::Exp2(value * args.cap_in);
        return args.cap_out * (1.0f - __fdividef(2.0f, 1.0f + e));
      });
    }
    if (args.alibi_slopes == nullptr) return;
    ForEach(x, [&](float value, int r, int key) {
      const auto [position, slope] = row(r);
      return value - slope * static_cast<float>(abs(position - (token + key)));
    });
  }

  // By selection: whatever was computed for a key that a row may not see is gone. range(r) gives
  // the first and last token (x and y), inclusive, that lane row r sees.
  template <typename Range>
  __device__ __forceinline__ static void Mask(const Range& range, int32_t token, Scores& x) {
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      const int2 seen = range(r);
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int32_t key = token + 8 * j + 2 * static_cast<int>(threadIdx.x % 4) + c;
          float& value = x[r / 2][j][r % 2 * 2 + c];
          value = key < seen.x || key > seen.y ? -INFINITY : value;
        }
      }
    }
  }

  // In place of causal, of a sequence whose new tokens begin at own_begin: bit n of word(r) is set
  // when lane row r sees token own_begin + n. Older tokens are seen.
  template <typename Word>
  __device__ __forceinline__ static void MaskTree(const Word& word, int32_t own_begin,
                                                  int32_t token, Scores& x) {
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      const uint64_t bits = word(r);
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int32_t at = token + 8 * j + 2 * static_cast<int>(threadIdx.x % 4) + c - own_begin;
          // Tokens behind the last one are masked already, whatever bit is taken.
          float& value = x[r / 2][j][r % 2 * 2 + c];
          value = at >= 0 && (bits >> (at & 63) & 1) == 0 ? -INFINITY : value;
        }
      }
    }
  }

  // Brings the unit of the output to the largest of a tile's scales of values. Groups that nobody
  // sees have scale 0.
  __device__ __forceinline__ void TakeValueScales(const GroupScales& scales) {
    float largest = 0.0f;
#pragma unroll
    for (int g = 0; g < kKeys / 16; ++g) largest = fmaxf(largest, scales[g]);
    if (largest != unit_ && largest > 0.0f) {
      const float factor = unit_ / largest;
      unit_ = largest;
#pragma unroll
      for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
        for (int i = 0; i < kHeadDim / 8; ++i) {
#pragma unroll
          for (int c = 0; c < 4; ++c) o_[b][i][c] *= factor;
        }
      }
    }
  }
  __device__ __forceinline__ float unit() const { return unit_; }

  // Takes a tile's scores into the maxima; sums and output so far follow.
  __device__ __forceinline__ void RaiseMaximum(const Scores& x) {
    float raised[kLaneRows];
    bool any_rose = false;
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      float top = -INFINITY;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
        top = fmaxf(top, fmaxf(x[r / 2][j][r % 2 * 2], x[r / 2][j][r % 2 * 2 + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      raised[r] = fmaxf(maximum_[r], top);
      any_rose |= raised[r] != maximum_[r];
    }
    // The vote saves work and changes no bit: a row that did not rise is multiplied by 1.
    if (!__any_sync(~0u, any_rose)) return;
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      const float factor = raised[r] == maximum_[r] ? 1.0f : ptx::Exp2(maximum_[r] - raised[r]);
      maximum_[r] = raised[r];
      sum_[r] *= factor;
#pragma unroll
      for (int i = 0; i < kHeadDim / 8; ++i) {
        o_[r / 2][i][r % 2 * 2] *= factor;
        o_[r / 2][i][r % 2 * 2 + 1] *= factor;
        if (kHiLo) {
          o_[0][i][2] *= factor;
          o_[0][i][3] *= factor;
        }
      }
    }
  }

  // Scores to weights 2^(x - maximum), counted in the sums: A fragments of the product with V.
  // part(g): the scale of group g's values in units of the output.
  template <typename Part>
  __device__ __forceinline__ void Weigh(const Scores& x, const Part& part, Weights& weights) {
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      const float base = maximum_[r] == -INFINITY ? 0.0f : maximum_[r] - kHeadroom;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
        const float a = ptx::Exp2(x[r / 2][j][r % 2 * 2] - base);
        const float b = ptx::Exp2(x[r / 2][j][r % 2 * 2 + 1] - base);
        sum_[r] += a + b;
        uint32_t(&fragment)[4] = weights[r / 2][j / 2];
        fragment[j % 2 * 2 + r % 2] = Element::Pack(a * part(j / 2), b * part(j / 2));
        if (kHiLo) {
          const float2 high = Element::Unpack(fragment[j % 2 * 2]);
          fragment[j % 2 * 2 + 1] = Element::Pack(a - high.x, b - high.y);
        }
      }
    }
  }

  __device__ __forceinline__ void AddValues(const Weights& weights, uint32_t tile,
                                            const Sm80LaneAddress& values_at) {
    static_assert(kKv != Sm80Kv::kFragments);
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        uint32_t values[4];
        ptx::LoadMatrixX4Transposed(values, values_at.At(tile, kTileRows, n, i));
#pragma unroll
        for (int b = 0; b < kRowBlocks; ++b) {
          Element::Mma(o_[b][2 * i], weights[b][n], values[0], values[1]);
          Element::Mma(o_[b][2 * i + 1], weights[b][n], values[2], values[3]);
        }
      }
    }
  }

  // The same of a tile of bytes; columns of the output are permuted.
  template <typename Packed>
  __device__ __forceinline__ void AddPackedValues(const Weights& weights, uint32_t tile,
                                                  const Sm80LaneAddress& values_at) {
    static_assert(kKv == Sm80Kv::kFragments && kRowBlocks == 1 && kKeys == 16);
#pragma unroll
    for (int i = 0; i < kSteps; i += 2) {
      uint32_t packed[4];  // of 16 columns each: keys 0..7, 8..15, then of the next 16 columns
      ptx::LoadMatrixX4Transposed(packed, values_at.At(tile, kTileRows, 0, i / 2));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t even[2], odd[2];
        Packed::Unpack(packed[2 * half], even[0], odd[0]);
        Packed::Unpack(packed[2 * half + 1], even[1], odd[1]);
        Element::Mma(o_[0][2 * (i + half)], weights[0][0], even[0], even[1]);
        Element::Mma(o_[0][2 * (i + half) + 1], weights[0][0], odd[0], odd[1]);
      }
    }
  }

  // A lane's sums hold its own keys only until this is called, once, at the end.
  __device__ __forceinline__ void FinishSums() {
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      sum_[r] += __shfl_xor_sync(~0u, sum_[r], 1);
      sum_[r] += __shfl_xor_sync(~0u, sum_[r], 2);
    }
  }
  // What the sums are relative to.
  __device__ __forceinline__ float maximum(int r) const { return maximum_[r] - kHeadroom; }
  __device__ __forceinline__ float sum(int r) const { return sum_[r]; }
  // Columns 8i + 2t and the next (with kFragments: 16 (i / 2) + 4t + i % 2 and the next but one),
  // of lane row r, not normalised.
  __device__ __forceinline__ float2 Output(int r, int i) const {
    if (kHiLo) return make_float2(o_[0][i][0] + o_[0][i][2], o_[0][i][1] + o_[0][i][3]);
    const float unit = kHasScales ? unit_ : 1.0f;
    return make_float2(o_[r / 2][i][r % 2 * 2] * unit, o_[r / 2][i][r % 2 * 2 + 1] * unit);
  }

 private:
  // Log2 of the largest weight. Float16 weights below 2^-24 of the largest would vanish: a million
  // of them count.
  static constexpr float kHeadroom = kHasScales ? 14.0f : 0.0f;

  template <int kChains>
  __device__ __forceinline__ static void AddChains(
      const float (&s)[kChains][kRowBlocks][kKeys / 8][4], Scores& x) {
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          x[b][j][c] = kChains == 2 ? s[0][b][j][c] + s[kChains - 1][b][j][c] : s[0][b][j][c];
        }
      }
    }
  }

  // change(value, lane row, key) -> value, for the scores of real rows.
  template <typename Change>
  __device__ __forceinline__ static void ForEach(Scores& x, const Change& change) {
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& value = x[r / 2][j][r % 2 * 2 + c];
          value = change(value, r, 8 * j + 2 * static_cast<int>(threadIdx.x % 4) + c);
        }
      }
    }
  }

  float o_[kRowBlocks][kHeadDim / 8][4];
  float maximum_[kLaneRows], sum_[kLaneRows];
  float unit_;  // of o_, in real values
};

}  // namespace longspan
