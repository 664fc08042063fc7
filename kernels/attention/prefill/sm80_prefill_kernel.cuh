// Prefill attention on paged keys and values for every card from sm_80 on; keys and values of 16 or
// of 8 bits.
//
// Computes softmax(score(Q K^T) + mask) V of one block of packed query rows (query x head of the
// group) and one KV head. Grid: plan's blocks x KV heads, the heads of a block side by side, the
// longest blocks first. Four warps; each owns 16 or 32 rows and goes over all keys in tiles of 64.
// Keys and values come in turn into a ring of slots by asynchronous copies, each warp bringing 16
// tokens of every tile, kSlots - 1 turns ahead; all warps convert an 8-bit tile to float16
// together, once, before it is used. Bound by the matrix units and, at head_dim 64, by
// exponentials. Shared memory: queries + kSlots tiles + 16 or 20 bytes a row + a converted tile,
// below the 99 KB that the smallest cards of the line give a CTA. Supported: what sm80_prefill.h
// says.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/attention/prefill/sm80_prefill_instance.h"
#include "kernels/attention/sm80_tile_loader.cuh"
#include "kernels/attention/sm80_warp_tile.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/ptx/mbarrier.cuh"

namespace longspan {

// As a traits' Element: q and o are of the launch's type, not of the kernel's.
struct PrefillLaunchElement {};

// kKvBytes: of an element of keys and values. With 1 ElementT is PrefillLaunchElement.
template <typename ElementT, int kHeadDimT, int kKvBytesT = 2>
struct Sm80PrefillTraits {
  using Element = ElementT;  // of queries and output: ptx::BFloat16 or ptx::Float16
  static constexpr int kHeadDim = kHeadDimT;
  static constexpr int kKvBytes = kKvBytesT;
  static constexpr bool kIs8Bit = kKvBytes == 1;
  using Product = std::conditional_t<kIs8Bit, ptx::Float16, Element>;  // what is multiplied
  static constexpr int kTile = kPrefillTileTokens;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRowBlocks = kHeadDim <= 128 ? 2 : 1;  // of 16, per warp
  static constexpr int kWarpRows = 16 * kRowBlocks;
  static constexpr int kRows = kWarpRows * kWarps;
  static constexpr int kSlotBytes = kTile * kHeadDim * kKvBytes;
  static constexpr int kSlots = kHeadDim <= 128 && !kIs8Bit ? 4 : 2;
  static constexpr int kMinCtas = kHeadDim <= 128 ? 2 : 1;  // of an SM
  static_assert(kTile == 16 * kWarps, "each warp brings 16 tokens of a tile");

