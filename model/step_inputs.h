// What a step feeds to the decoder, gathered from SchedulerOutput: token ids, positions, slot
// mapping, and the block-table rows and last samples that stay with their slots between steps. Rows
// of a step lie in order of slots, so that block-table rows need no copy.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/ids.h"
#include "model/attention_backend.h"
#include "scheduler/scheduler_output.h"

namespace longspan {

struct StepLimits {
  int32_t max_num_seqs = 0;  // slots
  int32_t max_num_batched_tokens = 0;
  int32_t max_model_len = 0;
  int32_t block_size = 0;
  int32_t num_blocks = 0;
  int32_t vocab_size = 0;
};

// Engine thread only. No allocation after construction. Anything beyond the limits is a broken
// invariant of the scheduler.
class StepInputs {
 public:
  explicit StepInputs(const StepLimits& limits);

  void Release(int32_t slot);
  // Appends new blocks to their rows and lays out the step's tokens.
  void Fill(const SchedulerOutput& output);
  // Becomes the slot's next input token when the scheduler sends fewer ids than it schedules.
  void SetLastSample(int32_t slot, TokenId token) { last_samples_[Index(slot)] = token; }

  std::span<const TokenId> token_ids() const { return token_ids_; }
  std::span<const int32_t> positions() const { return positions_; }
  AttentionBatch attention_batch() const;

  // Where a slot's rows lie: among the step's tokens, and among the rows that get logits.
  int32_t first_token(int32_t slot) const { return cu_seqlens_q_[Index(slot)]; }
  int32_t first_logits_row(int32_t slot) const { return cu_seqlens_q_last_[Index(slot)]; }

 private:
  static size_t Index(int32_t i) { return static_cast<size_t>(i); }
  void LayOutRows(const SchedulerOutput& output);
  int32_t* TableRow(int32_t slot) const { return block_table_.get() + slot * table_stride_; }

  const StepLimits limits_;
  const int64_t table_stride_;  // blocks of the longest sequence
  std::unique_ptr<int32_t[]>
      block_table_;                    // [max_num_seqs, table_stride_], written up to row_blocks_
  std::vector<int32_t> row_blocks_;    // [max_num_seqs]
  std::vector<TokenId> last_samples_;  // [max_num_seqs]
  int32_t num_slots_ = 0;              // 1 + the highest slot of the step
  std::vector<int32_t> cu_seqlens_q_;  // [max_num_seqs + 1], and so the next two
  std::vector<int32_t> cu_seqlens_q_last_;
  std::vector<int32_t> seq_lens_;
  std::vector<TokenId> token_ids_;  // per token of the step, and so the next two
  std::vector<int32_t> positions_;
  std::vector<int64_t> slot_mapping_;
};

}  // namespace longspan
