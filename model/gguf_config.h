// What GGUF metadata mean: the model's shape and options, and the tokenizer's raw material. Options
// that change arithmetic and are not implemented are refused by name.
#pragma once

#include "core/status.h"
#include "model/gguf_file.h"
#include "model/model_config.h"
#include "model/vocabulary_data.h"

namespace longspan {

// Architectures llama, qwen2 and qwen3. Tied embeddings and biases follow from which tensors exist;
// rope.freq_factors, weight_dtype and weight_format need tensor data and are left to OpenModel.
StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& gguf);

// Empty when the file has no tokenizer.
StatusOr<VocabularyData> ReadGgufVocabulary(const GgufFile& gguf, const ModelConfig& config);

}  // namespace longspan
