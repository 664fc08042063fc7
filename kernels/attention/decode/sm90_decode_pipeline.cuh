// What the decode kernels for sm_90a share whatever the keys' and values' type: a CTA with a
// producer warp behind its consumer warps and a ring of stages between them, the masks of edge
// tiles, and the way from a part's end to rows. Consumers are a class with Attend(part).
#pragma once

#include <cuda.h>

#include <cmath>
#include <cstdint>

#include "kernels/attention/decode/decode_merge.cuh"
#include "kernels/attention/decode/decode_params.h"
#include "kernels/attention/decode/decode_walk.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/ptx/tma.cuh"

namespace longspan {

// Where the ring stands: the stage that comes next, and the parity of its phase.
template <int kStages>
struct RingPosition {
  int32_t stage = 0;
  uint32_t parity;
  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Tokens of a part's sequence, as masks see them.
struct DecodeBounds {
  int32_t all_from, all_to;        // between these, inclusive, every row sees every token
  int32_t owned_begin, owned_end;  // tokens outside hold nobody's values for these rows
};
__device__ __forceinline__ DecodeBounds MakeDecodeBounds(const DecodeArgs& args,
                                                         const GpuDecodeSequence& seq) {
  DecodeBounds bounds;
  bounds.owned_begin = GpuDecodeFirstToken(seq, args.window_left);
  bounds.owned_end = seq.length;
  bounds.all_from = args.window_left < 0 ? 0 : seq.length - 1 - args.window_left;
  bounds.all_to = args.causal ? seq.length - seq.q_len : seq.length - 1;
  return bounds;
}

// Where a packed row stands, and the first and the last token that a row there may see.
__device__ __forceinline__ int32_t DecodePosition(const DecodeArgs& args, const DecodePart& part,
                                                  int row) {
  return part.sequence.length - part.sequence.q_len + (part.first_row + row) / args.group;
}
__device__ __forceinline__ int32_t FirstVisible(const DecodeArgs& args, int32_t position) {
  return args.window_left < 0 ? 0 : position - args.window_left;
}
__device__ __forceinline__ int32_t LastVisible(const DecodeArgs& args, int32_t position,
                                               int32_t length) {
  return args.causal ? min(position, length - 1) : length - 1;
}

// Lanes 0..kScaleGroups-1 bring the scales of 16 tokens each of a tile of 8-bit keys and values to
// `to`. id: block of the lane's tokens; -1: nobody's, then nothing is read and 0 stands there.
__device__ __forceinline__ void FetchDecodeScales(const DecodeArgs& args, float2* to, int32_t id,
                                                  int32_t head) {
  const uint32_t num_bytes = id < 0 ? 0 : sizeof(float);
  const int64_t block = max(id, 0);
  const uint32_t address = ptx::SharedAddress(to);
  ptx::CopyAsync4(
      address,
      args.scales.k + block * args.scales.k_block_stride + head * args.scales.k_head_stride,
      num_bytes);
  ptx::CopyAsync4(
      address + sizeof(float),
      args.scales.v + block * args.scales.v_block_stride + head * args.scales.v_head_stride,
      num_bytes);
}

// The producer warp. Each lane brings one box of a tile: `box_tokens` tokens of all columns, or of
// one if the traits say so: lanes issue one after the other, so many small boxes take time. Boxes
// without a visible token are not asked for: their table entries are garbage. Keys lie in even
// stages; scales of both come with the keys.
template <typename Traits>
__device__ __forceinline__ void ProduceTiles(const DecodeArgs& args, const GpuDecodeWork& work,
                                             const CUtensorMap* k_map, const CUtensorMap* v_map,
                                             typename Traits::Storage& shared) {
  constexpr int kTile = Traits::kTile;
  const int lane = threadIdx.x % 32;
  const int box = args.box_tokens;
  const int columns_per_box = Traits::kBoxesOfAllColumns || box == kTile ? Traits::kColumns : 1;
  const int boxes_along_d = Traits::kColumns / columns_per_box;
  const int piece = lane / boxes_along_d;  // along tokens
  const int column = lane % boxes_along_d;
  const bool has_box = lane < kTile / box * boxes_along_d;
  const uint32_t box_bytes = static_cast<uint32_t>(box * columns_per_box * Traits::kRowBytes);
  const uint32_t box_offset = columns_per_box == Traits::kColumns
                                  ? piece * box_bytes
                                  : column * Traits::kColumnBytes + piece * box * Traits::kRowBytes;
  const int32_t tile_blocks = kTile / args.block_size;
  const int32_t tile_offset = kTile % args.block_size;
  // Which lane has the block of tokens [16 * lane, 16 * lane + 16) of a tile.
  [[maybe_unused]] const int scale_lane = 16 * lane / box * boxes_along_d % 32;
  const uint64_t policy = ptx::EvictFirstPolicy();
  const uint32_t full = ptx::SharedAddress(shared.full);
  const uint32_t empty = ptx::SharedAddress(shared.empty);
  const uint32_t ring = ptx::SharedAddress(shared.ring);
  RingPosition<Traits::kStages> at{0, 1};
  bool waited = false;

  for (DecodeWalk walk(args, work); !walk.done();) {
    const DecodePart part = walk.Next();
    const GpuDecodeSequence& seq = part.sequence;
    const int32_t* table = args.block_table + seq.table_row * args.block_table_stride;
    const int32_t first_token = GpuDecodeFirstToken(seq, args.window_left);
    auto is_mine = [&](int32_t token) {
      return has_box && token < seq.length && token + box > first_token;
    };
    const int32_t first_tile = first_token / kTile;
    int32_t token = (first_tile + part.begin) * kTile + piece * box;
    int32_t block = token / args.block_size;
    int32_t next_offset = token % args.block_size;
    bool next_mine = is_mine(token);
    int32_t next_id = next_mine ? table[block] : 0;
    for (int32_t tile = part.begin; tile < part.end; ++tile) {
      const int32_t id = next_id;
      const int32_t offset = next_offset;
      const bool mine = next_mine;
      // The box of the next tile, without a division: they kept the warp from keeping up.
      token += kTile;
      block += tile_blocks;
      next_offset += tile_offset;
      if (next_offset >= args.block_size) {
        next_offset -= args.block_size;
        ++block;
      }
      next_mine = is_mine(token);
      if (next_mine) next_id = table[block];
      const uint32_t bytes = __popc(__ballot_sync(~0u, mine)) * box_bytes;
      int32_t scale_id = -1;
      if constexpr (Traits::kScaleGroups > 0) {
        scale_id = __shfl_sync(~0u, mine ? id : -1, scale_lane);
      }
      // Keys and values of this step's own tokens are written by the kernel before.
      if (!waited && (first_tile + tile + 1) * kTile > seq.length - seq.q_len) {
        ptx::GridDependencyWait();
        waited = true;
      }
#pragma unroll
      for (int values = 0; values < 2; ++values) {
        ptx::MbarrierWait(empty + 8 * at.stage, at.parity);
        if (lane == 0) ptx::MbarrierArriveExpect(full + 8 * at.stage, bytes);
        __syncwarp();
        if (mine) {
          ptx::TmaLoad5d(ring + at.stage * Traits::kStageBytes + box_offset, values ? v_map : k_map,
                         full + 8 * at.stage, 0, offset, column, part.head, id, policy);
        }
        if constexpr (Traits::kScaleGroups > 0) {
          if (values == 0 && lane < Traits::kScaleGroups) {
            FetchDecodeScales(args, &shared.scales[at.stage / 2][lane], scale_id, part.head);
            ptx::MbarrierArriveAfterCopies(full + 8 * at.stage);
          }
        }
        at.Advance();
      }
    }
  }
}

template <typename Traits, typename Consumer>
__device__ __forceinline__ void ConsumeTiles(const DecodeArgs& args, const GpuDecodeWork& work,
                                             typename Traits::Storage& shared) {
  Consumer consumer(args, shared);
  for (DecodeWalk walk(args, work); !walk.done();) {
    const DecodePart part = walk.Next();
    consumer.Attend(part);
    ptx::NamedBarrierSync(1, Traits::kConsumerThreads);
    MergeWarps<Traits>(args, part, shared);
    if (part.begin != 0 || part.end != part.num_tiles) {
      const auto cta = static_cast<int32_t>(blockIdx.x);
      const int32_t first_cta = part.begin == 0 ? cta : work.first_cta;
      const int32_t last_cta = part.begin == 0 ? work.last_cta_of_last : work.last_cta_of_first;
      if (ArriveWithPart<Traits>(args, first_cta, last_cta, shared)) {
        CombineParts<Traits>(args, part, first_cta, last_cta);
      }
    }
    ptx::NamedBarrierSync(1, Traits::kConsumerThreads);  // the merge buffers are free again
  }
}

// Grid: one CTA per SM, each with the range of tiles that the plan gave it.
template <typename Traits, typename Consumer>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    Sm90DecodeKernel(const __grid_constant__ DecodeArgs args,
                     const __grid_constant__ CUtensorMap k_map,
                     const __grid_constant__ CUtensorMap v_map) {
  extern __shared__ uint8_t raw_shared[];
  auto& shared = *reinterpret_cast<typename Traits::Storage*>(
      (reinterpret_cast<uintptr_t>(raw_shared) + 1023) & ~uintptr_t{1023});
  if (threadIdx.x == 0) {
    for (int i = 0; i < Traits::kStages; ++i) {
      const int num_scales = i % 2 == 0 ? Traits::kScaleGroups : 0;  // with the keys
      ptx::MbarrierInit(ptx::SharedAddress(&shared.full[i]), 1 + num_scales);
      ptx::MbarrierInit(ptx::SharedAddress(&shared.empty[i]), Traits::kTileConsumers);
    }
    ptx::FenceMbarrierInit();
  }
  if (threadIdx.x == Traits::kConsumerThreads) {
    ptx::PrefetchTensorMap(&k_map);
    ptx::PrefetchTensorMap(&v_map);
  }
  // The plan is older than the kernel before, so it may be read at once.
  const GpuDecodeWork work = args.works[blockIdx.x];
  __syncthreads();
  if (work.num_tiles > 0 && threadIdx.x >= Traits::kConsumerThreads) {
    ProduceTiles<Traits>(args, work, &k_map, &v_map, shared);
    return;
  }
  // Queries, output and partials belong to the kernel before until it is done. CTAs without
  // work wait too: the kernel behind relies on this one's end being behind that one's.
  ptx::GridDependencyWait();
  ptx::GridDependencyLaunch();
  if (work.num_tiles > 0) ConsumeTiles<Traits, Consumer>(args, work, shared);
}

}  // namespace longspan
