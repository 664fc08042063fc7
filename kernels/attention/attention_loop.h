// The arithmetic of CPU attention, written once over a small vector class; each
// instruction set's file instantiates it for its own class (Simd), so that nothing compiled for one
// set is linked into another. Internal to kernels/attention.
//
// What makes a row's bits independent of everything but its own data:
// - score: one chain of multiply-adds over d = 0..head_dim-1 (lanes are keys)
// - tile: 64 keys at absolute multiples of 64; maximum, weights, lane-wise sums, rescaling by
//   2^(m_old - m)
// - output: one chain over the row's own keys in ascending order (lanes are d), masked ones left
// out
// - part: 512 keys at absolute multiples of 512, started afresh; parts merge in index order
// The number of rows worked on together, who works on them and the layout of blocks enter nowhere.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/attention/attention_item.h"
#include "kernels/attention/attention_merge.h"
#include "kernels/attention/attention_tiling.h"

namespace longspan {

template <typename Simd>
class AttentionLoop {
 public:
  using F = typename Simd::F;
  static constexpr int kLanes = Simd::kLanes;
  static constexpr int kTile = kAttentionTileTokens;
  static constexpr int kTileVectors = kTile / kLanes;
  static constexpr int kRows = Simd::kMicroRows;  // rows of a register block
  static constexpr int kPack = Simd::kPack;  // keys side by side in a lane of weights or values
  static constexpr int kVectors = Simd::kMicroVectors;   // vectors of a register block
  static constexpr int kKeyVectors = Simd::kKeyVectors;  // of keys transposed in registers
  static constexpr float kInf = __builtin_inff();
  static constexpr float kLog2E = 1.44269504088896341f;
  static_assert(kTileVectors % kVectors == 0);

  static void Attend(const AttentionTask& task) {
    switch (task.params->kv_dtype) {
      case DType::kFloat32:
        if constexpr (kPack == 1) return AttendTyped<float>(task);
        return;  // float keys are never rounded: the driver picks another table
      case DType::kFloat16:
        return AttendTyped<Half>(task);
      default:
        return AttendTyped<BFloat>(task);
    }
  }

  static void Combine(const AttentionParams& params, const float* partials, int64_t part_stride,
                      int num_parts, float* o_total, int64_t token, int32_t q_head) {
    const int padded = PaddedHeadDim(params.head_dim);
    Merging::ClearTotal(o_total, padded);
    for (int part = 0; part < num_parts; ++part) {
      Merging::Merge(partials + part * part_stride, o_total, padded);
    }
    Merging::WriteRow(params, o_total, token, q_head);
  }

 private:
  using Item = AttentionItem<Simd>;
  using Merging = AttentionMerge<Simd>;
  using Ahead = AttentionAhead<Simd>;
  using Seen = typename Item::Seen;
  using KeysInTile = typename Item::KeysInTile;
  struct Half {
    uint16_t bits;
  };
  struct BFloat {
    uint16_t bits;
  };

  template <typename T>
  static F LoadAs(const T* from) {
    if constexpr (sizeof(T) == 4) {
      return Simd::Load(reinterpret_cast<const float*>(from));
    } else if constexpr (__is_same(T, Half)) {
      return Simd::LoadHalf(reinterpret_cast<const uint16_t*>(from));
    } else {
      return Simd::LoadBFloat(reinterpret_cast<const uint16_t*>(from));
    }
  }

  // Reads count < kLanes elements and nothing behind them; the other lanes are 0.
  template <typename T>
  static F LoadFew(const T* from, int count) {
    alignas(64) T few[kLanes] = {};
    for (int i = 0; i < count; ++i) few[i] = from[i];
    return LoadAs<T>(few);
  }

  // ---- an item

