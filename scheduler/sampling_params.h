// How the next token of one sequence is chosen. A plain value: validated at the edge, carried to
// the sampler in SchedulerOutput. No strings: stop strings and bad-word texts are resolved before.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/ids.h"

namespace longspan {

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy (arg-max, lowest id on ties)
  int32_t top_k = 0;         // <= 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  // over prompt and generated tokens
  float presence_penalty = 0.0f;    // over generated tokens
  float frequency_penalty = 0.0f;   // over generated tokens
  uint64_t seed = 0;                // always set; drawn at the edge when the request left it out
  int32_t sequence_index = 0;  // i of n; the random stream is a function of (seed, i, position)
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::vector<TokenId> allowed_token_ids;       // empty: all
  std::vector<std::vector<TokenId>> bad_words;  // token sequences that must not be completed
  int32_t min_tokens = 0;               // until so many are generated, the ids below are masked
  std::vector<TokenId> stop_token_ids;  // EOS included unless ignored
  int32_t num_logprobs = -1;            // -1: none; 0: the sampled token's; k: and the top k
  int32_t num_prompt_logprobs = -1;     // likewise for the prompt's tokens

  // Whether the sampler needs the sequence's earlier tokens (AdmittedSequence::num_history_tokens).
  bool NeedsHistory() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f ||
           !bad_words.empty();
  }
};

}  // namespace longspan
