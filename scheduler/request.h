// What goes into the scheduler and what comes out of it, as values: a generation request for n
// sequences, and the events of those sequences. How they run is scheduler.h; the state of a
// sequence while it lives is sequence.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.h"
#include "core/ids.h"
#include "scheduler/sampling_params.h"
#include "scheduler/scheduler_output.h"

namespace longspan {

enum class FinishReason : uint8_t {
  kNone,        // not finished
  kStop,        // a stop token id, or a stop string that the output side found
  kLength,      // max_tokens, the context or the pool is used up
  kAborted,     // by request id
  kCancelled,   // the client left
  kDeadline,    // passed while waiting or running
  kNonFinite,   // logits were not finite
  kSlowReader,  // paused longer than slow_reader_timeout
  kDrained,     // the server is going down
};

// "stop", "length", "aborted", ...
std::string_view FinishReasonName(FinishReason reason);

// One validated generation request: n sequences over one prompt.
struct SequenceParams {
  std::vector<TokenId> prompt;  // 1 .. max_model_len - 1 tokens; max_model_len if max_tokens == 0
  SamplingParams sampling;      // sequence_index and stop_token_ids are filled in by the scheduler
  int32_t n = 1;
  int32_t max_tokens = 0;  // resolved (MaxNewTokens gives the default); 0: compute the prompt only
  std::vector<TokenId> stop_token_ids;  // end the sequence, with ignore_eos too
  std::vector<TokenId> eos_token_ids;   // the model's
  bool ignore_eos = false;
  int32_t priority = 0;          // higher first
  std::string cache_salt;        // prefix reuse happens within one salt; hashed once
  bool use_prefix_cache = true;  // false: the prefix cache is neither read nor written
  bool guaranteed = false;  // waits until KV for n x (prompt + max_tokens) can be held; then is
                            // never preempted
  std::optional<TimePoint> deadline;
};

// What happened to one sequence. Per sequence: kStarted once, then kTokens and kPromptLogprobs,
// then kFinished once and last. A sequence that ends before its first step has kFinished only.
struct SequenceEvent {
  enum class Kind : uint8_t { kStarted, kTokens, kPromptLogprobs, kFinished };

  Kind kind = Kind::kStarted;
  SeqId id{};
  int32_t index = 0;  // i of n

  // kTokens: one sampled token; logprobs has one entry when the request asked, else none.
  TokenId token = kInvalidToken;
  // kPromptLogprobs: entries of prompt positions [prompt_position, + logprobs.size()); position 0
  // has none.
  int32_t prompt_position = 0;
  std::vector<Logprobs> logprobs;

  // kStarted, kFinished.
  int32_t num_prompt_tokens = 0;
  int32_t num_cached_tokens =
      0;  // of the prompt, at the first admission; 0 for siblings (index > 0)
  // kTokens, kFinished.
  int32_t num_preemptions = 0;  // so far
  // kFinished.
  FinishReason reason = FinishReason::kNone;
  TokenId stop_token = kInvalidToken;  // the stop token id that ended it
  int32_t num_completion_tokens = 0;
  int64_t num_kv_tokens_read = 0;  // sum over its steps of the context attended to
};

// One live sequence, for listings.
struct SequenceInfo {
  enum class State : uint8_t { kWaiting, kRunning, kPaused };

  SeqId id{};
  int32_t index = 0;
  State state = State::kWaiting;
  int32_t priority = 0;
  int32_t num_prompt_tokens = 0;
  int32_t num_completion_tokens = 0;
  int32_t num_computed_tokens = 0;  // in the KV cache
  int32_t num_blocks = 0;
  int32_t num_preemptions = 0;
};

}  // namespace longspan
