// The producer of the sm_90a prefill kernel, one warp: takes tiles from the counter, tells the
// consumers, and lets the copy engine bring their queries, keys and values, keys one tile ahead of
// values. A lane issues at most one copy of a tile: its box.
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
    box_token_ = lane_ < num_boxes ? lane_ / columns * args.box_tokens : kNone;
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
      if (shared.piece.key_begin < shared.piece.key_end) Load(shared);
    }
    if (lane_ == 0 &&
        atomicAdd(&args_.turns->num_ctas_done, 1) == static_cast<int>(gridDim.x) - 1) {
      *args_.turns = {0, 0};
    }
  }

 private:
  static constexpr int kNone = 1 << 30;

  struct Box {
    bool is_seen;
    int token, block;
  };

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

  // Where this lane's box of tile n lies. Boxes without a key that some row sees are not read, nor
  // are their entries of the block table.
  __device__ __forceinline__ Box FindBox(const Sm90PrefillPiece& piece, int n) const {
    const int token = n * kKeys + box_token_;
    Box box = {
        box_token_ != kNone && token < piece.key_end && token + args_.box_tokens > piece.key_begin,
        piece.key_origin + token, 0};
    if (box.is_seen && args_.block_table != nullptr) {
      const int index = token / args_.block_size;
      box.token = token - index * args_.block_size;
      box.block = args_.block_table[piece.table_row * args_.block_table_stride + index];
    }
    return box;
  }

  // The box into a stage of `to`, counted on `full`; both as offsets of the stages' first.
  __device__ __forceinline__ void LoadBoxes(const Box& box, const CUtensorMap* map, uint32_t to,
                                            uint32_t full, uint32_t empty, int stage,
                                            uint32_t& parities, int kv_head) {
    ptx::MbarrierWait(base_ + empty + 8 * stage, parities >> stage & 1);
    parities ^= 1u << stage;
    const uint32_t num_seen = __popc(__ballot_sync(~0u, box.is_seen));
    const uint32_t barrier = base_ + full + 8 * stage;
    if (lane_ == 0) ptx::MbarrierArriveExpect(barrier, num_seen * box_bytes_);
    __syncwarp();
    if (box.is_seen) {
      ptx::TmaLoad5d(base_ + to + stage * Traits::kKeyBytes + box_offset_, map, barrier, 0,
                     box.token, box_column_, kv_head, box.block);
    }
  }
  __device__ __forceinline__ void LoadKeys(const Box& box, int stage, int kv_head) {
    LoadBoxes(box, k_map_, Traits::kK, Traits::kKFull, Traits::kKEmpty, stage, k_parities_,
              kv_head);
  }
  __device__ __forceinline__ void LoadValues(const Box& box, int stage, int kv_head) {
    LoadBoxes(box, v_map_, Traits::kV, Traits::kVFull, Traits::kVEmpty, stage, v_parities_,
              kv_head);
  }

  // The tile's fields stay in shared memory: registers are short.
  __device__ void Load(const Tile& tile) {
    const int kv_head = tile.head / args_.group;
    int n = (tile.piece.key_end - 1) / kKeys;
    Box box = FindBox(tile.piece, n);
    ptx::MbarrierWait(base_ + Traits::kQEmpty, q_parity_);
    q_parity_ ^= 1;
    if (lane_ == 0) {
      const uint32_t full = base_ + Traits::kQFull;
      ptx::MbarrierArriveExpect(full, Traits::kQueryBytes);
      ptx::TmaLoad5d(base_ + Traits::kQ, q_map_, full, 0, tile.piece.q_begin, 0, tile.head, 0);
    }
    __syncwarp();
    LoadKeys(box, 0, kv_head);
    int stage = 0;
    for (--n; n >= tile.piece.key_begin / kKeys; --n) {
      const Box next = FindBox(tile.piece, n);
      LoadKeys(next, stage ^ 1, kv_head);
      LoadValues(box, stage, kv_head);
      box = next;
      stage ^= 1;
    }
    LoadValues(box, stage, kv_head);
  }

  const Sm90PrefillArgs& args_;
  const CUtensorMap* q_map_;
  const CUtensorMap* k_map_;
  const CUtensorMap* v_map_;
  Storage& storage_;
  const uint32_t base_;  // of storage, for instructions on shared memory
  const int lane_ = threadIdx.x % 32;
  int box_token_, box_column_;  // of the tile; kNone: this lane has no box
  uint32_t box_offset_, box_bytes_;
  uint32_t q_parity_ = 1, k_parities_ = 3, v_parities_ = 3;  // a bit per stage: all empty
};

}  // namespace longspan
