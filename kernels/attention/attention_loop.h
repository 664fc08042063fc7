// The arithmetic of CPU attention, written once over a small vector class; each
// instruction set's file instantiates it for its own class (Simd), so that nothing compiled for one
// set is linked into another. Internal to kernels/attention.
//
// What makes a row's bits independent of everything but its own data:
//   score    one chain of multiply-adds over d = 0..head_dim-1 (lanes are keys);
//   tile     64 keys at absolute multiples of 64: maximum, weights, lane-wise sums, rescale by
//   2^(m_old - m); output   one chain over the row's own keys in ascending order (lanes are d);
//   masked keys are left out; part     512 keys at absolute multiples of 512, started afresh; parts
//   merge in index order.
// The number of rows worked on together, who works on them and the layout of blocks enter nowhere.
#pragma once

#include <cstdint>

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
  static constexpr int kVectors = Simd::kMicroVectors;  // vectors of a register block
  static constexpr float kInf = __builtin_inff();
  static constexpr float kLog2E = 1.44269504088896341f;
  static constexpr float kLn2 = 0.69314718055994531f;
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
    ClearTotal(o_total, padded);
    for (int part = 0; part < num_parts; ++part) {
      Merge(partials + part * part_stride, o_total, padded);
    }
    WriteRow(params, o_total, token, q_head);
  }

 private:
  struct Half {
    uint16_t bits;
  };
  struct BFloat {
    uint16_t bits;
  };

  // Where the keys and values of a tile lie, one address per key.
  struct RowAddresses {
    const void** k;
    const void** v;
  };

  // What is known about an item; all but the addresses stays the same.
  struct Item {
    const AttentionTask& task;
    const AttentionParams& params;
    AttentionScratch scratch;
    int head_dim, padded;
    int num_heads, num_rows;  // KV heads; packed rows of each
    int group;
    int64_t first_token;         // query row of packed row 0 in q and o
    int64_t length;              // keys of the sequence
    int64_t first_position;      // position of query 0 of the sequence
    int64_t key_begin, key_end;  // keys that some row sees
    float score_factor;          // what q is multiplied by when packed
    bool plain;                  // no softcap, no ALiBi: packed scores are base-2 logits already
    RowAddresses now = {};       // of the tile that is worked on
    RowAddresses next = {};      // of the one after it
    bool has_next = false;

    RowAddresses rows(int64_t turn) const {
      return {scratch.k_rows + turn * kTile, scratch.v_rows + turn * kTile};
    }
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

  // ---- masks
  // -------------------------------------------------------------------------------------

  // Keys that packed row r sees, cut to [tile_begin, tile_begin + kTile) and counted from there.
  struct Seen {
    int begin, end;
  };
  static Seen SeenInTile(const Item& item, int row, int64_t tile_begin) {
    const int64_t position = Position(item, row);
    int64_t begin = 0;
    int64_t end = item.length;
    if (item.params.causal && position + 1 < end) end = position + 1;
    if (item.params.window_right >= 0 && position + item.params.window_right + 1 < end) {
      end = position + item.params.window_right + 1;
    }
    if (item.params.window_left >= 0 && position - item.params.window_left > 0) {
      begin = position - item.params.window_left;
    }
    begin -= tile_begin;
    end -= tile_begin;
    if (begin < 0) begin = 0;
    if (end > kTile) end = kTile;
    if (end < begin) return {0, 0};
    return {static_cast<int>(begin), static_cast<int>(end)};
  }
  static int64_t Position(const Item& item, int row) {
    return item.first_position + (item.task.span.row_begin + row) / item.group;
  }
  static int32_t QueryHead(const Item& item, int head, int row) {
    return (item.task.span.head_begin + head) * item.group +
           (item.task.span.row_begin + row) % item.group;
  }
  static int64_t QueryToken(const Item& item, int row) {
    return item.first_token + (item.task.span.row_begin + row) / item.group;
  }

  // ---- an item
  // -----------------------------------------------------------------------------------

  template <typename KvT>
  static void AttendTyped(const AttentionTask& task) {
    const AttentionParams& params = *task.params;
    const DecodeSpan& span = task.span;
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
    const int partial = PartialFloats(item.head_dim);
    PackQueries(item);
    for (int row = 0; row < all_rows; ++row) {
      ClearTotal(item.scratch.o_total + int64_t{row} * partial, item.padded);
    }
    int64_t begin = int64_t{span.part_begin} * kAttentionPartTokens;
    int64_t end = int64_t{span.part_end} * kAttentionPartTokens;
    if (begin < item.key_begin) begin = item.key_begin / kTile * kTile;
    if (end > item.key_end) end = item.key_end;
    float* slots = task.slots;
    bool part_is_open = false;
    if (begin < end) {
      FindRows<KvT>(item, 0, begin, item.rows(begin / kTile * item.num_heads & 1));
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
        if (item.has_next) FindRows<KvT>(item, next_head, next_tile, item.next);
        ProcessTile<KvT>(item, head, tile);
      }
      if ((tile + kTile) % kAttentionPartTokens != 0 && tile + kTile < end) continue;
      part_is_open = false;
      for (int row = 0; row < all_rows; ++row) {
        ClosePart(item, row);
        if (slots == nullptr) {
          MergeState(item, row);
        } else {
          StoreState(item, row, slots);
          slots += partial;
        }
      }
    }
    if (task.slots != nullptr) return;
    for (int head = 0; head < item.num_heads; ++head) {
      for (int row = 0; row < item.num_rows; ++row) {
        WriteRow(params, item.scratch.o_total + int64_t{head * item.num_rows + row} * partial,
                 QueryToken(item, row), QueryHead(item, head, row));
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
                        QueryToken(item, row) * params.q_token_stride +
                        int64_t{QueryHead(item, head, row)} * params.q_head_stride;
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
  // ------------------------------------------------------------------------------------

  // Keys of a tile that some row of the item sees, counted from the tile's first.
  struct KeysInTile {
    int first, end;
  };
  static KeysInTile SeenByAny(const Item& item, int64_t tile) {
    return {tile < item.key_begin ? static_cast<int>(item.key_begin - tile) : 0,
            tile + kTile > item.key_end ? static_cast<int>(item.key_end - tile) : kTile};
  }

  template <typename KvT>
  static void ProcessTile(const Item& item, int head, int64_t tile) {
    // Rows are ordered by position, so the ones that see something of this tile are neighbours.
    int begin = 0;
    int end = item.num_rows;
    while (begin < end && IsEmpty(SeenInTile(item, begin, tile))) ++begin;
    while (end > begin && IsEmpty(SeenInTile(item, end - 1, tile))) --end;
    if (begin == end) return;
    const KeysInTile keys = SeenByAny(item, tile);
    // The first row sees the least far, the last begins latest: when both see all, all do.
    const bool whole =
        SeesAll(SeenInTile(item, 0, tile)) && SeesAll(SeenInTile(item, item.num_rows - 1, tile));
    const int row0 = head * item.num_rows;
    ConvertKeys<KvT>(item);
    const int row_bytes = item.head_dim * static_cast<int>(sizeof(KvT));
    Ahead ahead;
    if (item.has_next) ahead = {item.next.k, row_bytes};
    for (int row = begin; row < end; row += kRows) {
      Scores(item, row0 + row, end - row < kRows ? end - row : kRows, ahead);
      ahead = {};
    }
    for (int row = begin; row < end; ++row) {
      Maximum(item, head, row, tile, whole ? Seen{0, kTile} : SeenInTile(item, row, tile));
    }
    for (int row = begin; row < end; ++row) Weights(item, row0 + row);
    ConvertValues<KvT>(item, keys);
    if (item.has_next) ahead = {item.next.v, row_bytes};
    for (int row = begin; row < end; row += kRows) {
      const int count = end - row < kRows ? end - row : kRows;
      if (whole) {
        ValueRange(item, row0 + row, count, 0, kTile / kPack, item.scratch.alpha + row0 + row,
                   ahead);
      } else {
        Values(item, head, row, count, tile, ahead);
      }
      ahead = {};
    }
  }
  // The same in lanes of kPack keys. A masked key that shares a lane with a visible one has weight
  // 0.
  static Seen Packed(Seen seen) { return {seen.begin / kPack, (seen.end + kPack - 1) / kPack}; }
  static bool SeesAll(Seen seen) { return seen.begin == 0 && seen.end == kTile; }
  static bool IsEmpty(Seen seen) { return seen.begin >= seen.end; }

  // Addresses of the tile's keys and values. Keys that no row sees get a row of zeros, and neither
  // their slots nor their blocks' table entries are read.
  template <typename KvT>
  static void FindRows(const Item& item, int head, int64_t tile, RowAddresses rows) {
    const auto [first_key, end_key] = SeenByAny(item, tile);
    alignas(64) static constexpr float kZeros[kAttentionMaxHeadDim] = {};
    const AttentionParams& params = item.params;
    const int32_t* table =
        params.block_table + int64_t{item.task.span.seq} * params.block_table_stride;
    const int64_t kv_head = item.task.span.head_begin + head;
    const KvT* k = static_cast<const KvT*>(params.k) + kv_head * params.k_head_stride;
    const KvT* v = static_cast<const KvT*>(params.v) + kv_head * params.v_head_stride;
    for (int key = 0; key < first_key; ++key) {
      rows.k[key] = rows.v[key] = kZeros;
    }
    int64_t block = (tile + first_key) / params.block_size;
    int offset = static_cast<int>((tile + first_key) % params.block_size);
    for (int key = first_key; key < end_key; ++block, offset = 0) {
      const int64_t id = table[block];
      const KvT* k_row = k + id * params.k_block_stride + offset * params.k_token_stride;
      const KvT* v_row = v + id * params.v_block_stride + offset * params.v_token_stride;
      int run = params.block_size - offset;
      if (run > end_key - key) run = end_key - key;
      for (int i = 0; i < run; ++i, ++key) {
        rows.k[key] = k_row;
        rows.v[key] = v_row;
        k_row += params.k_token_stride;
        v_row += params.v_token_stride;
      }
    }
    for (int key = end_key; key < kTile; ++key) {
      rows.k[key] = rows.v[key] = kZeros;
    }
  }

  // Rows of the next tile to ask for while this one is worked on: blocks lie anywhere in memory, so
  // the processor cannot guess what comes next. Spread over the arithmetic, since only so many
  // requests can be open at once.
  struct Ahead {
    const void* const* rows = nullptr;  // [kTile]; null: nothing to ask for
    int bytes = 0;                      // of a row
  };
  // (Not inlined, it would count as a function without effect and its calls be dropped.)
  static inline __attribute__((always_inline)) void Fetch(Ahead ahead, int key) {
    const char* row = static_cast<const char*>(ahead.rows[key]);
    for (int byte = 0; byte < ahead.bytes; byte += 64) __builtin_prefetch(row + byte, 0, 2);
  }

  template <typename KvT>
  static void ConvertKeys(const Item& item) {
    for (int key = 0; key < kTile; key += kLanes) {
      const void* const* rows = item.now.k + key;

      if constexpr (sizeof(KvT) == 4) {
        Simd::TransposeFloat(rows, item.head_dim, item.scratch.k + key);
      } else if constexpr (__is_same(KvT, Half)) {
        Simd::TransposeHalf(rows, item.head_dim, item.scratch.k + key);
      } else {
        Simd::TransposeBFloat(rows, item.head_dim, item.scratch.k + key);
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

  static void Scores(const Item& item, int row, int count, Ahead ahead) {
    const float* q = item.scratch.q + int64_t{row} * item.padded;
    float* s = item.scratch.s + int64_t{row} * kTile;
    Dispatch<kRows>(count, [&]<int kCount>() {
      for (int key = 0; key < kTile; key += kVectors * kLanes) {
        if (ahead.rows != nullptr) {
          ScoreBlock<kCount, true>(q, item.padded, item.scratch.k + key, item.head_dim, s + key,
                                   ahead);
          ahead = {};
        } else {
          ScoreBlock<kCount, false>(q, item.padded, item.scratch.k + key, item.head_dim, s + key,
                                    ahead);
        }
      }
    });
  }

  template <int kCount, bool kAhead>
  static void ScoreBlock(const float* q, int q_stride, const float* k, int head_dim, float* s,
                         Ahead ahead) {
    F sum[kCount][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Simd::Zero();
    }
    for (int d = 0; d < head_dim; ++d) {
      if constexpr (kAhead) {
        for (int key = d; key < kTile; key += head_dim) Fetch(ahead, key);
      }
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

  // Scores of one row to base-2 logits, masked ones to -inf; the running maximum is brought up to
  // date. A pass of its own: its long chain of dependent steps overlaps with those of other rows.
  static void Maximum(const Item& item, int head, int row, int64_t tile, Seen seen) {
    const int local = head * item.num_rows + row;
    if (IsEmpty(seen)) return;
    float* s = item.scratch.s + int64_t{local} * kTile;
    F x[kTileVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) x[v] = Simd::Load(s + v * kLanes);
    const bool masked = !SeesAll(seen);
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
    const int32_t q_head = QueryHead(item, head, row);
    const bool alibi = item.params.alibi_slopes != nullptr;
    const F slope = Simd::Set(alibi ? item.params.alibi_slopes[q_head] * kLog2E : 0.0f);
    const F start = Simd::Set(static_cast<float>(tile - Position(item, row)));
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

  // Adds weights x values to the outputs of `count` rows. Where the rows see different keys, the
  // shared stretch is done together and the borders row by row; each row's chain stays ascending.
  static void Values(const Item& item, int head, int row, int count, int64_t tile, Ahead ahead) {
    const int local = head * item.num_rows + row;
    Seen seen[kRows];
    int begin = 0;
    int end = kTile / kPack;
    bool same = true;
    for (int r = 0; r < count; ++r) {
      seen[r] = Packed(SeenInTile(item, row + r, tile));
      if (seen[r].begin > begin) begin = seen[r].begin;
      if (seen[r].end < end) end = seen[r].end;
      same &= seen[r].begin == seen[0].begin && seen[r].end == seen[0].end;
    }
    const float* alpha = item.scratch.alpha + local;
    if (same) {
      ValueRange(item, local, count, begin, end, alpha, ahead);
      return;
    }
    static constexpr float kOnes[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    static_assert(kRows <= 8);
    if (begin >= end) {
      for (int r = 0; r < count; ++r) {
        if (!IsEmpty(seen[r])) {
          ValueRange(item, local + r, 1, seen[r].begin, seen[r].end, alpha + r);
        }
      }
      return;
    }
    for (int r = 0; r < count; ++r) {
      ValueRange(item, local + r, 1, seen[r].begin, begin, alpha + r);
    }
    ValueRange(item, local, count, begin, end, kOnes);
    for (int r = 0; r < count; ++r) {
      if (end < seen[r].end) ValueRange(item, local + r, 1, end, seen[r].end, kOnes);
    }
  }

  static void ValueRange(const Item& item, int local, int count, int begin, int end,
                         const float* alpha, Ahead ahead = {}) {
    const float* p = item.scratch.s + int64_t{local} * kTile;
    float* o = item.scratch.o + int64_t{local} * item.padded;
    Dispatch<kRows>(count, [&]<int kCount>() {
      int d = 0;
      for (; d + kVectors * kLanes <= item.padded; d += kVectors * kLanes) {
        if (ahead.rows != nullptr) {
          ValueBlock<kCount, kVectors, true>(p, item.scratch.v + d, item.padded, begin, end, alpha,
                                             o + d, ahead);
          ahead = {};
        } else {
          ValueBlock<kCount, kVectors, false>(p, item.scratch.v + d, item.padded, begin, end, alpha,
                                              o + d, ahead);
        }
      }
      const int rest = (item.padded - d) / kLanes;
      Dispatch<kVectors>(rest, [&]<int kRest>() {
        ValueBlock<kCount, kRest, false>(p, item.scratch.v + d, item.padded, begin, end, alpha,
                                         o + d, ahead);
      });
    });
  }

  template <int kCount, int kWidth, bool kAhead>
  static void ValueBlock(const float* p, const float* v, int stride, int begin, int end,
                         const float* alpha, float* o, Ahead ahead) {
    F sum[kCount][kWidth];
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      const F factor = Simd::Set(alpha[r]);
#pragma GCC unroll 8
      for (int c = 0; c < kWidth; ++c) {
        sum[r][c] = Simd::Mul(Simd::Load(o + r * stride + c * kLanes), factor);
      }
    }
    v += int64_t{begin} * stride;
    for (int key = begin; key < end; ++key) {
      if constexpr (kAhead) {
        for (int i = 0; i < kPack; ++i) Fetch(ahead, key * kPack + i);
      }
      F value[kWidth];
#pragma GCC unroll 8
      for (int c = 0; c < kWidth; ++c) value[c] = Simd::Load(v + c * kLanes);
      v += stride;
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

  // Calls f<count>() for 1 <= count <= kMax; nothing for 0.
  template <int kMax, typename Body>
  static void Dispatch(int count, Body&& body) {
    if constexpr (kMax > 0) {
      if (count == kMax) return body.template operator()<kMax>();
      Dispatch<kMax - 1>(count, body);
    }
  }

  // ---- parts and the merge rule
  // ------------------------------------------------------------------

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
  static void ClearTotal(float* total, int padded) {
    for (int d = 0; d < padded; d += kLanes) Simd::Store(total + d, Simd::Zero());
    total[padded] = -kInf;
    total[padded + 1] = 0.0f;
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
    MergeRow(item.scratch.o + int64_t{row} * item.padded, item.scratch.m[row],
             item.scratch.l[int64_t{row} * kAttentionLanes],
             item.scratch.o_total + int64_t{row} * PartialFloats(item.head_dim), item.padded);
  }
  static void Merge(const float* partial, float* total, int padded) {
    MergeRow(partial, partial[padded], partial[padded + 1], total, padded);
  }

  // total := total + (o, m, l). l = 0 means that no key was seen; a NaN is never taken for that.
  static void MergeRow(const float* o, float m, float l, float* total, int padded) {
    if (l == 0.0f) return;
    const float total_m = total[padded];
    const float total_l = total[padded + 1];
    if (total_l == 0.0f) {
      for (int d = 0; d < padded; d += kLanes) Simd::Store(total + d, Simd::Load(o + d));
      total[padded] = m;
      total[padded + 1] = l;
      return;
    }
    const float top = m <= total_m ? total_m : m;
    const F old_weight = Simd::Exp2(Simd::Set(total_m - top));
    const F new_weight = Simd::Exp2(Simd::Set(m - top));
    for (int d = 0; d < padded; d += kLanes) {
      const F scaled = Simd::Mul(Simd::Load(total + d), old_weight);
      Simd::Store(total + d, Simd::Fma(Simd::Load(o + d), new_weight, scaled));
    }
    total[padded] = top;
    total[padded + 1] = total_l * Simd::First(old_weight) + l * Simd::First(new_weight);
  }

  // Divides, adds the sink to the denominator, converts, and writes exactly head_dim elements.
  static void WriteRow(const AttentionParams& params, float* total, int64_t token, int32_t q_head) {
    const int padded = PaddedHeadDim(params.head_dim);
    const float m = total[padded];
    const float l = total[padded + 1];
    if (params.lse != nullptr) {
      params.lse[token * params.num_q_heads + q_head] =
          l == 0.0f ? -kInf : (m + __builtin_log2f(l)) * kLn2;
    }
    float denominator = l;
    if (params.sinks != nullptr && l != 0.0f) {
      const float sink = params.sinks[q_head] * kLog2E - m;
      // Beyond 2^127 the sink takes all the weight; below, Exp2 is in range.
      denominator += sink > 127.0f ? kInf : Simd::First(Simd::Exp2(Simd::Set(sink)));
    }
    const F factor = Simd::Set(l == 0.0f ? 0.0f : 1.0f / denominator);
    for (int d = 0; d < padded; d += kLanes) {
      Simd::Store(total + d, Simd::Mul(Simd::Load(total + d), factor));
    }
    const int64_t offset = token * params.o_token_stride + int64_t{q_head} * params.o_head_stride;
    switch (params.q_dtype) {
      case DType::kFloat32:
        __builtin_memcpy(static_cast<float*>(params.o) + offset, total,
                         params.head_dim * sizeof(float));
        break;
      case DType::kFloat16:
        WriteNarrow(total, params.head_dim, static_cast<uint16_t*>(params.o) + offset,
                    Simd::StoreHalf);
        break;
      default:
        WriteNarrow(total, params.head_dim, static_cast<uint16_t*>(params.o) + offset,
                    Simd::StoreBFloat);
        break;
    }
  }
  static void WriteNarrow(const float* from, int count, uint16_t* to, void (*store)(uint16_t*, F)) {
    int d = 0;
    for (; d + kLanes <= count; d += kLanes) store(to + d, Simd::Load(from + d));
    if (d == count) return;
    alignas(64) uint16_t few[kLanes];
    store(few, Simd::Load(from + d));
    for (int i = 0; d < count; ++i, ++d) to[d] = few[i];
  }
};

}  // namespace longspan
