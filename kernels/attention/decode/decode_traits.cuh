// Sizes of the sm_90a decode kernels for one element type and head size.
#pragma once

#include <cstdint>

#include "kernels/attention/decode/decode_merge.cuh"
#include "kernels/attention/decode/gpu_decode_plan.h"
#include "kernels/attention/decode/sm90_decode_layout.h"

namespace longspan {

template <typename ElementT, int kHeadDimT>
struct Sm90DecodeTraits {
  using Element = ElementT;  // ptx::BFloat16 or ptx::Float16
  static constexpr int kHeadDim = kHeadDimT;
  static constexpr int kTile = kGpuDecodeTileTokens;
  static constexpr int kRows = kGpuDecodeRows;
  static constexpr int kWarpTokens = 16;                      // of every tile, per consumer warp
  static constexpr int kTileConsumers = kTile / kWarpTokens;  // warps that a tile is split among
  static constexpr int kConsumers = kTileConsumers;
  static constexpr int kConsumerThreads = 32 * kConsumers;
  static constexpr int kScaleGroups = 0;                  // 8-bit values have scales
  static constexpr int kThreads = kConsumerThreads + 32;  // and the producer
  // A stage holds a tile of keys or of values, box behind box; a box is columns of 64 elements (128
  // bytes, swizzled), each with all its tokens.
  static constexpr bool kBoxesOfAllColumns = true;
  static constexpr int kRowBytes = Sm90DecodeRowBytes(2, kHeadDim);
  static constexpr int kColumns = 2 * kHeadDim / kRowBytes;
  static constexpr int kColumnBytes = kTile * kRowBytes;
  static constexpr int kStageBytes = kColumns * kColumnBytes;
  static constexpr int kStages = kHeadDim == 64 ? 16 : kHeadDim == 128 ? 8 : 6;

  static_assert(kHeadDim % 64 == 0 && kHeadDim <= 192);
  static_assert(kStages * kStageBytes >= 96 * 1024, "bytes in flight hide the memory's latency");

  // Shared memory behind the alignment gap.
  struct Storage {
    alignas(1024) uint8_t ring[kStages][kStageBytes];
    alignas(16) float merge_o[kConsumers][kRows][kHeadDim];
    float2 merge_sum[kConsumers][kRows];
    alignas(8) uint64_t full[kStages];
    uint64_t empty[kStages];
    int32_t is_last_part;
  };
  static constexpr int kSharedBytes = sizeof(Storage) + 1024;
  static_assert(kSharedBytes <= 227 * 1024);
};

// Narrow: ptx::E4M3 or ptx::Int8, of keys and values; queries and output are bfloat16 or
// float16, known at launch.
template <typename NarrowT, int kHeadDimT>
struct Sm90DecodeKv8Traits {
  using Narrow = NarrowT;
  using Element = DecodeLaunchElement;
  static constexpr int kHeadDim = kHeadDimT;
  static constexpr int kTile = kGpuDecodeTileTokens;
  static constexpr int kRows = kGpuDecodeRows;
  static constexpr int kWarpTokens = 16;
  static constexpr int kTileConsumers = kTile / kWarpTokens;
  // Teams of kTileConsumers warps take tiles in turn. Two of them leave 168 registers a thread.
  static constexpr int kTeams = kHeadDim <= 128 ? 2 : 1;
  static constexpr int kConsumers = kTeams * kTileConsumers;
  static constexpr int kConsumerThreads = 32 * kConsumers;
  static constexpr int kThreads = kConsumerThreads + 32;
  static constexpr int kScaleGroups = kTile / 16;    // blocks are multiples of 16 tokens
  static constexpr bool kBoxesOfAllColumns = false;  // unless a box is a whole tile
  static constexpr int kRowBytes = Sm90DecodeRowBytes(1, kHeadDim);
  static constexpr int kColumns = kHeadDim / kRowBytes;
  static constexpr int kColumnBytes = kTile * kRowBytes;
  static constexpr int kStageBytes = kColumns * kColumnBytes;
  static constexpr int kStages = kHeadDim == 64    ? 32
                                 : kHeadDim == 128 ? 16
                                 : kHeadDim == 192 ? 10
                                                   : 8;

  static_assert(kHeadDim % 64 == 0 && kHeadDim <= 256 && kStages % 2 == 0);
  static_assert(kStages * kStageBytes >= 96 * 1024, "bytes in flight hide the memory's latency");

  struct Storage {
    alignas(1024) uint8_t ring[kStages][kStageBytes];
    alignas(16) float merge_o[kConsumers][kRows][kHeadDim];
    float2 merge_sum[kConsumers][kRows];
    float2 scales[kStages / 2][kScaleGroups];  // of keys, of values
    alignas(8) uint64_t full[kStages];
    uint64_t empty[kStages];
    int32_t is_last_part;
  };
  static constexpr int kSharedBytes = sizeof(Storage) + 1024;
  static_assert(kSharedBytes <= 227 * 1024);
};

}  // namespace longspan