  struct Storage {
    alignas(128) uint8_t queries[kRows * kHeadDim * 2];
    alignas(128) uint8_t ring[kSlots][kSlotBytes];
    int2 ranges[kRows];  // first and last visible token, inclusive
    int32_t positions[kRows];
    float slopes[kRows];  // times log2(e); of ALiBi
    int2 seen;            // of the keys, those that some row sees: first and end
    // With 8-bit keys and values alone.
    alignas(128) uint8_t converted[kIs8Bit ? kTile * kHeadDim * 2 : 1];
    float q_undo[kIs8Bit ? kRows : 1];  // undoes the power of two that a row was multiplied by
    alignas(16) Sm80SlotScales scales[kIs8Bit ? kSlots : 1];  // of the slots that hold keys
  };
  static constexpr int kSharedBytes = sizeof(Storage);
  static_assert(kSharedBytes <= 99 * 1024);
};

// Query row and head of a packed row.
__device__ __forceinline__ int64_t PrefillToken(const Sm80PrefillArgs& args,
                                                const PrefillBlock& block, int row) {
  return block.q_begin + (block.first_row + row) / args.group;
}
__device__ __forceinline__ int32_t PrefillQueryHead(const Sm80PrefillArgs& args,
                                                    const PrefillBlock& block, int32_t kv_head,
                                                    int row) {
  return kv_head * args.group + (block.first_row + row) % args.group;
}
__device__ __forceinline__ int32_t PrefillPosition(const Sm80PrefillArgs& args,
                                                   const PrefillBlock& block, int row) {
  return block.length - block.q_len + (block.first_row + row) / args.group;
}

// First and last token, inclusive, that a query at a position may see.
__device__ __forceinline__ int2 VisibleTokens(const Sm80PrefillArgs& args, int32_t length,
                                              int32_t position) {
  int2 range = make_int2(0, length - 1);
  if (args.window_left >= 0) range.x = position - args.window_left;
  if (args.causal) range.y = min(range.y, position);
  if (args.window_right >= 0) range.y = min(range.y, position + args.window_right);
  return range;
}

// A tile of 8-bit elements, all threads' share: from a slot to shared.converted.
template <typename Traits, typename Packed>
__device__ __forceinline__ void ConvertTile(const uint8_t* slot, typename Traits::Storage& shared) {
  constexpr int kChunks = Traits::kHeadDim / 16;  // of a row, 16 elements each
  // Not unrolled: registers are short, and addresses of many rows would be kept through the loop.
#pragma unroll 1
  for (int i = threadIdx.x; i < Traits::kTile * kChunks; i += Traits::kThreads) {
    const int row = i / kChunks;
    const int chunk = i % kChunks;
    const uint4 packed =
        *reinterpret_cast<const uint4*>(slot + Sm80ChunkOffset(Traits::kTile, row, chunk));
    const uint32_t fours[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t pairs[4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint32_t even, odd;
        Packed::Unpack(fours[2 * half + j], even, odd);
        pairs[2 * j] = __byte_perm(even, odd, 0x5410);
        pairs[2 * j + 1] = __byte_perm(even, odd, 0x7632);
      }
      uint8_t* to = shared.converted + Sm80ChunkOffset(Traits::kTile, row, 2 * chunk + half);
      *reinterpret_cast<uint4*>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  }
}

// Starts the copies of the block's queries; rows and columns behind the real ones become zeros.
template <typename Traits>
__device__ __forceinline__ void LoadPrefillQueries(const Sm80PrefillArgs& args,
                                                   const PrefillBlock& block, int32_t kv_head,
                                                   typename Traits::Storage& shared) {
  constexpr int kChunks = Traits::kHeadDim / 8;
  const auto* q = static_cast<const uint16_t*>(args.q);
  const uint32_t to = ptx::SharedAddress(shared.queries);
  for (int i = threadIdx.x; i < Traits::kRows * kChunks; i += Traits::kThreads) {
    const int row = i / kChunks;
    const int chunk = i % kChunks;
    const bool real = row < block.num_rows && 8 * chunk < args.head_dim;
    const uint16_t* from =
        real ? q + PrefillToken(args, block, row) * args.q_token_stride +
                   PrefillQueryHead(args, block, kv_head, row) * args.q_head_stride + 8 * chunk
             : q;
    ptx::CopyAsync16(to + Sm80ChunkOffset(Traits::kRows, row, chunk), from, real ? 16 : 0);
  }
}

// The block's queries as float16, each row times the power of two that float16 holds best.
template <typename Traits>
__device__ __forceinline__ void ConvertPrefillQueries(const Sm80PrefillArgs& args,
                                                      const PrefillBlock& block, int32_t kv_head,
                                                      typename Traits::Storage& shared) {
  constexpr int kChunks = Traits::kHeadDim / 8;  // of a row; as many lanes have one each
  const auto* q = static_cast<const uint16_t*>(args.q);
  const int chunk = threadIdx.x % kChunks;
#pragma unroll 4
  for (int i = threadIdx.x; i < Traits::kRows * kChunks; i += Traits::kThreads) {
    const int row = i / kChunks;
    uint4 chunks = make_uint4(0, 0, 0, 0);
    if (row < block.num_rows && 8 * chunk < args.head_dim) {
      chunks = *reinterpret_cast<const uint4*>(
          q + PrefillToken(args, block, row) * args.q_token_stride +
          PrefillQueryHead(args, block, kv_head, row) * args.q_head_stride + 8 * chunk);
    }
    float factor = 1.0f;
    if (args.is_bfloat16) {
      uint32_t pairs[4] = {chunks.x, chunks.y, chunks.z, chunks.w};
      float largest = 0.0f;
#pragma unroll
      for (const uint32_t pair : pairs) {
        const float2 two = ptx::BFloat16::Unpack(pair);
        largest = fmaxf(largest, fmaxf(fabsf(two.x), fabsf(two.y)));
      }
#pragma unroll
      for (int step = kChunks / 2; step > 0; step /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
      }
      factor = Sm80QueryFactor(largest);
#pragma unroll
      for (uint32_t& pair : pairs) {
        const float2 two = ptx::BFloat16::Unpack(pair);
        pair = ptx::PackFloat16(two.x * factor, two.y * factor);
      }
      chunks = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
    *reinterpret_cast<uint4*>(shared.queries + Sm80ChunkOffset(Traits::kRows, row, chunk)) = chunks;
    if (chunk == 0) shared.q_undo[row] = Sm80InversePowerOfTwo(factor);
  }
}

// What the loop needs of each row besides its query.
template <typename Traits>
__device__ __forceinline__ void StorePrefillRows(const Sm80PrefillArgs& args,
                                                 const PrefillBlock& block, int32_t kv_head,
                                                 typename Traits::Storage& shared) {
  constexpr float kLog2E = 1.44269504089f;
  for (int row = threadIdx.x; row < Traits::kRows; row += Traits::kThreads) {
    // Rows behind the last real one see what that sees.
    const int32_t position = PrefillPosition(args, block, min(row, block.num_rows - 1));
    shared.ranges[row] = VisibleTokens(args, block.length, position);
    shared.positions[row] = position;
    shared.slopes[row] =
        args.alibi_slopes == nullptr
            ? 0.0f
            : kLog2E * args.alibi_slopes[PrefillQueryHead(args, block, kv_head, row)];
  }
}

template <typename Element>
__device__ __forceinline__ uint32_t PackOutput(const Sm80PrefillArgs& args, float low, float high) {
  if constexpr (std::is_same_v<Element, PrefillLaunchElement>) {
    return args.is_bfloat16 ? ptx::PackBFloat16(low, high) : ptx::PackFloat16(low, high);
  } else {
    return Element::Pack(low, high);
  }
}

// Final write of a warp's rows: each lane two elements of a row at a time.
template <typename Traits, typename WarpTile>
__device__ __forceinline__ void WritePrefillRows(const Sm80PrefillArgs& args,
                                                 const WarpTile& tile) {
  constexpr float kLog2E = 1.44269504089f;
  constexpr float kLn2 = 0.69314718056f;
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x / 32 * Traits::kWarpRows;
  // Read once more: kept in registers, it would be in the loop's way.
  const PrefillBlock block = args.blocks[blockIdx.x / args.num_kv_heads];
  const auto kv_head = static_cast<int32_t>(blockIdx.x % args.num_kv_heads);
#pragma unroll
  for (int r = 0; r < WarpTile::kLaneRows; ++r) {
    const int row = warp_row + lane / 4 + 8 * r;
    if (row >= block.num_rows) continue;
    const int64_t token = PrefillToken(args, block, row);
    const int32_t head = PrefillQueryHead(args, block, kv_head, row);
    float total = tile.sum(r);
    if (args.sinks != nullptr) total += ptx::Exp2(kLog2E * args.sinks[head] - tile.maximum(r));
    // No visible key: zeros, sink or not.
    const float inverse = tile.sum(r) == 0.0f ? 0.0f : 1.0f / total;
    auto* o = static_cast<uint16_t*>(args.o) + token * args.o_token_stride +
              head * args.o_head_stride + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < Traits::kHeadDim / 8; ++i) {
      if (8 * i >= args.head_dim) continue;
      const float2 two = tile.Output(r, i);
      *reinterpret_cast<uint32_t*>(o + 8 * i) =
          PackOutput<typename Traits::Element>(args, two.x * inverse, two.y * inverse);
    }
    if (args.lse == nullptr || lane % 4 != 0) continue;
    args.lse[token * args.num_q_heads + head] =
        tile.sum(r) == 0.0f ? -INFINITY : kLn2 * (tile.maximum(r) + log2f(tile.sum(r)));
  }
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinCtas)
    Sm80PrefillKernel(const __grid_constant__ Sm80PrefillArgs args) {
  extern __shared__ __align__(128) uint8_t sm80_shared[];
  auto& shared = *reinterpret_cast<typename Traits::Storage*>(sm80_shared);
  const PrefillBlock block = args.blocks[blockIdx.x / args.num_kv_heads];
  const auto kv_head = static_cast<int32_t>(blockIdx.x % args.num_kv_heads);
  if (block.num_rows == 0) return;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if constexpr (Traits::kIs8Bit) {
    ConvertPrefillQueries<Traits>(args, block, kv_head, shared);
  } else {
    LoadPrefillQueries<Traits>(args, block, kv_head, shared);
  }
  StorePrefillRows<Traits>(args, block, kv_head, shared);
  if (threadIdx.x == 0) shared.seen = make_int2(block.key_begin, block.key_end);
  __syncthreads();

  // Turn 2n brings and works on the keys of tile n of the block, turn 2n + 1 on its values; turn i
  // in slot i modulo kSlots. Queries that are copied belong to the first group of copies.
  const int32_t num_turns = 2 * PrefillTiles(block);
  const int32_t first_token = block.key_begin / Traits::kTile * Traits::kTile;
  Sm80TileLoader<Traits::kHeadDim, Traits::kTile, Traits::kKvBytes> loader(
      args, args.block_table + block.table_row * args.block_table_stride, kv_head, shared.seen,
      first_token + 16 * warp);
  const uint32_t ring = ptx::SharedAddress(shared.ring);
  auto slot_of = [&](int32_t turn) {
    return ring + static_cast<uint32_t>(turn % Traits::kSlots) * Traits::kSlotBytes;
  };
  auto load = [&](int32_t turn) {
    if (turn < num_turns) {
      loader.Load(args, turn % 2 != 0, slot_of(turn), 16 * warp);
      if (Traits::kIs8Bit && turn % 2 == 0) {
        loader.LoadScales(args, ptx::SharedAddress(shared.scales[turn % Traits::kSlots]), warp);
      }
      if (turn % 2 != 0) {
        loader.Seek(args, first_token + (turn / 2 + 1) * Traits::kTile + 16 * warp);
      }
    }
    ptx::CopyAsyncCommit();  // empty groups too: the waits below count them
  };
  for (int32_t turn = 0; turn < Traits::kSlots - 1; ++turn) load(turn);
  // Turn i's data is in shared memory, every warp is done with turn i - 1, its slot is filled anew.
  // Answers where the tile is as 16-bit elements.
  auto begin_turn = [&](int32_t turn) {
    ptx::CopyAsyncWait<Traits::kSlots - 2>();
    __syncthreads();
    load(turn + Traits::kSlots - 1);
    if constexpr (!Traits::kIs8Bit) return slot_of(turn);
    const uint8_t* slot = shared.ring[turn % Traits::kSlots];
    if (args.is_int8) {
      ConvertTile<Traits, ptx::SignedInt8>(slot, shared);
    } else {
      ConvertTile<Traits, ptx::Float8E4M3>(slot, shared);
    }
    __syncthreads();
    return ptx::SharedAddress(shared.converted);
  };

  using WarpTile =
      Sm80WarpTile<typename Traits::Product, Traits::kHeadDim, Traits::kRowBlocks, Traits::kTile,
                   Traits::kTile, false, Traits::kIs8Bit ? Sm80Kv::kConverted : Sm80Kv::k16Bit>;
  WarpTile tile;
  tile.Clear();
  const int warp_row = warp * Traits::kWarpRows;
  const Sm80LaneAddress keys_at = Sm80ColumnsFirst();
  const Sm80LaneAddress rows_at = Sm80RowsFirst();
  const uint32_t queries = ptx::SharedAddress(shared.queries) + warp_row * 128;
  auto load_queries = [&](int b, int k, uint32_t(&a)[4]) {
    ptx::LoadMatrixX4(a, rows_at.At(queries, Traits::kRows, b, k));
  };
  auto lane_row = [&](int r) { return warp_row + lane / 4 + 8 * r; };
  for (int32_t turn = 0; turn < num_turns; turn += 2) {
    const int32_t token = first_token + turn / 2 * Traits::kTile;
    const uint32_t keys = begin_turn(turn);
    typename WarpTile::Scores x;
    WarpTile::Multiply(load_queries, keys, keys_at, x);
    const Sm80SlotScales& scales = shared.scales[Traits::kIs8Bit ? turn % Traits::kSlots : 0];
    const float factor = args.is_int8 ? ptx::SignedInt8::kFactor : ptx::Float8E4M3::kFactor;
    if constexpr (Traits::kIs8Bit) {
      typename WarpTile::GroupScales of_keys, of_values;
#pragma unroll
      for (int g = 0; g < Traits::kTile / 16; ++g) {
        of_keys[g] = scales[0][g] * factor;
        of_values[g] = scales[1][g] * factor;
      }
      WarpTile::ScaleProducts(
          of_keys, [&](int r) { return shared.q_undo[lane_row(r)]; }, x);
      tile.TakeValueScales(of_values);
    }
    WarpTile::Score(
        args,
        [&](int r) {
          struct {
            int32_t position;
            float slope;
          } row{shared.positions[lane_row(r)], shared.slopes[lane_row(r)]};
          return row;
        },
        token, x);
    // The last row's first token and the first row's last: between them every row sees every token.
    if (token < shared.ranges[warp_row + Traits::kWarpRows - 1].x ||
        token + Traits::kTile - 1 > shared.ranges[warp_row].y) {
      WarpTile::Mask([&](int r) { return shared.ranges[lane_row(r)]; }, token, x);
    }
    tile.RaiseMaximum(x);
    typename WarpTile::Weights weights;
    const float to_unit = Traits::kIs8Bit ? factor / tile.unit() : 1.0f;
    tile.Weigh(
        x, [&](int g) { return Traits::kIs8Bit ? scales[1][g] * to_unit : 1.0f; }, weights);
    const uint32_t values = begin_turn(turn + 1);
    tile.AddValues(weights, values, rows_at);
  }
  ptx::CopyAsyncWait<0>();  // of a block without keys the queries are still on their way
  tile.FinishSums();
  WritePrefillRows<Traits>(args, tile);
}

template <typename Traits>
inline Sm80PrefillInstance MakeSm80PrefillInstance(DType dtype) {
  return {dtype,
          Traits::kHeadDim,
          Traits::kRows,
          reinterpret_cast<const void*>(&Sm80PrefillKernel<Traits>),
          Traits::kThreads,
          Traits::kSharedBytes,
          Traits::kIs8Bit};
}

}  // namespace longspan