  template <typename KvT>
  static void AttendTyped(const AttentionTask& task) {
    const AttentionParams& params = *task.params;
    const AttentionSpan& span = task.span;
    const int64_t q_begin = params.cu_seqlens_q[span.seq];
    const int64_t q_end = params.cu_seqlens_q[span.seq + 1];
    const int64_t length = params.seq_lens[span.seq];
    const int group = params.num_q_heads / params.num_kv_heads;
    Item item{.task = task,
              .params = params,
              .scratch = task.scratch,
              .head_dim = params.head_dim,
              .padded = PaddedHeadDim(params.head_dim),
              .num_heads = span.head_end - span.head_begin,
              .num_rows = span.row_end - span.row_begin,
              .group = group,
              .first_token = q_begin,
              .length = length,
              .first_position = length - (q_end - q_begin),
              .key_begin = task.keys.begin,
              .key_end = task.keys.end,
              .score_factor = params.scale * kLog2E,
              .plain = params.softcap <= 0.0f && params.alibi_slopes == nullptr};
    if (params.softcap > 0.0f) {
      item.score_factor = params.scale / params.softcap;
    }

    const int all_rows = item.num_heads * item.num_rows;
    const int partial_floats = PartialFloats(item.head_dim);
    PackQueries(item);
    for (int row = 0; row < all_rows; ++row) {
      Merging::ClearTotal(item.scratch.o_total + int64_t{row} * partial_floats, item.padded);
    }
    int64_t begin = int64_t{span.part_begin} * kAttentionPartTokens;
    int64_t end = int64_t{span.part_end} * kAttentionPartTokens;
    if (begin < item.key_begin) begin = item.key_begin / kTile * kTile;
    if (end > item.key_end) end = item.key_end;
    float* partials = task.partials;
    bool part_is_open = false;
    if (begin < end) {
      item.template FindRows<KvT>(0, begin, item.rows(begin / kTile * item.num_heads & 1));
    }
    for (int64_t tile = begin; tile < end; tile += kTile) {
      if (!part_is_open) ClearPart(item, all_rows);
      part_is_open = true;
      for (int head = 0; head < item.num_heads; ++head) {
        // The keys after these are fetched while these are worked on.
        const int64_t next_tile = head + 1 < item.num_heads ? tile : tile + kTile;
        const int next_head = head + 1 < item.num_heads ? head + 1 : 0;
        const int turn = static_cast<int>((tile / kTile * item.num_heads + head) & 1);
        item.now = item.rows(turn);
        item.next = item.rows(turn ^ 1);
        item.has_next = next_tile < end;
        if (item.has_next) item.template FindRows<KvT>(next_head, next_tile, item.next);
        ProcessTile<KvT>(item, head, tile);
      }
      if ((tile + kTile) % kAttentionPartTokens != 0 && tile + kTile < end) continue;
      part_is_open = false;
      for (int row = 0; row < all_rows; ++row) {
        ClosePart(item, row);
        if (partials == nullptr) {
          MergeState(item, row);
        } else {
          StoreState(item, row, partials);
          partials += partial_floats;
        }
      }
    }
    if (task.partials != nullptr) return;
    for (int head = 0; head < item.num_heads; ++head) {
      for (int row = 0; row < item.num_rows; ++row) {
        Merging::WriteRow(
            params, item.scratch.o_total + int64_t{head * item.num_rows + row} * partial_floats,
            item.QueryToken(row), item.QueryHead(head, row));
      }
    }
  }

  static void PackQueries(const Item& item) {
    switch (item.params.q_dtype) {
      case DType::kFloat32:
        return PackTyped<float>(item);
      case DType::kFloat16:
        return PackTyped<Half>(item);
      default:
        return PackTyped<BFloat>(item);
    }
  }

  template <typename T>
  static void PackTyped(const Item& item) {
    const AttentionParams& params = item.params;
    const F factor = Simd::Set(item.score_factor);
    float* to = item.scratch.q;
    for (int head = 0; head < item.num_heads; ++head) {
      for (int row = 0; row < item.num_rows; ++row, to += item.padded) {
        const T* from = static_cast<const T*>(params.q) +
                        item.QueryToken(row) * params.q_token_stride +
                        int64_t{item.QueryHead(head, row)} * params.q_head_stride;
        int d = 0;
        for (; d + kLanes <= item.head_dim; d += kLanes) {
          Simd::Store(to + d, Simd::Mul(LoadAs<T>(from + d), factor));
        }
        if (d < item.head_dim) {
          Simd::Store(to + d, Simd::Mul(LoadFew<T>(from + d, item.head_dim - d), factor));
        }
      }
    }
  }

