// Who computes what in decode attention on a GPU: all key tiles of a batch, lined up, cut into one
// range per CTA. A pure host function of the lengths; the kernel and the plan share the small
// functions that count tiles, so that they cannot disagree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace longspan {

// Keys are read in tiles at absolute multiples of this many tokens.
inline constexpr int32_t kGpuDecodeTileTokens = 64;
// Packed query rows (query index * group + head of the group) that one reading of the keys serves.
inline constexpr int32_t kGpuDecodeRows = 16;
// Longer sequences are refused: token arithmetic on the device is 32-bit.
inline constexpr int32_t kGpuDecodeMaxLength = 1 << 30;

// A sequence with query rows, as the kernel needs it.
struct GpuDecodeSequence {
  int32_t table_row;  // row of the block table
  int32_t length;     // cached tokens, this step's own included
  int32_t q_begin;    // first query row in q, o and lse
  int32_t q_len;      // > 0
};

// A *unit* is what shares keys: one KV head and one tile of packed rows of a sequence. Units of a
// sequence are in order head, row tile. A CTA's range is num_tiles tiles from `tile` of `unit` on,
// running on into the following units and sequences.
struct GpuDecodeWork {
  int32_t sequence;  // index into the plan's sequences
  int32_t unit;
  int32_t tile;               // counted from the sequence's first visible tile
  int32_t num_tiles;          // 0: nothing to do
  GpuDecodeSequence first;    // a copy of sequences[sequence]: one read less to wait for
  int32_t first_cta;          // that holds the beginning of the unit this range begins in
  int32_t last_cta_of_first;  // that holds the end of that unit
  int32_t last_cta_of_last;   // that holds the end of the unit this range ends in
  int32_t unused;
};
static_assert(sizeof(GpuDecodeSequence) == 16 && sizeof(GpuDecodeWork) == 48);

// A window that no length reaches, so that token arithmetic stays within 32 bits.
constexpr int32_t GpuDecodeWindow(int32_t window_left) {
  return window_left > kGpuDecodeMaxLength ? kGpuDecodeMaxLength : window_left;
}
// First token that any row of the sequence may see. window_left: -1 (none) or from
// GpuDecodeWindow.
constexpr int32_t GpuDecodeFirstToken(const GpuDecodeSequence& sequence, int32_t window_left) {
  const int32_t first = sequence.length - sequence.q_len - window_left;
  return window_left < 0 || first < 0 ? 0 : first;
}
// Tiles of every unit of the sequence. An empty sequence has one, without keys: it still writes
// its rows.
constexpr int32_t GpuDecodeTiles(const GpuDecodeSequence& sequence, int32_t window_left) {
  const int32_t end = (sequence.length + kGpuDecodeTileTokens - 1) / kGpuDecodeTileTokens;
  const int32_t begin = GpuDecodeFirstToken(sequence, window_left) / kGpuDecodeTileTokens;
  return end > begin ? end - begin : 1;
}
constexpr int32_t GpuDecodeRowTiles(const GpuDecodeSequence& sequence, int32_t group) {
  return (sequence.q_len * group + kGpuDecodeRows - 1) / kGpuDecodeRows;
}

struct GpuDecodePlanParams {
  std::span<const int32_t> cu_seqlens_q;  // [B + 1]
  std::span<const int32_t> seq_lens;      // [B], 0..kGpuDecodeMaxLength
  int32_t num_kv_heads = 0;
  int32_t group = 0;         // query heads per KV head
  int32_t window_left = -1;  // the same as the launch's; -1: open
  int32_t num_ctas = 0;      // the grid; a constant of the device, so that one graph fits all plans
  // Smallest range of a CTA: its tiles, and three more for every unit that begins in it. Smaller
  // ones cost more in merging than they gain.
  int32_t min_range_cost = 4;
};

// What the device gets: num_ctas works, then the sequences. 16-byte aligned.
int64_t GpuDecodePlanBytes(int32_t num_ctas, int64_t max_num_seqs);

// Writes the plan; out holds at least GpuDecodePlanBytes(num_ctas, B). Returns the bytes to copy
// to the device. O(B + num_ctas), no allocation. A unit's cut parts lie in consecutive CTAs, each
// CTA holds parts of at most two units that it does not own alone.
int64_t PlanGpuDecode(const GpuDecodePlanParams& params, std::span<std::byte> out);

}  // namespace longspan
