// Ids through the detokenizer, text through the stop-string matcher. A stop id counts as a token
// but is no text; before min_tokens nothing can match.
#include "server/sequence_output.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace longspan {

SequenceOutput::SequenceOutput(const OutputOptions& options, const Tokenizer* tokenizer,
                               StopStringMatcher matcher)
    : options_(options), matcher_(std::move(matcher)) {
  if (tokenizer != nullptr) detokenizer_.emplace(*tokenizer, options.skip_special_tokens);
}

std::string SequenceOutput::Append(TokenId id) {
  CHECK(!is_over(), "token after a stop string");
  ++num_tokens_;
  // The EOS or stop id counts and is delivered, but is not text.
  if (!detokenizer_ || IsStopToken(id)) return "";
  std::string text = detokenizer_->Append(id);
  // What comes before min_tokens neither stops the sequence nor takes part in a match.
  if (num_tokens_ <= options_.min_tokens) return text;
  return Match(text);
}

std::string SequenceOutput::Finish() {
  if (!detokenizer_ || is_over()) return "";
  std::string text = Match(detokenizer_->Finish());
  if (!is_over()) text += matcher_.Finish();
  return text;
}

bool SequenceOutput::IsStopToken(TokenId id) const {
  const auto& ids = options_.stop_token_ids;
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

std::string SequenceOutput::Match(const std::string& text) {
  StopStringMatcher::Output output = matcher_.Append(text);
  if (output.matched) matched_ = output.matched;
  return std::move(output.text);
}

}  // namespace longspan