  // ---- a tile

  template <typename KvT>
  static void ProcessTile(const Item& item, int head, int64_t tile) {
    // Rows are ordered by position, so the ones that see something of this tile are neighbours.
    int begin = 0;
    int end = item.num_rows;
    while (begin < end && Item::IsEmpty(item.SeenInTile(begin, tile))) ++begin;
    while (end > begin && Item::IsEmpty(item.SeenInTile(end - 1, tile))) --end;
    if (begin == end) return;
    const KeysInTile keys = item.SeenByAny(tile);
    // The first row sees the least far, the last begins latest: when both see all, all do.
    const bool whole = Item::SeesAll(item.SeenInTile(0, tile)) &&
                       Item::SeesAll(item.SeenInTile(item.num_rows - 1, tile));
    const int row0 = head * item.num_rows;
    // Converted once and kept in L1 for many rows; for one register block of rows (decode),
    // straight from the pool through registers. The same products in the same order either way.
    const bool straight = end - begin <= kRows && item.head_dim % kAttentionLanes == 0;
    const int row_bytes = item.head_dim * static_cast<int>(sizeof(KvT));
    Ahead ahead(item, row_bytes);
    if (straight) {
      ScoresFromPool<KvT>(item, row0 + begin, end - begin, ahead);
    } else {
      ConvertKeys<KvT>(item);
      for (int row = begin; row < end; row += kRows) {
        ahead.Fetch(kTile / 2);
        Scores(item, row0 + row, end - row < kRows ? end - row : kRows);
      }
    }
    for (int row = begin; row < end; ++row) {
      ahead.Fetch(straight ? kTile / 8 : 0);
      Maximum(item, head, row, tile, whole ? Seen{0, kTile} : item.SeenInTile(row, tile));
    }
    for (int row = begin; row < end; ++row) {
      ahead.Fetch(straight ? kTile / 8 : 0);
      Weights(item, row0 + row);
    }
    if (straight) {
      AddValues(item, PoolValues<KvT>{item.now.v, &ahead}, head, begin, end, tile, whole);
    } else {
      ConvertValues<KvT>(item, keys);
      AddValues(item, ConvertedValues{item.scratch.v, item.padded}, head, begin, end, tile, whole);
    }
    ahead.FetchAll();
  }
  // The same in lanes of kPack keys. A masked key that shares a lane with a visible one has weight
  // 0.
  static Seen Packed(Seen seen) { return {seen.begin / kPack, (seen.end + kPack - 1) / kPack}; }
  // The vector class's registers of kLanes keys by a few dimensions.
  template <typename KvT>
  using Keys =
      std::conditional_t<std::is_same_v<KvT, float>, typename Simd::FloatKeys,
                         std::conditional_t<std::is_same_v<KvT, Half>, typename Simd::HalfKeys,
                                            typename Simd::BFloatKeys>>;

  template <typename KvT>
  static void ConvertKeys(const Item& item) {
    constexpr int kDims = Keys<KvT>::kDims;
    for (int key = 0; key < kTile; key += kLanes) {
      float* to = item.scratch.k + key;
      for (int d = 0; d < item.head_dim; d += kDims, to += kDims * kTile) {
        const bool all = d + kDims <= item.head_dim;
        Keys<KvT> keys;
        keys.Load(item.now.k + key, d, all);
        ForEach<kDims>([&]<int kDim>() {
          if (kDim < 8 || all) Simd::Store(to + kDim * kTile, keys.template Get<kDim>());
        });
      }
    }
  }

