// The tokenizer's raw material as a model file carries it. Plain data: model/ reads it, tokenizer/
// gives it meaning, the server hands it over.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longspan {

struct VocabularyData {
  std::string tokenizer_json;  // text of tokenizer.json; when set, the fields below are unused

  // GGUF: tokenizer.ggml.*
  std::string model;          // "gpt2", "llama"
  std::string pre_tokenizer;  // "smollm", "gpt-2", "llama-bpe", "qwen2"
  std::vector<std::string> tokens;
  std::vector<int32_t>
      token_types;  // 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
  std::vector<std::string> merges;
  int32_t bos_id = -1;  // -1: not given
  int32_t eos_id = -1;
  int32_t unknown_id = -1;
  bool add_bos = false;
  bool add_eos = false;

  bool empty() const { return tokenizer_json.empty() && tokens.empty(); }
};

}  // namespace longspan
