// Decode attention on paged keys and values for every card from sm_80 on, 16-bit elements.
//
// Computes softmax(score(Q K^T) + mask) V of the plan's units. Grid: one CTA per SM, each with the
// range of tiles that the plan gave it. Four warps; each brings and works on 16 of a tile's 64
// tokens, through its own part of a ring of slots, with its own softmax state and output: they meet
// only when a unit ends. Packed query rows (query x head of the group) are the 16 rows of
// mma.m16n8k16. With at most 8 rows (kHiLo) the other 8 carry what rounding the weights lost; at
// head_dim 256 the registers do not suffice for that.
// Bound by the reading of keys and values. Shared memory: 96 KB of ring, in which the warps'
// results are merged when it is empty, below the 99 KB that the smallest cards of the line give a
// CTA. Supported: what decode.h says of this line.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/attention/decode/decode_instance.h"
#include "kernels/attention/decode/decode_merge.cuh"
#include "kernels/attention/decode/decode_params.h"
#include "kernels/attention/decode/decode_walk.cuh"
#include "kernels/attention/sm80_tile_loader.cuh"
#include "kernels/attention/sm80_warp_tile.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/sync.cuh"

namespace longspan {

template <typename ElementT, int kHeadDimT>
struct Sm80DecodeTraits {
  using Element = ElementT;  // ptx::BFloat16 or ptx::Float16
  static constexpr int kHeadDim = kHeadDimT;
  static constexpr int kTile = kGpuDecodeTileTokens;
  static constexpr int kRows = kGpuDecodeRows;
  static constexpr int kWarpTokens = 16;  // of every tile
  static constexpr int kConsumers = kTile / kWarpTokens;
  static constexpr int kConsumerThreads = 32 * kConsumers;
  static constexpr int kThreads = kConsumerThreads;
  static constexpr int kSlotBytes = kTile * kHeadDim * 2;  // a tile of keys or of values
  static constexpr int kSlots = 96 * 1024 / kSlotBytes;

  struct Storage {
    union {
      alignas(128) uint8_t ring[kSlots][kSlotBytes];
      float merge_o[kConsumers][kRows][kHeadDim];  // between units
    };
    float2 merge_sum[kConsumers][kRows];
    int32_t is_last_part;
  };
  static constexpr int kSharedBytes = sizeof(Storage);
  static constexpr bool kHasHiLo = kHeadDim <= 128;
  static_assert(kSlots >= 3 && kSharedBytes <= 99 * 1024);
};

// A warp's share of a part: 16 tokens of every tile against all rows.
template <typename Traits, bool kHiLo>
class Sm80DecodeWarp {
 public:
  using WarpTile = Sm80WarpTile<typename Traits::Element, Traits::kHeadDim, 1, Traits::kWarpTokens,
                                Traits::kTile, kHiLo>;

  __device__ __forceinline__ Sm80DecodeWarp(const DecodeArgs& args,
                                            typename Traits::Storage& shared)
      : args_(args), shared_(shared), warp_(threadIdx.x / 32), lane_(threadIdx.x % 32) {}

  // Leaves the ring empty: nothing is on its way when it returns.
  __device__ __forceinline__ void Attend(const DecodePart& part) {
    const GpuDecodeSequence& seq = part.sequence;
    LoadQueries(part);
    tile_.Clear();
    const int32_t first_seen = GpuDecodeFirstToken(seq, args_.window_left);
    const int32_t first_token =
        (first_seen / Traits::kTile + part.begin) * Traits::kTile + Traits::kWarpTokens * warp_;
    // Turn 2n is the keys of the part's tile n, turn 2n + 1 its values.
    const int32_t num_turns = 2 * (part.end - part.begin);
    Loader loader(args_, args_.block_table + seq.table_row * args_.block_table_stride, part.head,
                  first_seen, seq.length, first_token);
    load_slot_ = slot_ = 0;
    for (int32_t turn = 0; turn < Traits::kSlots - 1; ++turn) {
      Load(loader, first_token, turn, num_turns);
    }
    const Sm80LaneAddress keys_at = Sm80ColumnsFirst();
    const Sm80LaneAddress values_at = Sm80RowsFirst();
    for (int32_t turn = 0; turn < num_turns; turn += 2) {
      const int32_t token = first_token + turn / 2 * Traits::kTile;
      const uint32_t keys = BeginTurn(loader, first_token, turn, num_turns);
      typename WarpTile::Scores x;
      WarpTile::Multiply(
          [&](int, int k, uint32_t(&a)[4]) {
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = q_[k][i];
          },
          keys, keys_at, x);
      WarpTile::Score(
          args_, [&](int r) { return LaneRow(part, r); }, token, x);
      WarpTile::Mask([&](int r) { return VisibleTokens(part, r); }, token, x);
      tile_.RaiseMaximum(x);
      typename WarpTile::Weights weights;
      tile_.Weigh(x, weights);
      const uint32_t values = BeginTurn(loader, first_token, turn + 1, num_turns);
      tile_.AddValues(weights, values, values_at);
    }
    tile_.FinishSums();
  }

  // All warps are done with the ring.
  __device__ __forceinline__ void StoreForMerge() {
    const int t = lane_ % 4;
#pragma unroll
    for (int r = 0; r < WarpTile::kLaneRows; ++r) {
      const int row = lane_ / 4 + 8 * r;
      if (t == 0) shared_.merge_sum[warp_][row] = make_float2(tile_.maximum(r), tile_.sum(r));
#pragma unroll
      for (int i = 0; i < Traits::kHeadDim / 8; ++i) {
        *reinterpret_cast<float2*>(&shared_.merge_o[warp_][row][8 * i + 2 * t]) =
            tile_.Output(r, i);
      }
    }
  }

