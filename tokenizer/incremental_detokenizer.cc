// Keeps the bytes of a character that is not complete yet, at most three, and repairs what can no
// longer become one. Spaces that the tokenizer put in front of a document are taken off here.
#include "tokenizer/incremental_detokenizer.h"

#include <utility>

#include "tokenizer/utf8.h"

namespace longspan {

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
                                               Start start)
    : tokenizer_(&tokenizer),
      skip_special_tokens_(skip_special_tokens),
      at_document_start_(start == Start::kDocument),
      num_to_strip_(at_document_start_ ? tokenizer.num_leading_spaces_to_strip() : 0) {}

std::string IncrementalDetokenizer::Append(TokenId id) {
  if (at_document_start_) {
    at_document_start_ = !tokenizer_->AppendFirstBytes(id, skip_special_tokens_, pending_);
  } else {
    tokenizer_->AppendBytes(id, skip_special_tokens_, pending_);
  }
  std::string text;
  const size_t num_consumed = AppendWholeCharacters(pending_, text);
  pending_.erase(0, num_consumed);
  size_t num_stripped = 0;
  while (num_to_strip_ > 0 && num_stripped < text.size()) {
    if (text[num_stripped] != ' ') {
      num_to_strip_ = 0;
      break;
    }
    ++num_stripped;
    --num_to_strip_;
  }
  text.erase(0, num_stripped);
  return text;
}

std::string IncrementalDetokenizer::Finish() {
  const std::string incomplete = std::exchange(pending_, {});
  return incomplete.empty() ? std::string() : std::string(kReplacementCharacter);
}

}  // namespace longspan
