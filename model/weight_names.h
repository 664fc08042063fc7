// Which tensors a model has, by what name in which kind of file and in what shape: the one table
// behind the checks of every weight source.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model_config.h"
#include "model/weight_source.h"

namespace longspan {

enum class WeightNaming : uint8_t { kGguf, kHuggingFace };

struct WantedWeight {
  WeightRole role{};
  int32_t layer = -1;  // -1: not of a layer
  std::string name;
  std::vector<int64_t> shape;  // outermost first
};

// Every tensor the config asks for, embedding first, then layer by layer, then the end. The config
// is one that CheckModelConfig accepts.
std::vector<WantedWeight> WantedWeights(const ModelConfig& config, WeightNaming naming);

}  // namespace longspan
