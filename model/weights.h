// The decoder's weights in memory: matrices packed for the kernels at about their size in the file,
// norms and biases as floats. Loading only; what is computed with them is model/decoder.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/status.h"
#include "kernels/matmul.h"
#include "model/weight_source.h"

namespace longspan {

// Empty vectors and null matrices: the model has no such part.
struct LayerWeights {
  std::vector<float> attention_norm;
  std::unique_ptr<PackedMatrix> q, k, v, o;
  std::vector<float> q_bias, k_bias, v_bias, o_bias;
  std::vector<float> q_norm, k_norm;
  std::vector<float> mlp_norm;
  std::unique_ptr<PackedMatrix> gate, up, down;
  bool gate_up_fused = false;  // one format, so one product can make both
};

struct DecoderWeights {
  std::unique_ptr<PackedMatrix> embedding;
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;
  std::unique_ptr<PackedMatrix> untied_output;  // null: the embedding serves

  const PackedMatrix& output() const { return untied_output ? *untied_output : *embedding; }
  int64_t SizeBytes() const;
};

// Reads one tensor at a time, so that memory peaks at the packed weights and one tensor more.
// Weights that are not finite are a warning, or with check_weights an error that names the tensor.
// cancelled is looked at before each tensor (null: never); once it is set the result is CANCELLED.
StatusOr<DecoderWeights> LoadWeights(WeightSource& source, MatmulPrecision precision,
                                     bool check_weights,
                                     const std::atomic<bool>* cancelled = nullptr);

}  // namespace longspan
