// Builds a tokenizer from the text of a Hugging Face tokenizer.json: byte-level BPE, and
// SentencePiece-style BPE with byte fallback. A component, field value or pattern that is not
// implemented exactly is refused by name; nothing is approximated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "core/status.h"
#include "tokenizer/tokenizer.h"

namespace longspan {

inline constexpr size_t kMaxTokenizerJsonBytes = size_t{64} << 20;
inline constexpr int64_t kMaxVocabularySize = int64_t{1} << 22;

// tokenizer.json does not say which ids begin and end a text; config.json does. Both are checked
// against the vocabulary.
struct TokenizerJsonOptions {
  std::optional<int64_t> bos_id;
  std::optional<int64_t> eos_id;  // the first one when the config lists several
};

StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizerJson(std::string_view json_text,
                                                       const TokenizerJsonOptions& options = {});

}  // namespace longspan
