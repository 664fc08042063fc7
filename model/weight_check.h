// Finds weights that are not numbers. Used while loading, once per tensor: a warning by default, a
// refusal with --check-weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/status.h"
#include "model/weight_source.h"

namespace longspan {

// Index of the first element that is NaN or infinite, of the first element of its block for
// quantised formats (whose values are finite exactly when the scales of their block are). blocks:
// whole blocks.
std::optional<int64_t> FindNonFinite(WeightFormat format, std::span<const std::byte> blocks);

// kInvalidArgument with the tensor's name and the place, or OK.
Status CheckFinite(const WeightTensor& tensor, std::span<const std::byte> blocks);

}  // namespace longspan
