// Passes over one row of logits that choosing a token needs: summary, sum of exponentials, ids
// above a threshold. Single-threaded: callers spread rows, not columns, over threads. Policy
// (temperature, top-k, penalties) is not here but in model/sampler.
#pragma once

#include <cstdint>
#include <span>

namespace longspan {

// Passes work in blocks of consecutive logits; per-block arrays have LogitBlocks(row size) entries.
inline constexpr int64_t kLogitBlock = 64;
constexpr int64_t LogitBlocks(int64_t num_logits) {
  return (num_logits + kLogitBlock - 1) / kLogitBlock;
}

struct LogitSummary {
  bool all_finite = true;
  float max = 0.0f;     // meaningless when a logit is NaN
  int32_t arg_max = 0;  // the lowest index of the largest
};

// block_max: the largest logit of every block. logits.size() >= 1.
LogitSummary SummarizeLogits(std::span<const float> logits, float* block_max);

// Sum over all logits of exp((logit - max) * inverse_temperature); -inf adds 0. block_sums: the
// same per block. Every logit <= max; inverse_temperature is finite and positive.
double SumExpLogits(std::span<const float> logits, float max, float inverse_temperature,
                    float* block_sums);

// out[i] = exp((logits[i] - max) * inverse_temperature), the terms that SumExpLogits adds up.
void ExpLogits(std::span<const float> logits, float max, float inverse_temperature, float* out);

// Number and sum of the values >= threshold, of any row: logits, or terms of ExpLogits.
struct TopMass {
  int64_t count = 0;
  double sum = 0.0;
};
TopMass SumAtLeast(std::span<const float> values, float threshold);

// Indices with logit >= threshold, ascending; returns their number. block_max as SummarizeLogits
// gave; ids has room for all.
int64_t CollectLogits(std::span<const float> logits, const float* block_max, float threshold,
                      int32_t* ids);

}  // namespace longspan
