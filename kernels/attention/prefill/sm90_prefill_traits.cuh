// Sizes of the sm_90a prefill kernel for one element type and head size.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/prefill/sm90_prefill_plan.h"

namespace longspan {

template <typename ElementT, int kHeadDimT>
struct Sm90PrefillTraits {
  using Element = ElementT;  // ptx::BFloat16 or ptx::Float16
  static constexpr int kHeadDim = kHeadDimT;
  // A consumer is a warpgroup with 64 query rows. With small heads exponentials, not products, are
  // the limit: a third consumer fills the gaps.
  static constexpr int kConsumers = kHeadDim == 64 ? 3 : 2;
  static constexpr int kRows = 64 * kConsumers;
  static constexpr int kKeys = kHeadDim == 256 ? 64 : 128;
  static constexpr int kStages = 2;  // of keys, and of values
  static constexpr int kConsumerThreads = 128 * kConsumers;
  static constexpr int kThreads = kConsumerThreads + 128;  // and the producer
  // Of 64 Ki registers.
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 232;
  static_assert(128 * kProducerRegisters + kConsumerThreads * kConsumerRegisters <= 65536);

  // Everything lies as columns of 64 elements: [column][row] of 128 bytes, swizzled.
  static constexpr int kColumns = kHeadDim / 64;
  static constexpr int kQueryColumnBytes = kRows * 128;
  static constexpr int kQueryBytes = kColumns * kQueryColumnBytes;
  static constexpr int kKeyColumnBytes = kKeys * 128;
  static constexpr int kKeyBytes = kColumns * kKeyColumnBytes;
  static constexpr int kOutputBytes = kColumns * 64 * 128;  // of one consumer
  // Large heads leave no room to collect the output; their threads write it from registers.
  static constexpr bool kStagesOutput = kHeadDim <= 128;

  // What the producer tells the consumers about a tile.
  struct Tile {
    Sm90PrefillPiece piece;
    int32_t head;  // of the queries; -1: no more tiles
    int32_t unused[3];
  };
  static constexpr int kTileSlots = 2;

  // Shared memory behind the alignment gap.
  struct Storage {
    alignas(1024) uint8_t q[kQueryBytes];
    uint8_t k[kStages][kKeyBytes];
    uint8_t v[kStages][kKeyBytes];
    uint8_t o[kStagesOutput ? kConsumers : 1][kStagesOutput ? kOutputBytes : 1024];
    alignas(16) Tile tiles[kTileSlots];
    float order[kConsumerThreads];  // see AttendTile
    alignas(8) uint64_t q_full, q_empty;
    uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
    uint64_t tile_full[kTileSlots], tile_empty[kTileSlots];
  };
  static constexpr int kSharedBytes = sizeof(Storage) + 1024;
  static_assert(kSharedBytes <= 227 * 1024);

  // Offsets of what both sides name by its 32-bit address.
  static constexpr uint32_t kQ = offsetof(Storage, q), kK = offsetof(Storage, k),
                            kV = offsetof(Storage, v), kO = offsetof(Storage, o);
  static constexpr uint32_t kQFull = offsetof(Storage, q_full),
                            kQEmpty = offsetof(Storage, q_empty);
  static constexpr uint32_t kKFull = offsetof(Storage, k_full),
                            kKEmpty = offsetof(Storage, k_empty);
  static constexpr uint32_t kVFull = offsetof(Storage, v_full),
                            kVEmpty = offsetof(Storage, v_empty);
  static constexpr uint32_t kTileFull = offsetof(Storage, tile_full);
  static constexpr uint32_t kTileEmpty = offsetof(Storage, tile_empty);
};

}  // namespace longspan
