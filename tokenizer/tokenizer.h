// Text to token ids and back, exactly as the model's own tokenizer does it. Built once from a GGUF
// vocabulary (gguf_vocabulary.h) or a tokenizer.json (tokenizer_json.h). Streaming output goes
// through incremental_detokenizer.h instead of Decode.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "core/status.h"

namespace longspan {

struct TokenizerParts;

struct EncodeOptions {
  bool add_special_tokens = true;     // what the model's file adds around a text (often a BOS)
  bool parse_special_tokens = false;  // false: "<|im_start|>" in the text is plain text
  // A text of more tokens is OUT_OF_RANGE, found without encoding all of it.
  int64_t max_tokens = std::numeric_limits<int64_t>::max();
};

// Immutable after construction, so any number of threads may use one object at once. Does no I/O.
class Tokenizer {
 public:
  explicit Tokenizer(std::unique_ptr<const TokenizerParts> parts);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // O(n log n) in the bytes of the text, which need not be valid UTF-8. `cancelled` is read every
  // few thousand steps; once it is seen true the result is a Cancelled status.
  StatusOr<std::vector<TokenId>> Encode(std::string_view text, const EncodeOptions& options,
                                        const std::atomic<bool>* cancelled = nullptr) const;

  // The text of all ids as one document: a tokenizer that adds a space in front of every text takes
  // it away again here. Invalid UTF-8 becomes one U+FFFD per maximal subpart. Ids without a token
  // (gaps, out of range) give nothing.
  std::string Decode(std::span<const TokenId> ids, bool skip_special_tokens) const;

  // The bytes that one id stands for, appended to `out`: perhaps only a part of a character,
  // nothing for an id without a token, nothing for a special token when those are skipped.
  void AppendBytes(TokenId id, bool skip_special_tokens, std::string& out) const;

  // The same for the first id of a document that is shown (false: this one is not), and the number
  // of leading spaces that a document loses then: how the incremental detokenizer comes to the same
  // text as Decode.
  bool AppendFirstBytes(TokenId id, bool skip_special_tokens, std::string& out) const;
  int num_leading_spaces_to_strip() const;

  int32_t vocab_size() const;  // one past the largest id
  bool is_special(TokenId id) const;
  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;
  std::string_view kind() const;  // "byte_level_bpe" or "sentencepiece_bpe"

 private:
  bool IsShown(TokenId id, bool skip_special_tokens) const;

  std::unique_ptr<const TokenizerParts> parts_;
};

}  // namespace longspan
