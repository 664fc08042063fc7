// The files of a Hugging Face model folder: config.json and companions, one or several safetensors
// files with their index. Which tensors a model needs is not known here.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "model/input_file.h"
#include "model/model_config.h"
#include "model/vocabulary_data.h"
#include "model/weight_table.h"

namespace longspan {

struct HfDescription {
  ModelConfig config;
  VocabularyData vocabulary;  // empty without tokenizer.json
};

// Reads config.json, and generation_config.json, tokenizer.json, tokenizer_config.json and
// chat_template.jinja where they exist.
StatusOr<HfDescription> ReadHfDescription(const std::string& folder);

struct HfWeights {
  std::vector<FoundTensor> tensors;  // of type F32, F16 or BF16
  std::vector<InputFile> files;
};

// Opens model.safetensors, which may be a link, or else the files that model.safetensors.index.json
// names; each of them lies in the folder itself or, as Hugging Face's cache has it, in the blobs
// beside its snapshots. Index and files agree on where every tensor is.
StatusOr<HfWeights> OpenHfWeights(const std::string& folder);

}  // namespace longspan