 private:
  using Loader = Sm80TileLoader<Traits::kHeadDim, Traits::kTile>;
  struct PositionAndSlope {
    int32_t position;
    float slope;
  };

  __device__ __forceinline__ int32_t Position(const DecodePart& part, int r) const {
    const int row = part.first_row + lane_ / 4 + 8 * r;
    return part.sequence.length - part.sequence.q_len + row / args_.group;
  }
  __device__ __forceinline__ PositionAndSlope LaneRow(const DecodePart& part, int r) const {
    constexpr float kLog2E = 1.44269504089f;
    const int32_t head = DecodeQueryHead(args_, part, lane_ / 4 + 8 * r);
    return {Position(part, r), kLog2E * args_.alibi_slopes[head]};
  }
  // First and last, inclusive.
  __device__ __forceinline__ int2 VisibleTokens(const DecodePart& part, int r) const {
    const int32_t position = Position(part, r);
    int2 range = make_int2(0, part.sequence.length - 1);
    if (args_.window_left >= 0) range.x = position - args_.window_left;
    if (args_.causal) range.y = min(range.y, position);
    if (args_.window_right >= 0) range.y = min(range.y, position + args_.window_right);
    return range;
  }

  // Registers of the A fragments. Rows and columns behind the real ones are zeros.
  __device__ __forceinline__ void LoadQueries(const DecodePart& part) {
    const int32_t num_rows = DecodeNumRows(args_, part);
    const auto* q = static_cast<const uint16_t*>(args_.q);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane_ / 4 + 8 * r;
      const bool real_row = r < WarpTile::kLaneRows && row < num_rows;
      const int64_t at = real_row ? DecodeToken(args_, part, row) * args_.q_token_stride +
                                        DecodeQueryHead(args_, part, row) * args_.q_head_stride
                                  : 0;
#pragma unroll
      for (int k = 0; k < WarpTile::kSteps; ++k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const bool real = real_row && 16 * k + 8 * half < args_.head_dim;
          const auto* pair =
              reinterpret_cast<const uint32_t*>(q + at + 16 * k + 8 * half + lane_ % 4 * 2);
          q_[k][r + 2 * half] = real ? *pair : 0u;
        }
      }
    }
  }

  __device__ __forceinline__ uint32_t SlotAddress(int32_t slot) const {
    return ptx::SharedAddress(shared_.ring) + static_cast<uint32_t>(slot) * Traits::kSlotBytes;
  }
  __device__ __forceinline__ static int32_t NextSlot(int32_t slot) {
    return slot + 1 == Traits::kSlots ? 0 : slot + 1;
  }

  __device__ __forceinline__ void Load(Loader& loader, int32_t first_token, int32_t turn,
                                       int32_t num_turns) {
    if (turn < num_turns) {
      loader.Load(args_, turn % 2 != 0, SlotAddress(load_slot_), Traits::kWarpTokens * warp_);
      if (turn % 2 != 0) loader.Seek(args_, first_token + (turn / 2 + 1) * Traits::kTile);
    }
    load_slot_ = NextSlot(load_slot_);
    ptx::CopyAsyncCommit();  // empty groups too: the wait counts them
  }

  // The warp's rows of the turn's slot, filled; the slot of the turn before is filled anew.
  __device__ __forceinline__ uint32_t BeginTurn(Loader& loader, int32_t first_token, int32_t turn,
                                                int32_t num_turns) {
    ptx::CopyAsyncWait<Traits::kSlots - 2>();
    __syncwarp();  // for all lanes' copies, and all lanes are done with the turn before
    Load(loader, first_token, turn + Traits::kSlots - 1, num_turns);
    const uint32_t rows = SlotAddress(slot_) + Traits::kWarpTokens * warp_ * 128;
    slot_ = NextSlot(slot_);
    return rows;
  }

  const DecodeArgs& args_;
  typename Traits::Storage& shared_;
  const int warp_, lane_;
  int32_t slot_ = 0, load_slot_ = 0;
  uint32_t q_[WarpTile::kSteps][4];
  WarpTile tile_;
};

template <typename Traits, bool kHiLo>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    Sm80DecodeKernel(const __grid_constant__ DecodeArgs args) {
  extern __shared__ __align__(128) uint8_t sm80_shared[];
  auto& shared = *reinterpret_cast<typename Traits::Storage*>(sm80_shared);
  const GpuDecodeWork work = args.works[blockIdx.x];
  Sm80DecodeWarp<Traits, kHiLo> warp(args, shared);
  for (DecodeWalk walk(args, work); !walk.done();) {
    const DecodePart part = walk.Next();
    warp.Attend(part);
    __syncthreads();  // the ring is free
    warp.StoreForMerge();
    __syncthreads();
    MergeWarps<Traits>(args, part, shared);
    if (part.begin != 0 || part.end != part.num_tiles) {
      const auto cta = static_cast<int32_t>(blockIdx.x);
      const int32_t first_cta = part.begin == 0 ? cta : work.first_cta;
      const int32_t last_cta = part.begin == 0 ? work.last_cta_of_last : work.last_cta_of_first;
      if (ArriveWithPart<Traits>(args, first_cta, last_cta, shared)) {
        CombineParts<Traits>(args, part, first_cta, last_cta);
      }
    }
    __syncthreads();  // the merge buffers are free again
  }
}

template <typename Traits>
inline DecodeInstance MakeSm80DecodeInstance(DType dtype) {
  return {80,
          dtype,
          Traits::kHeadDim,
          reinterpret_cast<const void*>(&Sm80DecodeKernel<Traits, Traits::kHasHiLo>),
          reinterpret_cast<const void*>(&Sm80DecodeKernel<Traits, false>),
          Traits::kThreads,
          Traits::kSharedBytes};
}

}  // namespace longspan
