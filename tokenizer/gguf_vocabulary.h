// Builds a tokenizer from the `tokenizer.ggml.*` values of a GGUF file. Reading the file is
// model/'s work: it fills the plain struct below.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "tokenizer/tokenizer.h"

namespace longspan {

struct GgufVocabulary {
  std::string model;                 // tokenizer.ggml.model; "gpt2" (byte-level BPE) is supported
  std::string pre;                   // tokenizer.ggml.pre; "smollm", "gpt-2", "llama-bpe", "qwen2"
  std::vector<std::string> tokens;   // index = id
  std::vector<int32_t> token_types;  // 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused
  std::vector<std::string> merges;   // "left right", the best first
  std::optional<int64_t> bos_id;
  std::optional<int64_t> eos_id;
  std::optional<int64_t> unk_id;
  std::optional<bool> add_bos;  // unset: as the pre-tokenizer's family does (llama-bpe: yes)
  std::optional<bool> add_eos;  // unset: no
};

StatusOr<std::unique_ptr<Tokenizer>> MakeGgufTokenizer(GgufVocabulary vocabulary);

}  // namespace longspan
