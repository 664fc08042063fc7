// Passes over one row of logits that choosing a token needs: summary, sum of exponentials, ids
// above a threshold. Single-threaded: callers spread rows, not columns, over threads. On the CPU,
// policy (temperature, top-k, penalties) is not here but in model/sampler; on a device one launch
// does all of it.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kernel_status.h"
#include "kernels/runtime/stream_handle.h"

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

// ---- On a device: from rows of logits to tokens.

// A logit that is changed before the draw, in this order: bias added, penalties of the row applied
// if the token occurred, masked. Results are clamped to finite floats; masked is -inf.
struct LogitEdit {
  int32_t token = 0;  // at most one edit of a row names a token
  float bias = 0.0f;
  int32_t num_generated = -1;  // occurrences among the generated tokens; -1: nowhere, no penalty
  int32_t masked = 0;
};

// How one row's token is chosen; meanings and ranges as in scheduler/sampling_params.h.
struct SampleRow {
  uint64_t seed = 0;
  int32_t sequence_index = 0;
  int32_t position = 0;  // among the generated tokens
  float temperature = 1.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
  int32_t top_k = 0;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t num_logprobs = -1;  // -1: none; 0: the token's; k: and the k best, at most max_top
  int32_t given = -1;         // >= 0: no draw, this is the token (of a prompt)
  int32_t edits_begin = 0;    // [edits_begin, edits_end) of edits
  int32_t edits_end = 0;
};

// Every pointer is device memory.
struct SampleRowsParams {
  float* logits = nullptr;    // [num_rows, vocab_size]; edited while a row is drawn, restored after
  int64_t logits_stride = 0;  // elements from one row to the next
  int32_t num_rows = 0;       // 0 is legal
  int32_t vocab_size = 0;
  const SampleRow* rows = nullptr;   // [num_rows]
  const LogitEdit* edits = nullptr;  // of all rows; may be null when no row has one
  float* saved_logits = nullptr;     // workspace, one per edit
  int32_t* tokens =
      nullptr;  // [num_rows]; -1: a logit was not finite, nothing else of the row is set
  float* logprobs = nullptr;  // [num_rows] of the untouched distribution; null: no row wants any
  int32_t* top_tokens = nullptr;  // [num_rows, max_top], best first, then -1; likewise
  float* top_logprobs = nullptr;  // [num_rows, max_top]
  int32_t max_top = 0;            // at most kMaxTopLogprobs
};
inline constexpr int32_t kMaxTopLogprobs = 1024;

// The distribution, the random stream and the rules on ties are those of model/sampler:
// temperature, min-p, top-k, top-p in this order, lowest ids first on ties; temperature 0 takes the
// arg-max; when edits mask everything, the best of what was masked. Allowed-id lists are not
// served. Masses are whole multiples of 2^-44 of the best token's, so sums do not depend on their
// order: the same bits on every run, and the CPU's token unless the random number falls within
// about 1e-6 of the border between two tokens. Answers, before anything is launched: kBadShape for
// null pointers or extents out of range, kBadStride for rows that overlap, kMisaligned.
//
// One block of threads per row. Reads the row 2 times for a greedy token, 3 to 6 times for a draw
// whose candidates fit the block's memory (4,096), and about 40 times for a flat distribution cut
// by top-p or by top_k > 1,024; rows come from the L2 cache then.
KernelStatus SampleRowsGpu(const SampleRowsParams& params, GpuStreamHandle stream);

}  // namespace longspan
