// Who computes what in prefill attention on a GPU: blocks of packed query rows of a batch, the
// longest first. A pure host function of the lengths; all that a kernel knows of a batch.
#pragma once

#include <cstdint>
#include <span>

namespace longspan {

// Keys are read in tiles at absolute multiples of this many tokens.
inline constexpr int32_t kPrefillTileTokens = 64;
// Longer sequences are refused: token arithmetic on the device is 32-bit.
inline constexpr int32_t kPrefillMaxLength = 1 << 30;

// Packed rows (query index * group + head of the group) [first_row, first_row + num_rows) of every
// KV head of a sequence, and the keys that some of them may see.
struct PrefillBlock {
  int32_t table_row;  // row of the block table
  int32_t length;     // cached tokens, this step's own included
  int32_t q_begin;    // first query row of the sequence in q, o and lse
  int32_t q_len;
  int32_t first_row;
  int32_t num_rows;            // 0: nothing to do
  int32_t key_begin, key_end;  // equal: no row sees a key
};
static_assert(sizeof(PrefillBlock) == 32);

// A window that no length reaches, so that token arithmetic stays within 32 bits.
constexpr int32_t PrefillWindow(int32_t window) {
  return window > kPrefillMaxLength ? kPrefillMaxLength : window;
}
// Tiles that a block reads.
constexpr int32_t PrefillTiles(const PrefillBlock& block) {
  if (block.key_begin == block.key_end) return 0;
  return (block.key_end - 1) / kPrefillTileTokens - block.key_begin / kPrefillTileTokens + 1;
}

struct PrefillPlanParams {
  std::span<const int32_t> cu_seqlens_q;  // [B + 1]
  std::span<const int32_t> seq_lens;      // [B], 0..kPrefillMaxLength
  int32_t group = 0;                      // query heads per KV head
  int32_t block_rows = 0;                 // packed rows that the kernel takes at once
  bool causal = true;                     // masks: the same as the launch's
  int32_t window_left = -1;
  int32_t window_right = -1;
};

// No batch of these limits needs more blocks.
int64_t PrefillMaxBlocks(int64_t max_total_q, int64_t max_num_seqs, int32_t group,
                         int32_t block_rows);

// Writes all of out: the blocks of the batch, those with most tiles first, then empty ones. out has
// room for them. Returns how many are not empty. Allocates nothing.
int64_t PlanPrefill(const PrefillPlanParams& params, std::span<PrefillBlock> out);

}  // namespace longspan
