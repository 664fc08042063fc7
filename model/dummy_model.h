// Models without a file of weights: every value comes from a hash of the tensor's name and its
// index, so that the same config and seed give the same model on every machine. For --load-format
// dummy and tests.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/status.h"
#include "model/model_config.h"
#include "model/vocabulary_data.h"
#include "model/weight_source.h"

namespace longspan {

// Values first, first + 1, ... of the tensor with this (Hugging Face) name, row-major. Norms lie
// around 1, everything else around 0. The formula is stated in tests/reference/write_tiny_model.py.
void FillHashedWeights(std::string_view name, uint64_t seed, int64_t first, std::span<float> out);

// A source of hashed weights in the config's weight_dtype (float32, float16 or bfloat16). The
// config is one that CheckModelConfig accepts.
std::unique_ptr<WeightSource> MakeDummyModel(ModelConfig config, VocabularyData vocabulary,
                                             uint64_t seed = 1);

// Config and vocabulary of the folder (which needs no weights) or GGUF file, weights from the hash.
StatusOr<std::unique_ptr<WeightSource>> OpenDummyModel(const std::string& path);

}  // namespace longspan
