// Everything a tokenizer is made of, as one value: filled by the loaders, read by Tokenizer. In the
// order in which a text passes through.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/token_table.h"

namespace longspan {

struct TokenizerParts {
  std::string_view kind;  // a literal: "byte_level_bpe" or "sentencepiece_bpe"

  AddedTokenMatcher raw_added_tokens;  // found in the text as it was given
  Normalizer normalizer;
  AddedTokenMatcher normalized_added_tokens;  // found in the normalized text
  PreTokenizer pre_tokenizer;
  BpeModel model;
  std::vector<TokenId> prefix;  // around every text when special tokens are added
  std::vector<TokenId> suffix;

  TokenTable tokens;
  // Reading back. A metaspace in a token is a space, and nothing in the first token of a document;
  // empty: the table's bytes are final.
  std::string metaspace;
  bool drops_metaspace_in_first_token = false;
  int num_leading_spaces_to_strip = 0;  // from a document, at most

  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
};

}  // namespace longspan
