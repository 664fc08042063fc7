// Decode attention on paged keys and values for every card from sm_80 on; keys and values of 16 or
// of 8 bits.
//
// Computes softmax(score(Q K^T) + mask) V of the plan's units. Grid: one CTA per SM, each with the
// range of tiles that the plan gave it. Four warps; each brings and works on 16 of a tile's 64
// tokens, through its own part of a ring of slots, with its own softmax state and output: they meet
// only when a unit ends. Packed query rows (query x head of the group) are the 16 rows of
// mma.m16n8k16. With at most 8 rows (kHiLo) the other 8 carry what rounding the weights lost; at
// head_dim 256 the registers do not suffice for that. 8-bit tiles stay bytes until they are in the
// registers of the lane that multiplies them: float16, whose weights need no second half.
// Bound by the reading of keys and values. Shared memory: 96 KB of ring, in which the warps'
// results are merged when it is empty, below the 99 KB that the smallest cards of the line give a
// CTA. Supported: what decode.h says of this line.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

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

// kKvBytes: of an element of keys and values. With 1 ElementT is DecodeLaunchElement.
template <typename ElementT, int kHeadDimT, int kKvBytesT = 2>
struct Sm80DecodeTraits {
  using Element = ElementT;  // of queries and output: ptx::BFloat16 or ptx::Float16
  static constexpr int kHeadDim = kHeadDimT;
  static constexpr int kKvBytes = kKvBytesT;
  static constexpr bool kIs8Bit = kKvBytes == 1;
  using Product = std::conditional_t<kIs8Bit, ptx::Float16, Element>;  // what is multiplied
  static constexpr int kTile = kGpuDecodeTileTokens;
  static constexpr int kRows = kGpuDecodeRows;
  static constexpr int kWarpTokens = 16;  // of every tile
  static constexpr int kConsumers = kTile / kWarpTokens;
  static constexpr int kConsumerThreads = 32 * kConsumers;
  static constexpr int kThreads = kConsumerThreads;
  static constexpr int kSlotBytes = kTile * kHeadDim * kKvBytes;  // a tile of keys or of values
  static constexpr int kSlots = 96 * 1024 / kSlotBytes;

  struct Storage {
    union {
      alignas(128) uint8_t ring[kSlots][kSlotBytes];
      float merge_o[kConsumers][kRows][kHeadDim];  // between units
    };
    float2 merge_sum[kConsumers][kRows];
    alignas(16) Sm80SlotScales scales[kIs8Bit ? kSlots : 1];  // of the slots that hold keys
    int32_t is_last_part;
  };
  static constexpr int kSharedBytes = sizeof(Storage);
  static constexpr bool kHasHiLo = kHeadDim <= 128 && !kIs8Bit;
  static_assert(kSlots >= 3 && kSharedBytes <= 99 * 1024);
};

// A warp's share of a part: 16 tokens of every tile against all rows.
template <typename Traits, bool kHiLo>
class Sm80DecodeWarp {
 public:
  using WarpTile =
      Sm80WarpTile<typename Traits::Product, Traits::kHeadDim, 1, Traits::kWarpTokens,
                   Traits::kTile, kHiLo, Traits::kIs8Bit ? Sm80Kv::kFragments : Sm80Kv::k16Bit>;

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
    const int2 seen = make_int2(first_seen, seq.length);
    Loader loader(args_, args_.block_table + seq.table_row * args_.block_table_stride, part.head,
                  seen, first_token);
    load_slot_ = slot_ = 0;
    for (int32_t turn = 0; turn < Traits::kSlots - 1; ++turn) {
      Load(loader, first_token, turn, num_turns);
    }
    const int32_t own_begin = seq.length - seq.q_len;
    for (int32_t turn = 0; turn < num_turns; turn += 2) {
      const int32_t token = first_token + turn / 2 * Traits::kTile;
      const int32_t slot = slot_;
      const uint32_t keys = BeginTurn(loader, first_token, turn, num_turns);
      typename WarpTile::Scores x;
      Multiply(keys, slot, x);
      WarpTile::Score(
          args_, [&](int r) { return LaneRow(part, r); }, token, x);
      WarpTile::Mask([&](int r) { return VisibleTokens(part, r); }, token, x);
      if (args_.tree_mask != nullptr && token + Traits::kWarpTokens > own_begin) {
        WarpTile::MaskTree([&](int r) { return TreeWord(part, r); }, own_begin, token, x);
      }
      tile_.RaiseMaximum(x);
      typename WarpTile::Weights weights;
      tile_.Weigh(
          x, [](int) { return 1.0f; }, weights);
      const uint32_t values = BeginTurn(loader, first_token, turn + 1, num_turns);
      AddValues(weights, values);
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
      if constexpr (Traits::kIs8Bit) {
#pragma unroll
        for (int i = 0; i < Traits::kHeadDim / 16; ++i) {
          const float2 even = tile_.Output(r, 2 * i);
          const float2 odd = tile_.Output(r, 2 * i + 1);
          *reinterpret_cast<float4*>(&shared_.merge_o[warp_][row][16 * i + 4 * t]) =
              make_float4(even.x, odd.x, even.y, odd.y);
        }
      } else {
#pragma unroll
        for (int i = 0; i < Traits::kHeadDim / 8; ++i) {
          *reinterpret_cast<float2*>(&shared_.merge_o[warp_][row][8 * i + 2 * t]) =
              tile_.Output(r, i);
        }
      }
    }
  }

 private:
  using Loader = Sm80TileLoader<Traits::kHeadDim, Traits::kTile, Traits::kKvBytes>;
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

  // Which of the sequence's new tokens a row sees; padding rows see none.
  __device__ __forceinline__ uint64_t TreeWord(const DecodePart& part, int r) const {
    const int row = lane_ / 4 + 8 * r;
    if (row >= DecodeNumRows(args_, part)) return 0;
    return args_.tree_mask[DecodeToken(args_, part, row) * args_.tree_mask_stride];
  }

  // Registers of the A fragments. Rows and columns behind the real ones are zeros. Of 8-bit keys
  // columns are permuted: of every 16 a lane has the four at 4t.
  __device__ __forceinline__ void LoadQueries(const DecodePart& part) {
    constexpr int kLaneStep = Traits::kIs8Bit ? 4 : 2;
    constexpr int kHalfStep = Traits::kIs8Bit ? 2 : 8;
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
          const int column = 16 * k + kHalfStep * half + lane_ % 4 * kLaneStep;
          const bool real = real_row && column < args_.head_dim;
          const auto* pair = reinterpret_cast<const uint32_t*>(q + at + column);
          q_[k][r + 2 * half] = real ? *pair : 0u;
        }
      }
      if constexpr (Traits::kIs8Bit) ConvertQueries(r);
    }
  }

  // A row's pairs to float16, even columns first.
  __device__ __forceinline__ void ConvertQueries(int r) {
    float largest = 0.0f;
    if (args_.is_bfloat16) {
#pragma unroll
      for (int k = 0; k < WarpTile::kSteps; ++k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 pair = ptx::BFloat16::Unpack(q_[k][r + 2 * half]);
          largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
        }
      }
    }
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    const float factor = Sm80QueryFactor(largest);
    q_undo_[r] = Sm80InversePowerOfTwo(factor);