  template <typename KvT>
  static void ConvertValues(const Item& item, KeysInTile keys) {
    if constexpr (kPack == 2) {
      // Values of two neighbouring keys side by side; a key that no row sees has a row of zeros.
      for (int pair = keys.first / 2; pair < (keys.end + 1) / 2; ++pair) {
        const void* const* rows = item.now.v + 2 * pair;
        float* to = item.scratch.v + int64_t{pair} * item.padded;
        if constexpr (__is_same(KvT, Half)) {
          Simd::InterleaveHalf(rows[0], rows[1], item.head_dim, to);
        } else {
          Simd::InterleaveBFloat(rows[0], rows[1], item.head_dim, to);
        }
      }
    } else {
      for (int key = keys.first; key < keys.end; ++key) {
        const KvT* from = static_cast<const KvT*>(item.now.v[key]);
        float* to = item.scratch.v + int64_t{key} * item.padded;
        int d = 0;
        for (; d + kLanes <= item.head_dim; d += kLanes) Simd::Store(to + d, LoadAs<KvT>(from + d));
        if (d < item.head_dim) {
          Simd::Store(to + d, LoadFew<KvT>(from + d, item.head_dim - d));
        }
      }
    }
  }

  static void Scores(const Item& item, int row, int count) {
    const float* q = item.scratch.q + int64_t{row} * item.padded;
    float* s = item.scratch.s + int64_t{row} * kTile;
    Dispatch<kRows>(count, [&]<int kCount>() {
      for (int key = 0; key < kTile; key += kVectors * kLanes) {
        ScoreBlock<kCount>(q, item.padded, item.scratch.k + key, item.head_dim, s + key);
      }
    });
  }

  template <int kCount>
  static void ScoreBlock(const float* q, int q_stride, const float* k, int head_dim, float* s) {
    F sum[kCount][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Simd::Zero();
    }
    for (int d = 0; d < head_dim; ++d) {
      F key[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) key[v] = Simd::Load(k + v * kLanes);
      k += kTile;
#pragma GCC unroll 8
      for (int r = 0; r < kCount; ++r) {
        const F query = Simd::Set(q[r * q_stride + d]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sum[r][v] = Simd::Fma(query, key[v], sum[r][v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) Simd::Store(s + r * kTile + v * kLanes, sum[r][v]);
    }
  }

  // Scores of at most kRows rows without a converted copy of the keys.
  template <typename KvT>
  static void ScoresFromPool(const Item& item, int row, int count, Ahead& ahead) {
    Dispatch<kRows>(count, [&]<int kCount>() { PoolScoreTile<KvT, kCount>(item, row, ahead); });
  }

  template <typename KvT, int kCount>
  static void PoolScoreTile(const Item& item, int row, Ahead& ahead) {
    constexpr int kDims = Keys<KvT>::kDims;
    constexpr int kKeys = kKeyVectors * kLanes;
    constexpr int kLinesPerDim = kKeys * static_cast<int>(sizeof(KvT)) / 64;  // of keys
    static_assert(kTile % kKeys == 0);
    const float* q = item.scratch.q + int64_t{row} * item.padded;
    float* s = item.scratch.s + int64_t{row} * kTile;
    for (int key = 0; key < kTile; key += kKeys) {
      F sum[kCount][kKeyVectors];
#pragma GCC unroll 8
      for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kKeyVectors; ++v) sum[r][v] = Simd::Zero();
      }
      for (int d = 0; d < item.head_dim; d += kDims) {
        Keys<KvT> keys[kKeyVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kKeyVectors; ++v) {
          keys[v].Load(item.now.k + key + v * kLanes, d, true);
        }
        ForEach<kDims>([&]<int kDim>() {
          ahead.Fetch(kLinesPerDim);
          F x[kKeyVectors];
#pragma GCC unroll 8
          for (int v = 0; v < kKeyVectors; ++v) x[v] = keys[v].template Get<kDim>();
#pragma GCC unroll 8
          for (int r = 0; r < kCount; ++r) {
            const F query = Simd::Set(q[r * item.padded + d + kDim]);
#pragma GCC unroll 8
            for (int v = 0; v < kKeyVectors; ++v) sum[r][v] = Simd::Fma(query, x[v], sum[r][v]);
          }
        });
      }
#pragma GCC unroll 8
      for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kKeyVectors; ++v)
          Simd::Store(s + r * kTile + key + v * kLanes, sum[r][v]);
      }
    }
  }

