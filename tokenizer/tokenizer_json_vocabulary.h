// Reads the parts of a tokenizer.json that number tokens: the model's vocabulary and merges, and
// the added tokens. Ids must be in range and each token must have one id; gaps are legal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/ids.h"
#include "core/status.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/bpe_vocabulary.h"
#include "tokenizer/json_document.h"

namespace longspan {

struct AddedEntry {
  AddedToken token;
  bool is_normalized;              // found in the normalized text, in its normalized form
  std::string normalized_content;  // set by whoever knows the normalizer
};

// The whole vocabulary while it is being read: the model's tokens and the added ones.
struct Vocabulary {
  std::vector<VocabularyEntry> entries;  // of the model; texts live in the JSON document
  std::vector<AddedEntry> added;
  std::unordered_map<int32_t, std::string_view> text_of;  // id -> text, model and added
  std::unordered_map<std::string_view, TokenId> id_of;    // the same the other way round
};

// The id as a token of this vocabulary; an error at `node` when it is none.
StatusOr<TokenId> KnownId(const JsonNode& node, const Vocabulary& vocabulary, int64_t id);

// `model`: fills the vocabulary's entries; they borrow the JSON document.
StatusOr<BpeModelConfig> ReadModel(const JsonNode& node, BpeUnit unit, Vocabulary& vocabulary);

// `added_tokens`, after the model. An added token may repeat one of the model's, under the same id.
Status ReadAddedTokens(const JsonNode& node, Vocabulary& vocabulary);

}  // namespace longspan
