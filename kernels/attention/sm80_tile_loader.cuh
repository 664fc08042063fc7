// How the sm_80 line brings keys and values into shared memory: each warp its 16 tokens of a tile
// of 64, row by row through the block table, by asynchronous copies; of 8-bit ones also the scales.
// Rows that nobody may see and columns behind head_dim become zeros without being read.
#pragma once

#include <cstdint>

#include "kernels/attention/kv_scales.h"
#include "kernels/ptx/cp_async.cuh"

namespace longspan {

// Byte offset of a 16-byte chunk in a tile that lies as panels of 8 chunks (128 bytes a row);
// chunks are permuted so that 8 rows of one chunk are in different banks. num_rows: of the tile.
__device__ __forceinline__ uint32_t Sm80ChunkOffset(uint32_t num_rows, uint32_t row,
                                                    uint32_t chunk) {
  return chunk / 8 * num_rows * 128 + row * 128 + (((chunk % 8) ^ (row % 8)) << 4);
}

// Copies of one slot of a ring of 8-bit tiles: keys' scales, then values', of each warp's tokens;
// zeros where no token is visible.
using Sm80SlotScales = float[2][4];

// One lane's share. Args has k, v, their strides, block_size and head_dim; with kBytes 1 (of an
// element) also has_wide_kv and scales.
template <int kHeadDim, int kTileRows, int kBytes = 2>
class Sm80TileLoader {
 public:
  static constexpr int kTokens = 16;  // of a tile, per warp; they never cross a block's end

  // table: the sequence's row of the block table. Tokens [seen.x, seen.y) are visible to somebody;
  // kept as a reference, so that it need not be in registers. first_token: a multiple of 16, the
  // first that Load brings.
  template <typename Args>
  __device__ __forceinline__ Sm80TileLoader(const Args& args, const int32_t* table, int32_t head,
                                            const int2& seen, int32_t first_token)
      : table_(table), head_(head), seen_(seen) {
    Seek(args, first_token);
  }

  // Asks for the block of 16 tokens; the answer is waited for by the next Load.
  template <typename Args>
  __device__ __forceinline__ void Seek(const Args& args, int32_t token) {
    token_ = token;
    id_ = IsVisible() ? table_[token / args.block_size] : 0;
  }

  // Starts the copies of the tokens' keys or values to rows [row, row + 16) of the tile at `tile`.
  template <typename Args>
  __device__ __forceinline__ void Load(const Args& args, bool values, uint32_t tile,
                                       int row) const {
    const auto* base = static_cast<const uint8_t*>(values ? args.v : args.k);
    const int64_t head_stride = values ? args.v_head_stride : args.k_head_stride;
    const int64_t block_stride = values ? args.v_block_stride : args.k_block_stride;
    const int64_t token_stride = values ? args.v_token_stride : args.k_token_stride;
    const int lane = threadIdx.x % 32;
    const int chunk = lane % kChunks;
    const int columns = args.head_dim - kColumns * chunk;  // from the chunk's first on
    const uint8_t* from =
        base + kBytes * (id_ * block_stride + token_ % args.block_size * token_stride +
                         head_ * head_stride + kColumns * chunk);
#pragma unroll
    for (int i = 0; i < kTokens / kRowStep; ++i) {
      const int at = lane / kChunks + kRowStep * i;
      const bool real = columns > 0 && token_ + at >= seen_.x && token_ + at < seen_.y;
      const uint32_t to = tile + Sm80ChunkOffset(kTileRows, row + at, chunk);
      const uint8_t* row_from = real ? from + kBytes * at * token_stride : base;
      if (kBytes == 2 || args.has_wide_kv) {
        // Of 8-bit elements the last chunk may have 8.
        ptx::CopyAsync16(to, row_from, !real ? 0 : kBytes == 2 || columns > 8 ? 16 : 8);
      } else {
        const bool both = real && columns > 8;
        ptx::CopyAsync8(to, row_from, real ? 8 : 0);
        ptx::CopyAsync8(to + 8, both ? row_from + 8 : base, both ? 8 : 0);
      }
    }
  }

  // Starts the copies of the tokens' scales to column `warp` of an Sm80SlotScales.
  template <typename Args>
  __device__ __forceinline__ void LoadScales(const Args& args, uint32_t scales, int warp) const {
    const int lane = threadIdx.x % 32;
    if (lane >= 2) return;
    const KvScales& s = args.scales;
    const float* from = lane == 0 ? s.k + id_ * s.k_block_stride + head_ * s.k_head_stride
                                  : s.v + id_ * s.v_block_stride + head_ * s.v_head_stride;
    ptx::CopyAsync4(scales + 16 * lane + 4 * warp, from, IsVisible() ? 4 : 0);
  }

 private:
  static constexpr int kColumns = 16 / kBytes;         // of a chunk
  static constexpr int kChunks = kHeadDim / kColumns;  // of a row
  static constexpr int kRowStep = 32 / kChunks;
  static_assert(32 % kChunks == 0);

  __device__ __forceinline__ bool IsVisible() const {
    return token_ < seen_.y && token_ + kTokens > seen_.x;
  }

  const int32_t* table_;
  int32_t head_;
  const int2& seen_;
  int32_t token_, id_;
};

}  // namespace longspan
