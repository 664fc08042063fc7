// Matches found tensors against WantedWeights by name, both ways. A surplus tensor is an error
// unless it is listed here as one that says nothing new.
#include "model/weight_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>

#include "core/check.h"
#include "core/log.h"

namespace longspan {
namespace {

// Tensors that carry nothing the config does not say, or that a tied model does not use.
bool MayBeIgnored(const ModelConfig& config, const std::string& name) {
  if (name == "rope_freqs.weight") return true;             // read into RopeConfig::freq_factors
  if (name.ends_with(".rotary_emb.inv_freq")) return true;  // computed from the config
  return config.tied_embeddings && name == "lm_head.weight";
}

}  // namespace

StatusOr<WeightTable> WeightTable::Build(const ModelConfig& config, WeightNaming naming,
                                         const std::vector<FoundTensor>& found,
                                         const std::vector<std::string>& file_names,
                                         const std::string& where) {
  std::unordered_map<std::string, const FoundTensor*> by_name;
  for (const FoundTensor& tensor : found) by_name.emplace(tensor.name, &tensor);
  WeightTable table;
  for (WantedWeight& wanted : WantedWeights(config, naming)) {
    const auto match = by_name.find(wanted.name);
    if (match == by_name.end()) {
      return InvalidArgument("{}: tensor {} is missing, wanted shape [{}]", where, wanted.name,
                             fmt::join(wanted.shape, ", "));
    }
    const FoundTensor& tensor = *match->second;
    if (tensor.shape != wanted.shape) {
      return InvalidArgument("{}: tensor {} has shape [{}], wanted [{}]",
                             file_names[static_cast<size_t>(tensor.file)], wanted.name,
                             fmt::join(tensor.shape, ", "), fmt::join(wanted.shape, ", "));
    }
    PlacedWeight placed{{std::move(wanted.name), wanted.role, wanted.layer, tensor.format,
                         tensor.shape, tensor.size_bytes},
                        tensor.file,
                        tensor.offset};
    table.weights_.emplace(std::pair(wanted.role, wanted.layer), std::move(placed));
    by_name.erase(match);
  }
  for (const FoundTensor& tensor : found) {
    if (!by_name.contains(tensor.name)) continue;
    if (!MayBeIgnored(config, tensor.name)) {
      return InvalidArgument("{}: tensor {} is not part of a model of this config",
                             file_names[static_cast<size_t>(tensor.file)], Escaped(tensor.name));
    }
    spdlog::debug("{}: tensor {} is not used", file_names[static_cast<size_t>(tensor.file)],
                  Escaped(tensor.name));
  }
  return table;
}

const WeightTensor* WeightTable::Find(WeightRole role, int32_t layer) const {
  const auto found = weights_.find({role, layer});
  return found == weights_.end() ? nullptr : &found->second.tensor;
}

const PlacedWeight& WeightTable::Place(const WeightTensor& tensor) const {
  const auto found = weights_.find({tensor.role, tensor.layer});
  CHECK(found != weights_.end() && &found->second.tensor == &tensor, "tensor {}", tensor.name);
  return found->second;
}

WeightFormat WeightTable::MainFormat() const {
  std::map<WeightFormat, int64_t> bytes;
  for (const auto& [key, placed] : weights_) {
    if (placed.tensor.shape.size() == 2) bytes[placed.tensor.format] += placed.tensor.size_bytes;
  }
  CHECK(!bytes.empty());
  return std::ranges::max_element(bytes, {}, [](const auto& entry) { return entry.second; })->first;
}

}  // namespace longspan
