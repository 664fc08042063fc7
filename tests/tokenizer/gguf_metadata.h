// Reads just the tokenizer's values out of a GGUF file, for tests that compare with the real
// vocabulary. Trusts the file; the checked reader of the product is in model/.
#pragma once

#include <optional>

#include "tokenizer/gguf_vocabulary.h"

namespace longspan {

// Of tests/support/test_model.h's file; nullopt when it is not there.
std::optional<GgufVocabulary> ReadTestModelVocabulary();

}  // namespace longspan
