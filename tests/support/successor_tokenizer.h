// The tokenizer of the successor model, whose next token is the previous id plus one: the order of
// the vocabulary is the text. The same vocabulary as tests/reference/write_tiny_model.py makes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace longspan::testing {

// vocab_size ids: `tokens` (any bytes, distinct) from first_id on; the bytes that are not among
// them fill the other ids in ascending order, then "<ID>". special_ids: left out of the text by
// default.
std::unique_ptr<Tokenizer> SuccessorTokenizer(const std::vector<std::string>& tokens, int first_id,
                                              int vocab_size = 512,
                                              const std::vector<int>& special_ids = {});

}  // namespace longspan::testing
