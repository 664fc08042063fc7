// Draws one token from a row of (already transformed) logits: temperature, min-p, top-k and top-p,
// in this order, without ever sorting the vocabulary; and finds the best logits for
// log-probabilities.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "kernels/sampling.h"
#include "scheduler/sampling_params.h"

namespace longspan {

// Working memory of one thread; made once, so that drawing does not allocate.
class TokenDraw {
 public:
  explicit TokenDraw(int32_t vocab_size);

  // Looks at a row; the calls below are about it. The row stays the caller's and must not change.
  const LogitSummary& SetRow(std::span<const float> logits);
  const LogitSummary& summary() const { return summary_; }

  // Natural log of the sum of exp(logit). Needs finite logits.
  double LogSumExp();

  // The k best, best first (lowest id on ties), fewer when fewer are above -inf. Valid until the
  // next call.
  std::span<const int32_t> Best(int64_t k);

  // uniform in [0, 1) picks from the distribution in order of ids. Logits may be -inf, but not all;
  // temperature 0 gives the arg-max.
  TokenId Draw(const SamplingParams& params, double uniform);

 private:
  // Terms >= high are in a nucleus (`inside` of them), terms < low are not.
  struct Border {
    float low, high;
    TopMass inside;
  };

  void CollectBest(int64_t k);
  float ThresholdOfBest(int64_t k);
  Border FindBorder(double wanted, double floor) const;
  void KeepNucleus(double top_p, double total);
  TokenId DrawFromAll(float inverse_temperature, double uniform);
  TokenId DrawFromCollected(double total, double uniform) const;
  double ComputeTerms(float inverse_temperature);

  std::span<const float> logits_;
  LogitSummary summary_;
  std::vector<float> block_max_;
  std::vector<float> block_values_;  // sums of blocks, or scratch for ranking blocks
  std::vector<int32_t> ids_;         // collected, ascending
  size_t num_ids_ = 0;
  std::vector<float> terms_;    // of collected ids: exp((logit - max) / temperature)
  std::vector<int32_t> order_;  // scratch for partial orders
};

}  // namespace longspan
