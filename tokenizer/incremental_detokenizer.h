// Ids of one output stream to text as they come: only whole UTF-8 characters leave, a character
// that is spread over several tokens leaves with its last one. No stop strings here
// (stop_string_matcher.h).
#pragma once

#include <string>

#include "core/ids.h"
#include "tokenizer/tokenizer.h"

namespace longspan {

// One per output stream, used by one thread at a time; borrows the tokenizer. All returned text
// joined is valid UTF-8; with kDocument it equals Tokenizer::Decode of all ids.
class IncrementalDetokenizer {
 public:
  // What the ids are: the continuation of a prompt, whose first word keeps its space, or a document
  // of their own. The two differ only for tokenizers that put a space in front of every text.
  enum class Start { kContinuation, kDocument };

  IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
                         Start start = Start::kContinuation);

  // The text that this id completes; often empty. Bytes that can no longer become a character are
  // U+FFFD, one per maximal subpart.
  std::string Append(TokenId id);

  // No more ids: the incomplete character, if any, as one U+FFFD. Nothing may be appended
  // afterwards.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;  // not owned; outlives the stream
  bool skip_special_tokens_;
  bool at_document_start_;  // the next id that has text is the first one of a document
  int num_to_strip_;        // leading spaces of the document that are still to be dropped
  std::string pending_;     // 0..3 bytes: a proper prefix of one character
};

}  // namespace longspan
