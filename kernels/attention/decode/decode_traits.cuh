// Sizes of the sm_90a decode kernel for one element type and head size.
#pragma once

#include <cstdint>

#include "kernels/attention/decode/gpu_decode_plan.h"

namespace longspan {

template <typename ElementT, int kHeadDimT>
struct Sm90DecodeTraits {
  using Element = ElementT;  // ptx::BFloat16 or ptx::Float16
  static constexpr int kHeadDim = kHeadDimT;
  static constexpr int kTile = kGpuDecodeTileTokens;
  static constexpr int kRows = kGpuDecodeRows;
  static constexpr int kWarpTokens = 16;  // of every tile, per consumer warp
  static constexpr int kConsumers = kTile / kWarpTokens;
  static constexpr int kConsumerThreads = 32 * kConsumers;
  static constexpr int kThreads = kConsumerThreads + 32;  // and the producer
  // A stage holds a tile of keys or of values as columns of 64 elements (128 bytes, swizzled).
  static constexpr int kColumns = kHeadDim / 64;
  static constexpr int kColumnBytes = kTile * 128;
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

}  // namespace longspan
