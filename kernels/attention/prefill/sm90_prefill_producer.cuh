// The producers of the sm_90a prefill kernel, two warps: the first takes tiles from the counter,
// tells everybody, and lets the copy engine bring queries and keys; the second brings values. A
// lane issues at most one copy of a tile of keys: its box. Small blocks are many boxes, and the
// lanes of a warp issue one after the other, so one warp alone would not keep up.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/attention/prefill/sm90_prefill_params.h"
#include "kernels/attention/prefill/sm90_prefill_traits.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/tma.cuh"

namespace longspan {

template <typename Traits>
class Sm90PrefillProducer {
 public:
  using Storage = typename Traits::Storage;
  using Tile = typename Traits::Tile;
  static constexpr int kKeys = Traits::kKeys;
  static constexpr int kColumns = Traits::kColumns;

  __device__ Sm90PrefillProducer(const Sm90PrefillArgs& args, const CUtensorMap* q_map,
                                 const CUtensorMap* k_map, const CUtensorMap* v_map,
                                 Storage& storage)
      : args_(args),
        q_map_(q_map),
        k_map_(k_map),
        v_map_(v_map),
        storage_(storage),
        base_(ptx::SharedAddress(&storage)) {
    // Boxes of whole tiles bring all columns, others one.
    const int columns = args.box_tokens == kKeys ? 1 : kColumns;
    const int num_boxes = kKeys / args.box_tokens * columns;
    box_column_ = lane_ % columns;
    has_box_ = lane_ < num_boxes;
    box_token_ = lane_ / columns * args.box_tokens;
    box_offset_ = (box_column_ * kKeys + lane_ / columns * args.box_tokens) * 128;
    box_bytes_ = args.box_tokens * 128 * (columns == 1 ? kColumns : 1);
  }

  __device__ void Run() {
    const int num_tiles = args_.num_pieces * args_.num_q_heads;
    int slot = 0;
    uint32_t parity = 1;  // of empty tile slots: the first ones are
    int tile = TakeTile();
    while (true) {
      ptx::MbarrierWait(base_ + Traits::kTileEmpty + 8 * slot, parity);
      const int head = tile < num_tiles ? HeadOf(tile) : -1;
      Tile& shared = storage_.tiles[slot];
      if (lane_ == 0) {
        if (head >= 0) shared.piece = args_.pieces[tile / args_.heads_in_turn % args_.num_pieces];
        shared.head = head;
        ptx::MbarrierArrive(base_ + Traits::kTileFull + 8 * slot);
      }
      __syncwarp();
      if (++slot == Traits::kTileSlots) {
        slot = 0;
        parity ^= 1;
      }
      if (head < 0) break;
      tile = TakeTile();
      if (shared.piece.key_begin < shared.piece.key_end) LoadQueriesAndKeys(shared);
    }
    if (lane_ == 0 &&
        atomicAdd(&args_.turns->num_ctas_done, 1) == static_cast<int>(gridDim.x) - 1) {
      *args_.turns = {0, 0};
    }
  }

  // The second warp: the values of the tiles that the first one takes.
  __device__ void RunValues() {
    int slot = 0;
    uint32_t parity = 0;
    while (true) {
      ptx::MbarrierWait(base_ + Traits::kTileFull + 8 * slot, parity);
      const Tile& tile = storage_.tiles[slot];
      if (tile.head < 0) break;
      if (tile.piece.key_begin < tile.piece.key_end) {
        LoadBoxes(tile, v_map_, Traits::kV, Traits::kVFull, Traits::kVEmpty);
      }
      __syncwarp();
      if (lane_ == 0) ptx::MbarrierArrive(base_ + Traits::kTileEmpty + 8 * slot);
      if (++slot == Traits::kTileSlots) {
        slot = 0;
        parity ^= 1;
      }
    }
  }

 private:
  __device__ int TakeTile() {
    int tile = 0;
    if (lane_ == 0) tile = atomicAdd(&args_.turns->next_tile, 1);
    return __shfl_sync(~0u, tile, 0);
  }
  // heads_in_turn heads go through all pieces before the next ones: what they read stays in L2.
  __device__ int HeadOf(int tile) const {
    const int tiles_in_turn = args_.heads_in_turn * args_.num_pieces;
    return tile / tiles_in_turn * args_.heads_in_turn + tile % args_.heads_in_turn;
  }

  // All boxes of the tile's keys or values, the last ones first, into the stages at `to` in turn;
  // `full` and `empty` are the first stage's barriers. Boxes without a key that some row sees are
  // not read, nor are their entries of the block table.
  __device__ __forceinline__ void LoadBoxes(const Tile& tile, const CUtensorMap* map, uint32_t to,
                                            uint32_t full, uint32_t empty) {
    const int kv_head = tile.head / args_.group;
    int stage = 0;
    for (int n = (tile.piece.key_end - 1) / kKeys; n >= tile.piece.key_begin / kKeys; --n) {
      const int token = n * kKeys + box_token_;
      const bool is_seen =
          has_box_ && token < tile.piece.key_end && token + args_.box_tokens > tile.piece.key_begin;
      // A division by multiplication, at most 1 too much; a real one keeps the warp from keeping
      // up.
      int block = static_cast<int>(__umulhi(token, args_.block_size_inverse));
      if (block * args_.block_size > token) --block;
      int id = 0;
      if (is_seen && args_.block_table != nullptr) {
        id = args_.block_table[tile.piece.table_row * args_.block_table_stride + block];
      }
      ptx::MbarrierWait(base_ + empty + 8 * stage, parities_ >> stage & 1);
      parities_ ^= 1u << stage;
      const uint32_t num_seen = __popc(__ballot_sync(~0u, is_seen));
      const uint32_t barrier = base_ + full + 8 * stage;
      if (lane_ == 0) ptx::MbarrierArriveExpect(barrier, num_seen * box_bytes_);
      __syncwarp();
      if (is_seen) {
        ptx::TmaLoad5d(base_ + to + stage * Traits::kKeyBytes + box_offset_, map, barrier, 0,
                       tile.piece.key_origin + token - block * args_.block_size, box_column_,
                       kv_head, id);
      }
      stage ^= 1;
    }
  }

  // The tile's fields stay in shared memory: registers are short.
  __device__ void LoadQueriesAndKeys(const Tile& tile) {
    ptx::MbarrierWait(base_ + Traits::kQEmpty, q_parity_);
    q_parity_ ^= 1;
    if (lane_ == 0) {
      const uint32_t full = base_ + Traits::kQFull;
      ptx::MbarrierArriveExpect(full, Traits::kQueryBytes);
      ptx::TmaLoad5d(base_ + Traits::kQ, q_map_, full, 0, tile.piece.q_begin, 0, tile.head, 0);
    }
    __syncwarp();
    LoadBoxes(tile, k_map_, Traits::kK, Traits::kKFull, Traits::kKEmpty);
  }

  const Sm90PrefillArgs& args_;
  const CUtensorMap* q_map_;
  const CUtensorMap* k_map_;
  const CUtensorMap* v_map_;
  Storage& storage_;
  const uint32_t base_;  // of storage, for instructions on shared memory
  const int lane_ = threadIdx.x % 32;
  bool has_box_;
  int box_token_, box_column_;  // of the tile
  uint32_t box_offset_, box_bytes_;
  uint32_t q_parity_ = 1, parities_ = 3;  // a bit per stage: all empty
};

}  // namespace longspan