  // Scores of one row to base-2 logits, masked ones to -inf; the running maximum is brought up to
  // date. A pass of its own: its long chain of dependent steps overlaps with those of other rows.
  static void Maximum(const Item& item, int head, int row, int64_t tile, Seen seen) {
    const int local = head * item.num_rows + row;
    if (Item::IsEmpty(seen)) return;
    float* s = item.scratch.s + int64_t{local} * kTile;
    F x[kTileVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) x[v] = Simd::Load(s + v * kLanes);
    const bool masked = !Item::SeesAll(seen);
    if (!item.plain) ApplyScoreOptions(item, head, row, tile, x);
    if (masked) {
      for (int v = 0; v < kTileVectors; ++v) {
        x[v] = Simd::KeepLanes(x[v], seen.begin - v * kLanes, seen.end - v * kLanes);
      }
    }
    if (masked || !item.plain) {
      for (int v = 0; v < kTileVectors; ++v) Simd::Store(s + v * kLanes, x[v]);
    }
    F top = x[0];
#pragma GCC unroll 16
    for (int v = 1; v < kTileVectors; ++v) top = Simd::Max(top, x[v]);
    const float tile_max = Simd::ReduceMax(top);
    const float old_max = item.scratch.m[local];
    const float new_max = tile_max <= old_max ? old_max : tile_max;  // a NaN score wins
    float alpha = 1.0f;
    if (new_max != old_max) {
      alpha = old_max == -kInf ? 0.0f : Simd::First(Simd::Exp2(Simd::Set(old_max - new_max)));
    }
    item.scratch.m[local] = new_max;
    item.scratch.alpha[local] = alpha;
  }

