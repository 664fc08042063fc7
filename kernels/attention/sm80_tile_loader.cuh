// How the sm_80 line brings keys and values into shared memory: each warp its 16 tokens of a tile
// of 64, row by row through the block table, by asynchronous copies. Rows that nobody may see and
// columns behind head_dim become zeros without being read.
#pragma once

#include <cstdint>

#include "kernels/ptx/cp_async.cuh"

namespace longspan {

// Byte offset of a 16-byte chunk in a tile that lies as panels of 64 elements (128 bytes a row);
// chunks are permuted so that 8 rows of one chunk are in different banks. num_rows: of the tile.
__device__ __forceinline__ uint32_t Sm80ChunkOffset(uint32_t num_rows, uint32_t row,
                                                    uint32_t chunk) {
  return chunk / 8 * num_rows * 128 + row * 128 + (((chunk % 8) ^ (row % 8)) << 4);
}

// One lane's share. Args has k, v, their strides, block_size and head_dim.
template <int kHeadDim, int kTileRows>
class Sm80TileLoader {
 public:
  static constexpr int kTokens = 16;  // of a tile, per warp; they never cross a block's end

  // table: the sequence's row of the block table. Tokens [begin, end) are visible to somebody.
  // first_token: a multiple of 16, the first that Load brings.
  template <typename Args>
  __device__ __forceinline__ Sm80TileLoader(const Args& args, const int32_t* table, int32_t head,
                                            int32_t begin, int32_t end, int32_t first_token)
      : table_(table), head_(head), begin_(begin), end_(end) {
    Seek(args, first_token);
  }

  // Asks for the block of 16 tokens; the answer is waited for by the next Load.
  template <typename Args>
  __device__ __forceinline__ void Seek(const Args& args, int32_t token) {
    token_ = token;
    const bool is_visible = token < end_ && token + kTokens > begin_;
    id_ = is_visible ? table_[token / args.block_size] : 0;
  }

  // Starts the copies of the tokens' keys or values to rows [row, row + 16) of the tile at `tile`.
  template <typename Args>
  __device__ __forceinline__ void Load(const Args& args, bool values, uint32_t tile,
                                       int row) const {
    const auto* base = static_cast<const uint16_t*>(values ? args.v : args.k);
    const int64_t head_stride = values ? args.v_head_stride : args.k_head_stride;
    const int64_t block_stride = values ? args.v_block_stride : args.k_block_stride;
    const int64_t token_stride = values ? args.v_token_stride : args.k_token_stride;
    const int lane = threadIdx.x % 32;
    const int chunk = lane % kChunks;
    const bool has_chunk = 8 * chunk < args.head_dim;
    const uint16_t* from = base + id_ * block_stride + token_ % args.block_size * token_stride +
                           head_ * head_stride + 8 * chunk;
#pragma unroll
    for (int i = 0; i < kTokens / kRowStep; ++i) {
      const int at = lane / kChunks + kRowStep * i;
      const bool real = has_chunk && token_ + at >= begin_ && token_ + at < end_;
      ptx::CopyAsync16(tile + Sm80ChunkOffset(kTileRows, row + at, chunk),
                       real ? from + at * token_stride : base, real ? 16 : 0);
    }
  }

 private:
  static constexpr int kChunks = kHeadDim / 8;  // of a row
  static constexpr int kRowStep = 32 / kChunks;
  static_assert(32 % kChunks == 0);

  const int32_t* table_;
  int32_t head_;
  int32_t begin_, end_;
  int32_t token_, id_;
};

}  // namespace longspan
