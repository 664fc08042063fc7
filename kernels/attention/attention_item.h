// What a worker knows about its span of attention work: which packed rows see which keys, where
// keys and values lie in memory, and which to ask for early. No arithmetic. Templates of the vector
// class (Simd) only so that each instruction set's file has its own copy. Internal to
// kernels/attention.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_tiling.h"

namespace longspan {

// One span; all but the addresses of the tiles stays the same.
template <typename Simd>
struct AttentionItem {
  static constexpr int kTile = kAttentionTileTokens;

  // Where the keys and values of a tile lie, one address per key.
  struct RowAddresses {
    const void** k;
    const void** v;
  };

  // Keys that a packed row sees, cut to a tile and counted from its first.
  struct Seen {
    int begin, end;
  };
  static bool SeesAll(Seen seen) { return seen.begin == 0 && seen.end == kTile; }
  static bool IsEmpty(Seen seen) { return seen.begin >= seen.end; }

  // Keys of a tile that some row of the item sees, counted from the tile's first.
  struct KeysInTile {
    int first, end;
  };

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
    const void** k = scratch.rows + turn * 2 * kTile;
    return {k, k + kTile};
  }

  Seen SeenInTile(int row, int64_t tile_begin) const {
    const int64_t position = Position(row);
    int64_t begin = 0;
    int64_t end = length;
    if (params.causal && position + 1 < end) end = position + 1;
    if (params.window_right >= 0 && position + params.window_right + 1 < end) {
      end = position + params.window_right + 1;
    }
    if (params.window_left >= 0 && position - params.window_left > 0) {
      begin = position - params.window_left;
    }
    begin -= tile_begin;
    end -= tile_begin;
    if (begin < 0) begin = 0;
    if (end > kTile) end = kTile;
    if (end < begin) return {0, 0};
    return {static_cast<int>(begin), static_cast<int>(end)};
  }
  int64_t Position(int row) const { return first_position + (task.span.row_begin + row) / group; }
  int32_t QueryHead(int head, int row) const {
    return (task.span.head_begin + head) * group + (task.span.row_begin + row) % group;
  }
  int64_t QueryToken(int row) const { return first_token + (task.span.row_begin + row) / group; }

  KeysInTile SeenByAny(int64_t tile) const {
    return {tile < key_begin ? static_cast<int>(key_begin - tile) : 0,
            tile + kTile > key_end ? static_cast<int>(key_end - tile) : kTile};
  }

  // Addresses of the tile's keys and values. Keys that no row sees get a row of zeros, and neither
  // their slots nor their blocks' table entries are read.
  template <typename KvT>
  void FindRows(int head, int64_t tile, RowAddresses rows) const {
    const auto [first_key, end_key] = SeenByAny(tile);
    alignas(64) static constexpr float kZeros[kAttentionMaxHeadDim] = {};
    const int32_t* table = params.block_table + int64_t{task.span.seq} * params.block_table_stride;
    const int64_t kv_head = task.span.head_begin + head;
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
};

// Asks for the rows of the next tile while this one is worked on, keys first, a cache line at a
// time: blocks lie anywhere in memory, so the processor cannot guess what comes next, and it
// drops requests that come faster than memory answers.
template <typename Simd>
class AttentionAhead {
 public:
  AttentionAhead(const AttentionItem<Simd>& item, int row_bytes)
      : row_(item.next.k),
        end_(item.has_next ? row_ + 2 * kAttentionTileTokens : row_),
        row_bytes_(row_bytes) {}

  // (Not inlined, it would count as a function without effect and its calls be dropped.)
  [[gnu::always_inline]] void Fetch(int lines) {
    for (; lines > 0 && row_ != end_; --lines) {
      __builtin_prefetch(static_cast<const char*>(*row_) + byte_, 0, 2);
      byte_ += 64;
      if (byte_ >= row_bytes_) {
        byte_ = 0;
        ++row_;
      }
    }
  }
  void FetchAll() {
    while (row_ != end_) Fetch(1);
  }

 private:
  const void* const* row_;  // keys of the tile, then its values
  const void* const* end_;
  int row_bytes_;
  int byte_ = 0;  // of *row_ to ask for next
};

}  // namespace longspan
