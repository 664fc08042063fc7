// Prefill attention for sm_90a, 16-bit elements, keys and values in blocks or in one piece.
//
// Computes softmax(scale * Q K^T + mask) V of the plan's pieces. Grid: at most one CTA per SM; each
// takes tile after tile (one query head of one piece) from a counter, longest first. Warps 0 and 1
// are producers: they take the tiles and let the copy engine bring queries, keys and values. Each
// consumer is a warpgroup with 64 query rows. It goes through the keys from the last tile to the
// first and, while one product runs, does the exponentials of the one before: QK of tile n and PV
// of tile n + 1 are issued together. Consumers issue in turns, so that one's exponentials fall into
// another's products. Bound by the matrix units; shared memory: sm90_prefill_traits.cuh. Supported:
// what sm90_prefill.h says.
#pragma once

#include <cuda.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/attention/prefill/sm90_prefill_output.cuh"
#include "kernels/attention/prefill/sm90_prefill_params.h"
#include "kernels/attention/prefill/sm90_prefill_producer.cuh"
#include "kernels/attention/prefill/sm90_prefill_softmax.cuh"
#include "kernels/attention/prefill/sm90_prefill_traits.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace longspan {

// A consumer: all tiles of one warpgroup. One function, because ptxas keeps products in flight only
// while it sees where every register of them lives.
template <typename Traits>
__device__ __forceinline__ void Sm90PrefillConsume(const Sm90PrefillArgs& args,
                                                   const CUtensorMap* o_map,
                                                   typename Traits::Storage& storage) {
  using Element = typename Traits::Element;
  constexpr int kKeys = Traits::kKeys;
  constexpr int kScores = kKeys / 8;
  constexpr int kOutputs = Traits::kHeadDim / 8;
  const uint32_t base = ptx::SharedAddress(&storage);
  const int me = __shfl_sync(~0u, threadIdx.x / 128 - 1, 0);
  auto lane = [] { return static_cast<int>(threadIdx.x % 32); };
  auto elected = [] { return threadIdx.x % 128 == 0; };
  // Of the piece: the upper one of this thread's two, which are 8 apart.
  auto row = [] { return static_cast<int>(threadIdx.x / 32 * 16 - 64 + threadIdx.x % 32 / 4); };
  // Registers are short: the parities that come next are bits of one, k and v with a bit per stage.
  constexpr int kQBit = 0, kKBit = 1, kVBit = 3, kTileBit = 5, kSlotBit = 7;
  uint32_t bits = 0;
  auto wait = [&](uint32_t full, int stage, int bit) {
    ptx::MbarrierWait(base + full + 8 * stage, bits >> (bit + stage) & 1);
  };
  auto wait_next = [&](uint32_t full, int stage, int bit) {
    wait(full, stage, bit);
    bits ^= 1u << (bit + stage);
  };
  auto is_over = [&](uint32_t full, int stage, int bit) {
    return ptx::MbarrierTest(base + full + 8 * stage, bits >> (bit + stage) & 1);
  };

  auto begin_turn = [&] { ptx::NamedBarrierSync(kPrefillTurn + me, 256); };
  auto end_turn = [&] {
    ptx::NamedBarrierArrive(kPrefillTurn + (me + 1 == Traits::kConsumers ? 0 : me + 1), 256);
  };
  if (me == Traits::kConsumers - 1) ptx::NamedBarrierArrive(kPrefillTurn, 256);  // 0 goes first
  while (true) {
    wait_next(Traits::kTileFull, bits >> kSlotBit & 1, kTileBit);
    const typename Traits::Tile& tile = storage.tiles[bits >> kSlotBit & 1];
    const Sm90PrefillPiece& piece = tile.piece;
    if (__shfl_sync(~0u, tile.head, 0) < 0) break;
    const int key_begin = __shfl_sync(~0u, piece.key_begin, 0);
    const int key_end = __shfl_sync(~0u, piece.key_end, 0);
    const int first_position = __shfl_sync(~0u, piece.first_position, 0) + 64 * me;
    float o[kOutputs][4], s[kScores][4];
    uint32_t p[kKeys / 16][4];
    Sm90PrefillSoftmax<Traits> softmax;
    softmax.Clear();
    using All = std::integral_constant<int, kKeys>;
    using Half = std::integral_constant<int, 64>;
    bool half = false;  // the tile whose output comes next has weights for its first 64 keys alone
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0.0f;

    // One group: scores of the first keys of a stage.
    auto issue_scores = [&](auto num_keys, int stage) {
      constexpr int kCount = decltype(num_keys)::value;
      auto& sums = reinterpret_cast<float(&)[kCount / 8][4]>(s);
      const ptx::MatrixDescriptor q_matrix(base + Traits::kQ + me * 64 * 128, 16);
      const ptx::MatrixDescriptor k_matrix(base + Traits::kK + stage * Traits::kKeyBytes, 16);
#pragma unroll
      for (int step = 0; step < Traits::kHeadDim / 16; ++step) {
        const uint32_t column = step / 4, byte = step % 4 * 32;
        ptx::Wgmma<Element, kCount>::Multiply(
            sums, q_matrix.At(column * Traits::kQueryColumnBytes + byte),
            k_matrix.At(column * Traits::kKeyColumnBytes + byte), step != 0);
      }
      ptx::WgmmaCommit();
    };
    // One group: weights times the values of the first keys of a stage.
    auto issue_output = [&](auto num_keys, int stage) {
      const ptx::MatrixDescriptor v_matrix(base + Traits::kV + stage * Traits::kKeyBytes,
                                           Traits::kKeyColumnBytes);
#pragma unroll
      for (int step = 0; step < decltype(num_keys)::value / 16; ++step) {
        ptx::Wgmma<Element, Traits::kHeadDim>::AddTransposed(o, p[step],
                                                             v_matrix.At(step * 16 * 128));
      }
      ptx::WgmmaCommit();
    };
    auto mask = [&](int n) { softmax.Mask(s, n * kKeys, args, piece, row(), lane() % 4); };
    // A weight of 0 does not undo a NaN: values of tile n that no row may see become zeros. All
    // consumers call it, none inside its turn. The stage's phase is waited for, not used up.
    auto clear_unseen_values = [&](int n, int stage) {
      const int begin = max(0, key_begin - n * kKeys), end = min(kKeys, key_end - n * kKeys);
      if (begin == 0 && end == kKeys) return;
      wait(Traits::kVFull, stage, kVBit);
      constexpr int kChunks = 8 * Traits::kColumns;  // of 16 bytes, of a key
      const int unseen = begin + kKeys - end;
      for (int i = threadIdx.x - 128; i < unseen * kChunks; i += Traits::kConsumerThreads) {
        const int j = i / kChunks;
        const int key = j < begin ? j : j - begin + end;
        const int chunk = i % kChunks;
        *reinterpret_cast<uint4*>(storage.v[stage] + chunk / 8 * Traits::kKeyColumnBytes +
                                  key * 128 + chunk % 8 * 16) = make_uint4(0, 0, 0, 0);
      }
      ptx::FenceProxyAsyncShared();
      ptx::NamedBarrierSync(kPrefillEveryone, Traits::kConsumerThreads);
    };
    // Maxima and first exponentials of the scores that a product left.
    auto begin_softmax = [&] {
      softmax.NewMaximum(s, 0, args.scale_log2);
      softmax.NewMaximum(s, 1, args.scale_log2);
      softmax.Begin(s, args.scale_log2);
    };
    // Scores of tile n (in that stage) and output of tile n + 1 (in the other), whose weights are
    // for its first 64 keys alone if `halved`.
    auto step = [&](auto masked, auto halved, int stage, int n) {
      const int other = stage ^ 1;
      const bool has_values = is_over(Traits::kVFull, other, kVBit);
      wait_next(Traits::kKFull, stage, kKBit);
      begin_turn();
      ptx::WgmmaFence();
      issue_scores(All{}, stage);
      if (!has_values) wait(Traits::kVFull, other, kVBit);
      bits ^= 1u << (kVBit + other);
      ptx::WgmmaFence();
      if constexpr (decltype(halved)::value) {
        issue_output(Half{}, other);
      } else {
        issue_output(All{}, other);
      }
      end_turn();
      ptx::WgmmaWait<1>();
      ptx::WgmmaSettle(s);
      if (elected()) ptx::MbarrierArrive(base + Traits::kKEmpty + 8 * stage);
      if constexpr (decltype(masked)::value) mask(n);
      begin_softmax();
      // The compiler would move the wait before these exponentials or behind the next ones; a store
      // that needs them holds it here, where the product has had time.
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(
                       base + static_cast<uint32_t>(offsetof(typename Traits::Storage, order)) -
                       512 + 4 * threadIdx.x),
                   "f"(softmax.tile_sum[0] + softmax.factor[1])
                   : "memory");
      ptx::WgmmaWait<0>();
      ptx::WgmmaSettle(o);
      ptx::WgmmaSettle(p);
      if (elected()) ptx::MbarrierArrive(base + Traits::kVEmpty + 8 * other);
      softmax.template Finish<true>(s, o, p, args.scale_log2);
    };

    if (key_begin < key_end) {
      const int first = key_begin / kKeys;
      int n = (key_end - 1) / kKeys;
      // Tiles in [plain_begin, plain_end) need no mask for any row of this consumer.
      int plain_end = __shfl_sync(~0u, piece.length, 0) / kKeys;
      if (args.causal) plain_end = min(plain_end, max(0, first_position + 1) / kKeys);
      int plain_begin = first;
      if (args.window_left >= 0) {
        const int seen_by_all = max(0, first_position + 63 - args.window_left);
        plain_begin = max(first, (seen_by_all + kKeys - 1) / kKeys);
      }
      // Stages start at 0 with every tile. The first scores have no output beside them.
      wait_next(Traits::kQFull, 0, kQBit);
      wait_next(Traits::kKFull, 0, kKBit);
      // On the diagonal the first rows see the first half of a tile at most.
      half = kKeys == 128 && args.causal && first_position + 63 < n * kKeys + kKeys / 2;
      begin_turn();
      if (half) {
        ptx::WgmmaFence();
        issue_scores(Half{}, 0);
        end_turn();
        ptx::WgmmaWait<0>();
        ptx::WgmmaSettle(s);
        softmax.HideUpperHalf(s);
      } else {
        ptx::WgmmaFence();
        issue_scores(All{}, 0);
        end_turn();
        ptx::WgmmaWait<0>();
        ptx::WgmmaSettle(s);
      }
      if (elected()) ptx::MbarrierArrive(base + Traits::kKEmpty);
      if (n >= plain_end || n < plain_begin) mask(n);
      begin_softmax();
      softmax.template Finish<false>(s, o, p, args.scale_log2);
      clear_unseen_values(n, 0);
      int stage = 1;
      --n;
      if (half && n >= first) {
        step(std::true_type{}, std::true_type{}, stage, n);
        half = false;
        --n;
        stage ^= 1;
      }
      auto steps_down_to = [&](auto masked, int last) {
#pragma unroll 1
        for (; n >= last; --n, stage ^= 1) step(masked, std::false_type{}, stage, n);
      };
      steps_down_to(std::true_type{}, max(first, plain_end));
      steps_down_to(std::false_type{}, max(first, plain_begin));
      if (args.window_left >= 0) steps_down_to(std::true_type{}, first);
      if (elected()) ptx::MbarrierArrive(base + Traits::kQEmpty);
      const int last_stage = stage ^ 1;
      if (key_begin % kKeys != 0) clear_unseen_values(first, last_stage);
      wait_next(Traits::kVFull, last_stage, kVBit);
      if (half) {
        ptx::WgmmaFence();
        issue_output(Half{}, last_stage);
      } else {
        ptx::WgmmaFence();
        issue_output(All{}, last_stage);
      }
      softmax.SumOfRow();
      ptx::WgmmaWait<0>();
      ptx::WgmmaSettle(o);
      if (elected()) ptx::MbarrierArrive(base + Traits::kVEmpty + 8 * last_stage);
    }
    Sm90PrefillOutput<Traits>{args, o_map, storage, tile, me}.Write(softmax, o, row());
    __syncwarp();
    if (lane() == 0) ptx::MbarrierArrive(base + Traits::kTileEmpty + 8 * (bits >> kSlotBit & 1));
    bits ^= 1u << kSlotBit;
  }
  if (elected()) ptx::TmaStoreWait();
  if (me == 0) ptx::NamedBarrierSync(kPrefillTurn, 256);  // the turn nobody takes
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    Sm90PrefillKernel(const __grid_constant__ Sm90PrefillArgs args,
                      const __grid_constant__ CUtensorMap q_map,
                      const __grid_constant__ CUtensorMap k_map,
                      const __grid_constant__ CUtensorMap v_map,
                      const __grid_constant__ CUtensorMap o_map) {
  extern __shared__ uint8_t raw[];
  // By an offset, so that the compiler still knows it for shared memory.
  auto& storage =
      *reinterpret_cast<typename Traits::Storage*>(raw + (-ptx::SharedAddress(raw) & 1023));
  if (threadIdx.x == 0) {
    auto init = [](uint64_t* barrier, uint32_t arrivals) {
      ptx::MbarrierInit(ptx::SharedAddress(barrier), arrivals);
    };
    init(&storage.q_full, 1);
    init(&storage.q_empty, Traits::kConsumers);
    for (int i = 0; i < Traits::kStages; ++i) {
      init(&storage.k_full[i], 1);
      init(&storage.k_empty[i], Traits::kConsumers);
      init(&storage.v_full[i], 1);
      init(&storage.v_empty[i], Traits::kConsumers);
    }
    for (int i = 0; i < Traits::kTileSlots; ++i) {
      init(&storage.tile_full[i], 1);
      init(&storage.tile_empty[i], Traits::kConsumerThreads / 32 + 1);  // and the values' warp
    }
    ptx::FenceMbarrierInit();
  }
  __syncthreads();
  if (__shfl_sync(~0u, threadIdx.x / 128, 0) == 0) {
    ptx::GiveRegisters<Traits::kProducerRegisters>();
    Sm90PrefillProducer<Traits> producer(args, &q_map, &k_map, &v_map, storage);
    if (threadIdx.x < 32) {
      producer.Run();
    } else if (threadIdx.x < 64) {
      producer.RunValues();
    }
    return;
  }
  ptx::TakeRegisters<Traits::kConsumerRegisters>();
  Sm90PrefillConsume<Traits>(args, &o_map, storage);
}

}  // namespace longspan
