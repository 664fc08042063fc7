// From the sampled ids of one sequence to its text: whole characters only, cut at a stop string.
// Knows nothing of messages, threads or time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/ids.h"
#include "server/request_validator.h"
#include "tokenizer/incremental_detokenizer.h"
#include "tokenizer/stop_string_matcher.h"
#include "tokenizer/tokenizer.h"

namespace longspan {

// One thread at a time; borrows options and tokenizer.
class SequenceOutput {
 public:
  // tokenizer: nullptr when no text is wanted; then there are no stop strings either. The matcher
  // is a fresh one for the request's stop strings.
  SequenceOutput(const OutputOptions& options, const Tokenizer* tokenizer,
                 StopStringMatcher matcher);

  // The next sampled id; returns the text that may leave now. Must not be called once is_over().
  std::string Append(TokenId id);
  // No more ids: the rest of the text.
  std::string Finish();

  // A stop string is complete; the id that completed it is the last one that counts.
  bool is_over() const { return matched_.has_value(); }
  const std::string& matched_string() const { return matcher_.stop_string(*matched_); }
  int32_t num_tokens() const { return num_tokens_; }

 private:
  bool IsStopToken(TokenId id) const;
  std::string Match(const std::string& text);

  const OutputOptions& options_;
  std::optional<IncrementalDetokenizer> detokenizer_;
  StopStringMatcher matcher_;
  std::optional<size_t> matched_;
  int32_t num_tokens_ = 0;
};

}  // namespace longspan
