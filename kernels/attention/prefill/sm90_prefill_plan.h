// Who computes what in prefill attention on a GPU: the query rows of a batch cut into pieces of at
// most a tile's rows, those with most keys first, so that the last ones to run are short. A pure
// host function of the lengths; the kernel takes from it what keys a piece reads.
#pragma once

#include <cstdint>
#include <span>

namespace longspan {

// Longer sequences are refused: token arithmetic on the device is 32-bit.
inline constexpr int32_t kSm90PrefillMaxLength = 1 << 30;

// Neighbouring query rows of one sequence; every query head goes through them.
struct Sm90PrefillPiece {
  int32_t table_row;       // row of the block table
  int32_t key_origin;      // where token 0 lies in its block; not 0 only for keys in one piece
  int32_t q_begin;         // first row in q, o and lse
  int32_t num_rows;        // 1..rows of a tile
  int32_t first_position;  // of its first row; negative where queries outnumber keys
  int32_t length;          // cached tokens of the sequence
  int32_t key_begin;       // keys [key_begin, key_end) are seen by some row; none: equal
  int32_t key_end;
};
static_assert(sizeof(Sm90PrefillPiece) == 32);

struct Sm90PrefillPlanParams {
  std::span<const int32_t> cu_seqlens_q;  // [B + 1]
  std::span<const int32_t> seq_lens;      // [B], 0..kSm90PrefillMaxLength
  // [B + 1]: keys lie one sequence behind the other without blocks (a single block that holds all
  // of them); empty: in blocks.
  std::span<const int32_t> cu_seqlens_k;
  int32_t rows_per_tile = 0;  // of the setup
  bool causal = true;
  int32_t window_left = -1;  // the same as the launch's; -1: open
};

// Pieces that the plan of these query lengths has; 0 when there is no row.
int64_t NumSm90PrefillPieces(std::span<const int32_t> cu_seqlens_q, int32_t rows_per_tile);

// Writes NumSm90PrefillPieces pieces. O(n log n) in pieces, no allocation. Pieces of as many keys
// keep the order of their rows.
void PlanSm90Prefill(const Sm90PrefillPlanParams& params, std::span<Sm90PrefillPiece> out);

}  // namespace longspan
