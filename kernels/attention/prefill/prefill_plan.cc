// Lists the blocks sequence by sequence, then sorts them: the last to start are the shortest, so
// that the device's processors end at about the same time.
#include "kernels/attention/prefill/prefill_plan.h"

#include <algorithm>

#include "core/check.h"

namespace longspan {
namespace {

// 64-bit throughout: positions plus windows may leave 32 bits before they are cut to the length.
void SetKeys(const PrefillPlanParams& params, PrefillBlock* block) {
  const int64_t before = int64_t{block->length} - block->q_len;
  const int64_t first = before + block->first_row / params.group;
  const int64_t last = before + (block->first_row + block->num_rows - 1) / params.group;
  int64_t end = block->length;
  if (params.causal) end = std::min(end, last + 1);
  if (params.window_right >= 0) end = std::min(end, last + params.window_right + 1);
  int64_t begin = 0;
  if (params.window_left >= 0) begin = std::max<int64_t>(0, first - params.window_left);
  if (end <= begin) begin = end = 0;
  block->key_begin = static_cast<int32_t>(begin);
  block->key_end = static_cast<int32_t>(end);
}

}  // namespace

int64_t PrefillMaxBlocks(int64_t max_total_q, int64_t max_num_seqs, int32_t group,
                         int32_t block_rows) {
  return max_total_q * group / block_rows + std::min(max_num_seqs, max_total_q);
}

int64_t PlanPrefill(const PrefillPlanParams& params, std::span<PrefillBlock> out) {
  CHECK(params.group > 0 && params.block_rows > 0);
  size_t num = 0;
  for (size_t seq = 0; seq < params.seq_lens.size(); ++seq) {
    const int32_t q_begin = params.cu_seqlens_q[seq];
    const int32_t q_len = params.cu_seqlens_q[seq + 1] - q_begin;
    const int32_t length = params.seq_lens[seq];
    CHECK(q_len >= 0 && int64_t{q_len} * params.group < kPrefillMaxLength && length >= 0 &&
              length <= kPrefillMaxLength,
          "sequence {}: q_len {}, length {}", seq, q_len, length);
    const int32_t rows = q_len * params.group;
    for (int32_t row = 0; row < rows; row += params.block_rows) {
      CHECK(num < out.size(), "room for {} blocks", out.size());
      PrefillBlock& block = out[num++];
      block = {static_cast<int32_t>(seq),
               length,
               q_begin,
               q_len,
               row,
               std::min(params.block_rows, rows - row),
               0,
               0};
      SetKeys(params, &block);
    }
  }
  const auto used = out.first(num);
  std::sort(used.begin(), used.end(), [](const PrefillBlock& a, const PrefillBlock& b) {
    const int32_t tiles_a = PrefillTiles(a), tiles_b = PrefillTiles(b);
    if (tiles_a != tiles_b) return tiles_a > tiles_b;
    return a.table_row != b.table_row ? a.table_row < b.table_row : a.first_row < b.first_row;
  });
  std::fill(out.begin() + static_cast<int64_t>(num), out.end(), PrefillBlock{});
  return static_cast<int64_t>(num);
}

}  // namespace longspan
