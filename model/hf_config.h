// What config.json and its companions of a Hugging Face model folder mean. Architectures,
// activations and options that are not implemented are refused by name; keys that change nothing
// are ignored.
#pragma once

#include <string>
#include <string_view>

#include "core/status.h"
#include "model/model_config.h"

namespace longspan {

// text: config.json; file: its path for messages. Llama, Mistral, Qwen2 and Qwen3 ForCausalLM.
// weight_dtype and weight_format need the tensors and are left to OpenModel.
StatusOr<ModelConfig> ParseHfConfig(std::string_view text, const std::string& file);

// generation_config.json: its end-of-text ids, one or a list, replace those of config.json.
Status ApplyGenerationConfig(std::string_view text, const std::string& file, ModelConfig& config);

// tokenizer_config.json: the chat template, a text or a list of named ones of which "default" is
// taken.
Status ApplyTokenizerConfig(std::string_view text, const std::string& file, ModelConfig& config);

}  // namespace longspan
