// How a consumer of the sm_90a prefill kernel writes its 64 rows: whole ones through shared memory
// and the copy engine, the last rows of a sequence from registers.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/attention/prefill/sm90_prefill_params.h"
#include "kernels/attention/prefill/sm90_prefill_softmax.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/ptx/tma.cuh"

namespace longspan {

// Named barriers.
enum Sm90PrefillBarrier : uint32_t {
  kPrefillTurn = 2,      // + consumer: it may issue products
  kPrefillOwn = 5,       // + consumer: all its threads
  kPrefillEveryone = 8,  // all consumers
};

template <typename Traits>
struct Sm90PrefillOutput {
  using Element = typename Traits::Element;
  using Output = float (&)[Traits::kHeadDim / 8][4];
  static constexpr int kOutputs = Traits::kHeadDim / 8;

  const Sm90PrefillArgs& args;
  const CUtensorMap* o_map;
  typename Traits::Storage& storage;
  const typename Traits::Tile& tile;
  int consumer;

  // row: of the piece, the upper of this thread's two.
  __device__ __forceinline__ void Write(const Sm90PrefillSoftmax<Traits>& softmax, Output o,
                                        int row) const {
    const int lane = threadIdx.x % 32;
    const Sm90PrefillPiece& piece = tile.piece;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float factor = softmax.sum[r] == 0.0f ? 0.0f : 1.0f / softmax.sum[r];
#pragma unroll
      for (int j = 0; j < kOutputs; ++j) {
        o[j][2 * r] *= factor;
        o[j][2 * r + 1] *= factor;
      }
      if (lane % 4 == 0 && args.lse != nullptr && row + 8 * r < piece.num_rows) {
        args.lse[(int64_t{piece.q_begin} + row + 8 * r) * args.num_q_heads + tile.head] =
            softmax.LogSum(r, args.scale_log2);
      }
    }
    if constexpr (Traits::kStagesOutput) {
      const int num_rows = __shfl_sync(~0u, piece.num_rows, 0);
      if (64 * consumer + 64 <= num_rows) return WriteByCopyEngine(o);
    }
    WriteFromRegisters(o, row);
  }

 private:
  __device__ __forceinline__ void WriteByCopyEngine(Output o) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    const bool elected = threadIdx.x % 128 == 0;
    const uint32_t staging =
        ptx::SharedAddress(&storage) + Traits::kO + consumer * Traits::kOutputBytes;
    if (elected) ptx::TmaStoreWaitRead();
    ptx::NamedBarrierSync(kPrefillOwn + consumer, 128);
    const uint32_t row = 16 * warp + lane % 16;
#pragma unroll
    for (int j = 0; j < kOutputs; j += 2) {
      const uint32_t column = j / 8, chunk = j % 8 + lane / 16;
      ptx::StoreMatrixX4(staging + column * 64 * 128 + ptx::Swizzle128(row, chunk),
                         Element::Pack(o[j][0], o[j][1]), Element::Pack(o[j][2], o[j][3]),
                         Element::Pack(o[j + 1][0], o[j + 1][1]),
                         Element::Pack(o[j + 1][2], o[j + 1][3]));
    }
    ptx::FenceProxyAsyncShared();
    ptx::NamedBarrierSync(kPrefillOwn + consumer, 128);
    if (elected) {
      ptx::TmaStore5d(o_map, staging, 0, tile.piece.q_begin + 64 * consumer, 0, tile.head, 0);
      ptx::TmaStoreCommit();
    }
  }

  __device__ __forceinline__ void WriteFromRegisters(Output o, int row) const {
    const Sm90PrefillPiece& piece = tile.piece;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + 8 * r >= piece.num_rows) continue;
      uint16_t* to = static_cast<uint16_t*>(args.o) +
                     (int64_t{piece.q_begin} + row + 8 * r) * args.o_token_stride +
                     int64_t{tile.head} * args.o_head_stride + threadIdx.x % 4 * 2;
#pragma unroll
      for (int j = 0; j < kOutputs; ++j) {
        *reinterpret_cast<uint32_t*>(to + 8 * j) = Element::Pack(o[j][2 * r], o[j][2 * r + 1]);
      }
    }
  }
};

}  // namespace longspan
