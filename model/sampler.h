// Chooses tokens: per-slot sampling state, the transforms of api.md on a row of logits (logit bias,
// penalties, allowed ids, bad words, minimum length), the draw, and log-probabilities of the
// untouched distribution. The same sequence gets the same tokens whatever else is in the batch.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/ids.h"
#include "model/token_draw.h"
#include "model/token_history.h"
#include "scheduler/scheduler_output.h"

namespace longspan {

class ThreadPool;

// One row of logits and what is wanted of it.
struct LogitsRow {
  std::span<const float> logits;  // [vocab_size]
  int32_t slot = 0;
  int32_t position = 0;           // among the generated tokens of the sequence, of a drawn token
  TokenId given = kInvalidToken;  // a prompt's token: only its log-probability; else one is drawn
};

struct RowOutcome {
  bool finite = true;  // false: nothing else is set
  TokenId token{};
  Logprobs logprobs;  // set when the sequence asked
};

// Engine thread only; Run spreads rows over the pool's threads. Owns per-slot state and scratch.
class Sampler {
 public:
  Sampler(int32_t vocab_size, int32_t max_num_seqs, int num_threads);

  // Takes over a slot. history: all tokens so far, or empty when the parameters need none.
  void Admit(const AdmittedSequence& sequence, std::span<const TokenId> history);

  // outcomes.size() == rows.size(); at most one drawing row per slot.
  void Run(ThreadPool& pool, std::span<const LogitsRow> rows, std::span<RowOutcome> outcomes);

  const SamplingParams& params(int32_t slot) const {
    return slots_[static_cast<size_t>(slot)].params;
  }
  int64_t scratch_bytes() const;

 private:
  struct Slot {
    SamplingParams params;
    TokenHistory history;
  };
  struct Scratch {
    explicit Scratch(int32_t vocab_size)
        : draw(vocab_size), logits(static_cast<size_t>(vocab_size)) {}
    TokenDraw draw;
    std::vector<float> logits;                       // transformed copy of a row
    std::vector<std::pair<TokenId, float>> allowed;  // id and logit
    std::vector<std::pair<TokenId, float>> masked;   // likewise; what the masks hid
  };

  void RunRow(const LogitsRow& row, Scratch& scratch, RowOutcome& outcome);
  TokenId Choose(const LogitsRow& row, Slot& slot, Scratch& scratch);
  static void Transform(const Slot& slot, int32_t position, Scratch& scratch);

  const int32_t vocab_size_;
  std::vector<Slot> slots_;
  std::vector<Scratch> scratch_;  // per thread
};

}  // namespace longspan
