// Lays the sequences of a step out as flat rows in order of slots, and keeps block-table rows and
// last samples between steps. Checks every index it copies: what passes here cannot send a kernel
// out of bounds.
#include "model/step_inputs.h"

#include <algorithm>

#include "core/check.h"
#include "core/checked_math.h"

namespace longspan {

StepInputs::StepInputs(const StepLimits& limits)
    : limits_(limits),
      table_stride_(CeilDiv(limits.max_model_len, limits.block_size)),
      block_table_(new int32_t[Index(limits.max_num_seqs) * static_cast<size_t>(table_stride_)]),
      row_blocks_(Index(limits.max_num_seqs), 0),
      last_samples_(Index(limits.max_num_seqs), kInvalidToken),
      cu_seqlens_q_(Index(limits.max_num_seqs) + 1),
      cu_seqlens_q_last_(Index(limits.max_num_seqs) + 1),
      seq_lens_(Index(limits.max_num_seqs)) {
  token_ids_.reserve(Index(limits.max_num_batched_tokens));
  positions_.reserve(Index(limits.max_num_batched_tokens));
  slot_mapping_.reserve(Index(limits.max_num_batched_tokens));
}

void StepInputs::Release(int32_t slot) {
  CHECK(slot >= 0 && slot < limits_.max_num_seqs, "slot {} of {}", slot, limits_.max_num_seqs);
  row_blocks_[Index(slot)] = 0;
  last_samples_[Index(slot)] = kInvalidToken;
}

// Sets cu_seqlens and seq_lens of all slots up to the highest one that runs.
void StepInputs::LayOutRows(const SchedulerOutput& output) {
  num_slots_ = 0;
  for (const ScheduledSequence& s : output.scheduled) num_slots_ = std::max(num_slots_, s.slot + 1);
  CHECK(num_slots_ <= limits_.max_num_seqs, "slot {} of {}", num_slots_ - 1, limits_.max_num_seqs);
  std::fill_n(cu_seqlens_q_.begin(), num_slots_ + 1, 0);
  std::fill_n(cu_seqlens_q_last_.begin(), num_slots_ + 1, 0);
  std::fill_n(seq_lens_.begin(), num_slots_, 0);
  for (const ScheduledSequence& s : output.scheduled) {
    CHECK(s.slot >= 0 && cu_seqlens_q_[Index(s.slot) + 1] == 0, "slot {} twice", s.slot);
    CHECK(s.num_scheduled_tokens >= 1 && s.num_computed_tokens >= 0 &&
              s.num_computed_tokens <= limits_.max_model_len - s.num_scheduled_tokens,
          "{} tokens after {}", s.num_scheduled_tokens, s.num_computed_tokens);
    CHECK(s.num_logits >= 0 && s.num_logits <= s.num_scheduled_tokens, "{} rows of logits",
          s.num_logits);
    cu_seqlens_q_[Index(s.slot) + 1] = s.num_scheduled_tokens;
    cu_seqlens_q_last_[Index(s.slot) + 1] = s.num_logits;
    seq_lens_[Index(s.slot)] = s.num_computed_tokens + s.num_scheduled_tokens;
  }
  for (size_t i = 0; i < Index(num_slots_); ++i) {
    cu_seqlens_q_[i + 1] += cu_seqlens_q_[i];
    cu_seqlens_q_last_[i + 1] += cu_seqlens_q_last_[i];
  }
}

void StepInputs::Fill(const SchedulerOutput& output) {
  LayOutRows(output);
  const int32_t num_tokens = cu_seqlens_q_[Index(num_slots_)];
  CHECK(num_tokens <= limits_.max_num_batched_tokens, "{} tokens of {}", num_tokens,
        limits_.max_num_batched_tokens);
  token_ids_.resize(Index(num_tokens));
  positions_.resize(Index(num_tokens));
  slot_mapping_.resize(Index(num_tokens));
  auto next_id = output.token_ids.begin();
  auto next_block = output.new_blocks.begin();
  for (const ScheduledSequence& s : output.scheduled) {
    int32_t& row_blocks = row_blocks_[Index(s.slot)];
    int32_t* row = TableRow(s.slot);
    CHECK(s.num_new_blocks <= table_stride_ - row_blocks &&
              s.num_new_blocks <= output.new_blocks.end() - next_block,
          "{} blocks after {}", s.num_new_blocks, row_blocks);
    for (int32_t i = 0; i < s.num_new_blocks; ++i) row[row_blocks++] = ToInt(*next_block++);
    CHECK(int64_t{row_blocks} * limits_.block_size >= seq_lens_[Index(s.slot)],
          "{} blocks of {} for {} tokens", row_blocks, limits_.block_size,
          seq_lens_[Index(s.slot)]);
    CHECK(s.num_token_ids <= output.token_ids.end() - next_id &&
              (s.num_token_ids == s.num_scheduled_tokens ||
               s.num_token_ids == s.num_scheduled_tokens - 1),
          "{} ids for {} tokens", s.num_token_ids, s.num_scheduled_tokens);
    const size_t first = Index(first_token(s.slot));
    for (int32_t i = 0; i < s.num_scheduled_tokens; ++i) {
      const bool sampled = i < s.num_scheduled_tokens - s.num_token_ids;
      const TokenId token = sampled ? last_samples_[Index(s.slot)] : *next_id++;
      CHECK(ToInt(token) >= 0 && ToInt(token) < limits_.vocab_size, "token {} of {}", ToInt(token),
            limits_.vocab_size);
      const int32_t position = s.num_computed_tokens + i;
      const int32_t block = row[position / limits_.block_size];
      CHECK(block >= 0 && block < limits_.num_blocks, "block {} of {}", block, limits_.num_blocks);
      token_ids_[first + Index(i)] = token;
      positions_[first + Index(i)] = position;
      slot_mapping_[first + Index(i)] =
          int64_t{block} * limits_.block_size + position % limits_.block_size;
    }
  }
  CHECK(next_id == output.token_ids.end() && next_block == output.new_blocks.end(), "step {}",
        ToInt(output.step));
}

AttentionBatch StepInputs::attention_batch() const {
  const size_t slots = Index(num_slots_);
  return {.cu_seqlens_q = {cu_seqlens_q_.data(), slots + 1},
          .seq_lens = {seq_lens_.data(), slots},
          .block_table = {block_table_.get(), slots * static_cast<size_t>(table_stride_)},
          .block_table_stride = table_stride_,
          .slot_mapping = slot_mapping_,
          .cu_seqlens_q_last = {cu_seqlens_q_last_.data(), slots + 1}};
}

}  // namespace longspan