  // Base-2 logits of one row to weights 2^(x - m); the running sum, of weights as they are used, is
  // brought up to date.
  static void Weights(const Item& item, int local) {
    float* s = item.scratch.s + int64_t{local} * kTile;
    const float top = item.scratch.m[local];
    const F shift = Simd::Set(top == -kInf ? 0.0f : top);
    F x[kTileVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) {
      x[v] = Simd::Exp2(Simd::Sub(Simd::Load(s + v * kLanes), shift));
    }
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) x[v] = Simd::StoreWeights(s, v * kLanes, x[v]);
    // The sum is kept in kAttentionLanes lanes whatever the vector's width.
    float* l = item.scratch.l + int64_t{local} * kAttentionLanes;
    constexpr int kFold = kAttentionLanes / kLanes;
    const F factor = Simd::Set(item.scratch.alpha[local]);
#pragma GCC unroll 8
    for (int lane = 0; lane < kFold; ++lane) {
      F sum = x[lane];
#pragma GCC unroll 8
      for (int v = lane + kFold; v < kTileVectors; v += kFold) sum = Simd::Add(sum, x[v]);
      Simd::Store(l + lane * kLanes, Simd::Fma(Simd::Load(l + lane * kLanes), factor, sum));
    }
  }

  // Softcap and ALiBi: x becomes the base-2 logit.
  static void ApplyScoreOptions(const Item& item, int head, int row, int64_t tile, F* x) {
    const float softcap = item.params.softcap;
    const int32_t q_head = item.QueryHead(head, row);
    const bool alibi = item.params.alibi_slopes != nullptr;
    const F slope = Simd::Set(alibi ? item.params.alibi_slopes[q_head] * kLog2E : 0.0f);
    const F start = Simd::Set(static_cast<float>(tile - item.Position(row)));
    for (int v = 0; v < kTileVectors; ++v) {
      if (softcap > 0.0f) x[v] = Simd::Mul(Tanh(x[v]), Simd::Set(softcap * kLog2E));
      if (alibi) {
        const F distance = Simd::Abs(Simd::Add(start, Simd::Iota(v * kLanes)));
        x[v] = Simd::Sub(x[v], Simd::Mul(slope, distance));
      }
    }
  }

  // 1 - 2 / (1 + e^(2x)): absolute error about 1e-7; NaN stays NaN.
  static F Tanh(F x) {
    x = Simd::Max(Simd::Set(-15.0f), Simd::Min(Simd::Set(15.0f), x));
    const F e = Simd::Exp2(Simd::Mul(x, Simd::Set(2.0f * kLog2E)));
    const F one = Simd::Set(1.0f);
    return Simd::Sub(one, Simd::Div(Simd::Set(2.0f), Simd::Add(one, e)));
  }

  // kLanes dimensions from d of kPack neighbouring keys: from the converted copy, or from the pool.
  struct ConvertedValues {
    const float* v;
    int stride;
    void Fetch(int /*pack*/) const {}
    F Load(int pack, int d) const { return Simd::Load(v + int64_t{pack} * stride + d); }
  };
  template <typename KvT>
  struct PoolValues {
    const void* const* rows;
    Ahead* ahead;
    // The values of a key are one and a half steps of a pass over 64 dimensions.
    [[gnu::always_inline]] void Fetch(int pack) const {
      constexpr int kScale = static_cast<int>(sizeof(KvT)) / 2;
      ahead->Fetch(kScale * (kPack == 2 ? 3 : 1 + pack % 2));
    }
    F Load(int pack, int d) const {
      if constexpr (kPack == 1) {
        return LoadAs<KvT>(static_cast<const KvT*>(rows[pack]) + d);
      } else if constexpr (__is_same(KvT, Half)) {
        return Simd::LoadPairsHalf(rows[2 * pack], rows[2 * pack + 1], d);
      } else {
        return Simd::LoadPairsBFloat(rows[2 * pack], rows[2 * pack + 1], d);
      }
    }
  };

  // Adds weights x values to the outputs of rows begin..end-1 of a head.
  template <typename Values>
  static void AddValues(const Item& item, Values values, int head, int begin, int end, int64_t tile,
                        bool whole) {
    const int row0 = head * item.num_rows;
    for (int row = begin; row < end; row += kRows) {
      const int count = end - row < kRows ? end - row : kRows;
      if (whole) {
        ValueRange(item, values, row0 + row, count, 0, kTile / kPack,
                   item.scratch.alpha + row0 + row);
      } else {
        ValueBorders(item, values, head, row, count, tile);
      }
    }
  }

  // Where the rows see different keys, the shared stretch is done together and the borders row by
  // row; each row's chain stays ascending.
  template <typename Values>
  static void ValueBorders(const Item& item, Values values, int head, int row, int count,
                           int64_t tile) {
    const int local = head * item.num_rows + row;
    Seen seen[kRows];
    int begin = 0;
    int end = kTile / kPack;
    bool same = true;
    for (int r = 0; r < count; ++r) {
      seen[r] = Packed(item.SeenInTile(row + r, tile));
      if (seen[r].begin > begin) begin = seen[r].begin;
      if (seen[r].end < end) end = seen[r].end;
      same &= seen[r].begin == seen[0].begin && seen[r].end == seen[0].end;
    }
    const float* alpha = item.scratch.alpha + local;
    if (same) {
      ValueRange(item, values, local, count, begin, end, alpha);
      return;
    }
    static constexpr float kOnes[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    static_assert(kRows <= 8);
    if (begin >= end) {
      for (int r = 0; r < count; ++r) {
        if (!Item::IsEmpty(seen[r])) {
          ValueRange(item, values, local + r, 1, seen[r].begin, seen[r].end, alpha + r);
        }
      }
      return;
    }
    for (int r = 0; r < count; ++r) {
      ValueRange(item, values, local + r, 1, seen[r].begin, begin, alpha + r);
    }
    ValueRange(item, values, local, count, begin, end, kOnes);
    for (int r = 0; r < count; ++r) {
      if (end < seen[r].end) ValueRange(item, values, local + r, 1, end, seen[r].end, kOnes);
    }
  }

  template <typename Values>
  static void ValueRange(const Item& item, Values values, int local, int count, int begin, int end,
                         const float* alpha) {
    const float* p = item.scratch.s + int64_t{local} * kTile;
    float* o = item.scratch.o + int64_t{local} * item.padded;
    Dispatch<kRows>(count, [&]<int kCount>() {
      int d = 0;
      for (; d + kVectors * kLanes <= item.padded; d += kVectors * kLanes) {
        ValueBlock<kCount, kVectors>(p, values, d, item.padded, begin, end, alpha, o);
      }
      const int rest = (item.padded - d) / kLanes;
      Dispatch<kVectors>(rest, [&]<int kRest>() {
        ValueBlock<kCount, kRest>(p, values, d, item.padded, begin, end, alpha, o);
      });
    });
  }

  // Dimensions d..d + kWidth * kLanes - 1 of kCount output rows, which lie `stride` apart.
  template <int kCount, int kWidth, typename Values>
  static void ValueBlock(const float* p, Values values, int d, int stride, int begin, int end,
                         const float* alpha, float* o) {
    o += d;
    F sum[kCount][kWidth];
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      const F factor = Simd::Set(alpha[r]);
#pragma GCC unroll 8
      for (int c = 0; c < kWidth; ++c) {
        sum[r][c] = Simd::Mul(Simd::Load(o + r * stride + c * kLanes), factor);
      }
    }
    for (int key = begin; key < end; ++key) {
      values.Fetch(key);
      F value[kWidth];
#pragma GCC unroll 8
      for (int c = 0; c < kWidth; ++c) value[c] = values.Load(key, d + c * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kCount; ++r) {
        const F weight = Simd::Set(p[r * kTile + key]);
#pragma GCC unroll 8
        for (int c = 0; c < kWidth; ++c) sum[r][c] = Simd::Product(weight, value[c], sum[r][c]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kWidth; ++c) Simd::Store(o + r * stride + c * kLanes, sum[r][c]);
    }
  }

  // Calls body<0>() ... body<kCount - 1>().
  template <int kCount, typename Body>
  [[gnu::always_inline]] static void ForEach(Body&& body) {
    [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) __attribute__((always_inline)) {
      (body.template operator()<kIndex>(), ...);
    }
    (std::make_integer_sequence<int, kCount>());
  }

  // Calls f<count>() for 1 <= count <= kMax; nothing for 0.
  template <int kMax, typename Body>
  static void Dispatch(int count, Body&& body) {
    if constexpr (kMax > 0) {
      if (count == kMax) return body.template operator()<kMax>();
      Dispatch<kMax - 1>(count, body);
    }
  }

  // ---- parts and the merge rule

  static void ClearPart(const Item& item, int all_rows) {
    for (int row = 0; row < all_rows; ++row) {
      item.scratch.m[row] = -kInf;
      item.scratch.alpha[row] = 1.0f;
    }
    for (int i = 0; i < all_rows * kAttentionLanes; i += kLanes) {
      Simd::Store(item.scratch.l + i, Simd::Zero());
    }
    for (int64_t i = 0; i < int64_t{all_rows} * item.padded; i += kLanes) {
      Simd::Store(item.scratch.o + i, Simd::Zero());
    }
  }
  // The part's denominator from 16 lanes to one float, by a fixed tree, into lane 0.
  static void ClosePart(const Item& item, int row) {
    float* l = item.scratch.l + int64_t{row} * kAttentionLanes;
    for (int width = kAttentionLanes / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) l[i] += l[i + width];
    }
  }

  static void StoreState(const Item& item, int row, float* partial) {
    const float* o = item.scratch.o + int64_t{row} * item.padded;
    for (int d = 0; d < item.padded; d += kLanes) Simd::Store(partial + d, Simd::Load(o + d));
    partial[item.padded] = item.scratch.m[row];
    partial[item.padded + 1] = item.scratch.l[int64_t{row} * kAttentionLanes];
  }
  static void MergeState(const Item& item, int row) {
    Merging::MergeRow(item.scratch.o + int64_t{row} * item.padded, item.scratch.m[row],
                      item.scratch.l[int64_t{row} * kAttentionLanes],
                      item.scratch.o_total + int64_t{row} * PartialFloats(item.head_dim),
                      item.padded);
  }
};

}  // namespace longspan
