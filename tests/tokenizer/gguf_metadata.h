// Reads just the tokenizer's values out of a GGUF file, for tests that compare with the real
// vocabulary. Trusts the file; the checked reader of the product is in model/.
#pragma once

#include <optional>
#include <string>

#include "tokenizer/gguf_vocabulary.h"

namespace longspan {

// The model file named by LONGSPAN_TEST_MODEL, or the one that scripts/fetch-model puts in place.
std::string TestModelPath();

// nullopt when the file is not there.
std::optional<GgufVocabulary> ReadTestModelVocabulary();

}  // namespace longspan
