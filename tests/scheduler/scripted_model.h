// A model without arithmetic that knows what the pool must contain for every token. The K/V of a
// token stands for all tokens before it and for the salt, as a hash; each scheduled read is checked
// against the sequence's own tokens, each write against other holders. The next token is a function
// of that hash, so any mistake of block bookkeeping changes the output.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "scheduler/request.h"
#include "scheduler/scheduler_output.h"

namespace longspan {

class ScriptedModel {
 public:
  ScriptedModel(int32_t num_blocks, int32_t block_size, int32_t vocab_size)
      : block_size_(block_size),
        vocab_size_(vocab_size),
        cells_(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_size)),
        writers_(static_cast<size_t>(num_blocks)) {}

  // The tokens that a sequence must get, computed without any cache. max_tokens and stop ids apply.
  static std::vector<TokenId> Expected(const SequenceParams& params, int32_t index,
                                       int32_t vocab_size, int32_t max_total_tokens);

  void Register(SeqId id, const SequenceParams& params, int32_t index);
  // The block's content is worthless from now on (KvCacheManager's listener).
  void Poison(BlockId block);

  // Executes a step at once; its result waits for Collect, in order.
  void Launch(const SchedulerOutput& output);
  StepResult Collect();

  std::set<SeqId> nonfinite;  // their next logits are not finite

  int64_t num_tokens_computed() const { return num_tokens_computed_; }
  int64_t num_copies() const { return num_copies_; }

 private:
  struct KvCell {
    bool written = false;
    uint64_t prefix = 0;  // of all tokens up to this one
  };
  struct SequenceState {
    SequenceParams params;
    int32_t index = 0;
    std::vector<TokenId> tokens;   // prompt and samples
    std::vector<uint64_t> prefix;  // by position
  };
  struct Row {  // of a running slot
    SeqId id{};
    AdmittedSequence admitted;
    std::vector<BlockId> blocks;
    std::vector<TokenId> history;
    TokenId last_sample = kInvalidToken;
    int32_t logits_position = -1;  // of the last row that got logits
  };

  static uint64_t Extend(uint64_t prefix, TokenId token);
  static TokenId Sample(const SamplingParams& sampling, int32_t index, uint64_t prefix,
                        int32_t vocab_size);
  void Append(SequenceState& sequence, TokenId token);
  void Copy(const BlockCopy& copy);
  void Run(const SchedulerOutput& output, const ScheduledSequence& entry, size_t& next_token,
           size_t& next_block, StepResult& result);
  void PromptLogprobs(const SequenceState& sequence, Row& row, const ScheduledSequence& entry,
                      StepResult& result);
  KvCell& CellOf(const Row& row, int32_t position);

  const int32_t block_size_;
  const int32_t vocab_size_;
  std::vector<KvCell> cells_;   // [num_blocks, block_size]
  std::vector<SeqId> writers_;  // by block; SeqId{}: nobody since it was freed
  std::map<SeqId, SequenceState> sequences_;
  std::map<int32_t, Row> rows_;
  std::deque<StepResult> results_;
  StepId last_step_{};
  int64_t num_tokens_computed_ = 0;
  int64_t num_copies_ = 0;
};

}  // namespace longspan