#pragma unroll
    for (int k = 0; k < WarpTile::kSteps; ++k) {
      uint32_t two[2] = {q_[k][r], q_[k][r + 2]};
      if (args_.is_bfloat16) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 pair = ptx::BFloat16::Unpack(two[half]);
          two[half] = ptx::PackFloat16(pair.x * factor, pair.y * factor);
        }
      }
      q_[k][r] = (two[0] & 0xffffu) | two[1] << 16;
      q_[k][r + 2] = two[0] >> 16 | (two[1] & 0xffff0000u);
    }
  }

  // Products of the rows with the warp's keys; of 8-bit ones in real values. Their values' scale
  // came with them.
  __device__ __forceinline__ void Multiply(uint32_t keys, int32_t slot,
                                           typename WarpTile::Scores& x) {
    const Sm80LaneAddress keys_at = Sm80ColumnsFirst();
    if constexpr (Traits::kIs8Bit) {
      auto queries = [&](int k, uint32_t(&a)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = q_[k][i];
      };
      float factor;
      if (args_.is_int8) {
        WarpTile::template MultiplyPacked<ptx::SignedInt8>(queries, keys, keys_at, x);
        factor = ptx::SignedInt8::kFactor;
      } else {
        WarpTile::template MultiplyPacked<ptx::Float8E4M3>(queries, keys, keys_at, x);
        factor = ptx::Float8E4M3::kFactor;
      }
      const Sm80SlotScales& scales = shared_.scales[slot];
      const typename WarpTile::GroupScales of_keys = {scales[0][warp_] * factor};
      const typename WarpTile::GroupScales of_values = {scales[1][warp_] * factor};
      WarpTile::ScaleProducts(
          of_keys, [&](int r) { return q_undo_[r]; }, x);
      tile_.TakeValueScales(of_values);
    } else {
      WarpTile::Multiply(
          [&](int, int k, uint32_t(&a)[4]) {
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = q_[k][i];
          },
          keys, keys_at, x);
    }
  }

  __device__ __forceinline__ void AddValues(const typename WarpTile::Weights& weights,
                                            uint32_t values) {
    const Sm80LaneAddress values_at = Sm80RowsFirst();
    if constexpr (!Traits::kIs8Bit) {
      tile_.AddValues(weights, values, values_at);
    } else if (args_.is_int8) {
      tile_.template AddPackedValues<ptx::SignedInt8>(weights, values, values_at);
    } else {
      tile_.template AddPackedValues<ptx::Float8E4M3>(weights, values, values_at);
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
      if (Traits::kIs8Bit && turn % 2 == 0) {
        loader.LoadScales(args_, ptx::SharedAddress(shared_.scales[load_slot_]), warp_);
      }
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
  float q_undo_[2];  // of 8-bit keys: undoes the power of two that a row was multiplied by
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
          Traits::kSharedBytes,
          Traits::kIs8Bit};
}

}  // namespace longspan
