// The oracle of the decoder: a naive forward pass over a whole prompt in double precision, without
// a cache, reading float32 weights straight from a WeightSource. It shares no code with model/ or
// kernels/ beyond that interface and the config.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "model/weight_source.h"

namespace longspan::testing {

class ReferenceModel {
 public:
  // Every tensor must be float32.
  explicit ReferenceModel(WeightSource& source);

  // Logits after every token: [tokens][vocab_size].
  std::vector<std::vector<double>> Logits(std::span<const TokenId> tokens) const;

 private:
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;

  const Row* Find(WeightRole role, int32_t layer) const;
  Rows Project(const Rows& x, WeightRole weight, WeightRole bias, int32_t layer) const;
  Rows Norm(const Rows& x, WeightRole weight, int32_t layer) const;
  void NormHeads(Rows& x, WeightRole weight, int32_t layer) const;
  void Rotate(Rows& x) const;
  Rows Attend(const Rows& q, const Rows& k, const Rows& v) const;
  void AddAttention(Rows& x, int32_t layer) const;
  void AddFeedForward(Rows& x, int32_t layer) const;

  const ModelConfig config_;
  std::map<std::pair<WeightRole, int32_t>, Row> weights_;  // row-major
  Row frequencies_;                                        // radians per position of each pair
  double magnitude_ = 1.0;                                 // factor of cosine and sine
};

}  // namespace longspan::testing
