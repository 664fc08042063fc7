// What every model must satisfy, whatever file described it: the ranges that the kernels and the
// caches were written for. Run once on opening, so that nothing is discovered in the middle of a
// step.
#pragma once

#include <string>

#include "core/status.h"
#include "model/model_config.h"

namespace longspan {

// Upper bounds of config values. Far above all known models; they keep products of two in 63 bits
// and bound what a claim in a file can make us allocate.
inline constexpr int32_t kMaxVocabSize = 1 << 22;
inline constexpr int32_t kMaxHiddenSize = 1 << 18;
inline constexpr int32_t kMaxIntermediateSize = 1 << 20;
inline constexpr int32_t kMaxLayers = 1024;
inline constexpr int32_t kMaxHeads = 4096;
inline constexpr int32_t kMaxContextLength = 1 << 30;

// The attention kernels' head sizes: steps of 8.
inline constexpr int32_t kMinHeadDim = 16;
inline constexpr int32_t kMaxHeadDim = 256;

// kInvalidArgument with file, what was found and what is wanted.
Status CheckModelConfig(const ModelConfig& config, const std::string& file);

}  // namespace longspan
