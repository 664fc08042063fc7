// One engine step as values: what runs, what changed since the last step, and what came back. Flat
// and serialisable, without pointers or strings: it can be printed, compared, recorded and built by
// hand.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ids.h"
#include "scheduler/sampling_params.h"

namespace longspan {

// Sent once, when a sequence gets its slot (again after a preemption).
struct AdmittedSequence {
  SeqId id{};
  int32_t slot = 0;  // row in the device block table while running, [0, max_num_seqs)
  SamplingParams sampling;
  // Penalties, min_tokens and random positions need the border.
  int32_t num_prompt_tokens = 0;
  // All tokens so far, next entries of history; 0 unless NeedsHistory.
  int32_t num_history_tokens = 0;
  AdapterId adapter{};
};

// One sequence's part of the step. Token spans of a sequence:
//   [0, num_computed_tokens) in the KV cache | [.., + num_scheduled_tokens) run now | later
struct ScheduledSequence {
  SeqId id{};
  int32_t slot = 0;
  int32_t num_computed_tokens = 0;
  int32_t num_scheduled_tokens = 0;
  // Next entries of token_ids; fewer than scheduled: the slot's last samples come first.
  int32_t num_token_ids = 0;
  // 0: middle of a prompt; 1: the last row is sampled; num_scheduled_tokens: prompt
  // log-probabilities (the last row is sampled only when the prompt ends in this chunk: samples).
  int32_t num_logits = 0;
  // A token is drawn from the last row.
  bool samples = false;
  // To append to the row: next entries of new_blocks.
  int32_t num_new_blocks = 0;
};

// Copies the first num_tokens token rows of a block, in every layer, before anything else of the
// step. No block is both source and destination in one step.
struct BlockCopy {
  BlockId src{};
  BlockId dst{};
  int32_t num_tokens = 0;
};

struct SchedulerOutput {
  StepId step{};
  std::vector<AdmittedSequence> admitted;
  std::vector<ScheduledSequence> scheduled;
  std::vector<BlockCopy> copies;
  std::vector<TokenId> token_ids;   // all scheduled sequences, in order
  std::vector<TokenId> history;     // all admitted sequences, in order
  std::vector<BlockId> new_blocks;  // all scheduled sequences, in order
  // Finished, aborted or preempted since the last step; applied first.
  std::vector<int32_t> released_slots;

  void Clear();  // keeps capacity; the step is set by the scheduler
  bool empty() const { return scheduled.empty() && released_slots.empty() && copies.empty(); }
};

inline void SchedulerOutput::Clear() {
  admitted.clear();
  scheduled.clear();
  copies.clear();
  token_ids.clear();
  history.clear();
  new_blocks.clear();
  released_slots.clear();
}

// Log-probabilities at one position: the model's distribution before any sampling transform,
// natural log.
struct Logprobs {
  TokenId token{};  // the sampled (or given) token
  float logprob = 0.0f;
  std::vector<TokenId> top_ids;  // best first
  std::vector<float> top_logprobs;
};

// What a step computed. Arrays follow SchedulerOutput::scheduled.
struct StepResult {
  StepId step{};
  // Per scheduled sequence: sampled tokens (0 or 1; more with speculation).
  std::vector<int32_t> num_tokens;
  std::vector<TokenId> token_ids;  // all, in order
  // One per sampled token of sequences with num_logprobs >= 0, in order.
  std::vector<Logprobs> logprobs;
  std::vector<int32_t> num_prompt_logprobs;  // per scheduled sequence; empty when no sequence asked
  // One for each scheduled token of a sequence that asked (the prompt's first token has none), in
  // order: n entries belong to the last n scheduled tokens. The runner keeps the row before a chunk
  // by itself.
  std::vector<Logprobs> prompt_logprobs;
  std::vector<SeqId> nonfinite;  // logits were not finite: the sequence ends with INTERNAL, alone
  int64_t kv_bytes_read = 0;     // by attention, for metrics
  double attention_seconds = 0.0;
  // Most work items per sequence and KV head in decode attention; 0: unknown.
  int32_t attention_splits = 0;

  void Clear();
};

inline void StepResult::Clear() {
  num_tokens.clear();
  token_ids.clear();
  logprobs.clear();
  num_prompt_logprobs.clear();
  prompt_logprobs.clear();
  nonfinite.clear();
  kv_bytes_read = 0;
  attention_seconds = 0.0;
  attention_splits = 0;
}

}  // namespace longspan
