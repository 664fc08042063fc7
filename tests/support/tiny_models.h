// Small models with hashed weights, the same bits as tests/reference/write_tiny_model.py makes, as
// folders of safetensors or as GGUF files. Names: toy_t, toy_long, llama_untied, llama_tied,
// llama_rope_llama3, llama_rope_linear, llama_rope_yarn, mistral_window, qwen2, qwen3.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/model_config.h"
#include "tests/support/model_files.h"
#include "tests/support/temporary_folder.h"

namespace longspan::testing {

// config.json of the model; tests change keys before writing.
nlohmann::json TinyConfigJson(const std::string& name);

// The config as read from that.
ModelConfig TinyConfig(const std::string& name);

// Every tensor of the config in file order, as float32 under Hugging Face names.
std::vector<SafetensorsSpec> TinyTensors(const ModelConfig& config, uint64_t seed = 1);

// Writes config.json and num_shards files of weights (with an index when several).
void WriteModelFolder(const TemporaryFolder& folder, const nlohmann::json& config,
                      const std::vector<SafetensorsSpec>& tensors, int num_shards = 1);
void WriteTinyModel(const TemporaryFolder& folder, const std::string& name, int num_shards = 1,
                    uint64_t seed = 1);

// The same model as GGUF: llama's q and k rows reordered to adjacent rotation pairs as its writers
// do, and a vocabulary of vocab_size plain tokens. Architectures llama, mistral (as llama), qwen2
// and qwen3.
GgufSpec TinyGguf(const ModelConfig& config, uint64_t seed = 1);

}  // namespace longspan::testing
