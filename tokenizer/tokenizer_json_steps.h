// Reads the parts of a tokenizer.json that say how text is prepared and read back: normalizer,
// pre_tokenizer, post_processor, decoder. Each type and field that is not implemented is refused.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "tokenizer/json_document.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"

namespace longspan {

StatusOr<Normalizer> ReadNormalizer(const JsonNode& node);

struct PreTokenizerPlan {
  std::vector<PreTokenizerStep> steps;
  bool is_byte_level;  // the last step is ByteLevel
};
StatusOr<PreTokenizerPlan> ReadPreTokenizer(const JsonNode& node);

// The ids that stand before and after a single text.
struct TextTemplate {
  std::vector<int64_t> prefix;
  std::vector<int64_t> suffix;
};
StatusOr<TextTemplate> ReadPostProcessor(const JsonNode& node);

// How a token's text becomes bytes again.
struct DecoderPlan {
  bool is_byte_level = false;  // then nothing else is set
  std::vector<std::pair<std::string, std::string>> replacements;
  std::string metaspace;  // empty: none
  bool drops_metaspace_in_first_token = false;
  bool has_byte_fallback = false;  // "<0x41>" is a byte
  int num_leading_spaces_to_strip = 0;
};
StatusOr<DecoderPlan> ReadDecoder(const JsonNode& node);

}  // namespace longspan
