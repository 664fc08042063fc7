// A decoder-only transformer from its config: Llama, Mistral, Qwen2 and Qwen3 differ in fields of
// ModelConfig only. It turns token ids into hidden rows and those into logits; what is cached, and
// where, is the attention backend's business.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/ids.h"
#include "core/status.h"
#include "kernels/rope.h"
#include "model/aligned_buffer.h"
#include "model/attention_backend.h"
#include "model/model_config.h"
#include "model/weights.h"

namespace longspan {

class ThreadPool;

struct DecoderLimits {
  int32_t max_num_batched_tokens = 0;
  int32_t max_logits_rows = 0;
};

// Seconds spent in the parts of a step, for benchmarks. Added to, never reset.
struct DecoderTimes {
  double embed = 0.0;  // and the rotation table
  double qkv = 0.0;
  double rotate = 0.0;  // and the norms of heads
  double attention = 0.0;
  double attention_output = 0.0;
  double gate_up = 0.0;
  double down = 0.0;
  double logits = 0.0;
};

// Engine thread only. Owns weights and activations; borrows threads and backend. No allocation in
// Forward and Logits. A row's bits do not depend on the other rows of a call.
class Decoder {
 public:
  static StatusOr<std::unique_ptr<Decoder>> Create(const ModelConfig& config,
                                                   DecoderWeights weights,
                                                   const DecoderLimits& limits,
                                                   ThreadPool& threads);

  // Runs all layers over a step's tokens. Returns the hidden rows that get logits, before the final
  // norm: [batch.cu_seqlens_q_last.back(), hidden_size], valid until the next call.
  std::span<const float> Forward(std::span<const TokenId> token_ids,
                                 std::span<const int32_t> positions, const AttentionBatch& batch,
                                 AttentionBackend& attention);

  // Final norm and output matrix. hidden: [num_rows, hidden_size]; logits: [num_rows, vocab_size].
  void Logits(const float* hidden, int64_t num_rows, float* logits);

  // Null: nothing is measured.
  void set_times(DecoderTimes* times) { times_ = times; }

  int64_t weights_bytes() const { return weights_bytes_; }
  int64_t workspace_bytes() const;

 private:
  Decoder(const ModelConfig& config, DecoderWeights weights, const DecoderLimits& limits,
          ThreadPool& threads, RopeFrequencies frequencies);
  int64_t MatmulBytes(const DecoderLimits& limits) const;
  void Embed(std::span<const TokenId> token_ids);
  void ProjectQkv(const LayerWeights& w, int64_t num_rows);
  void Rotate(const LayerWeights& w, int64_t num_rows);
  int64_t KeepLastRows(const AttentionBatch& batch, float* rows, int64_t row_size,
                       int64_t row_stride) const;
  void FinishLayer(const LayerWeights& w, int64_t num_rows);
  void FinishPanel(const LayerWeights& w, int64_t first, int64_t num_rows);
  void GateUp(const LayerWeights& w, const float* x, int64_t num_rows);
  void RunMatmul(std::span<const MatmulParams> products, int64_t num_rows);

  // Row sizes in floats.
  int64_t hidden() const { return config_.hidden_size; }
  int64_t q_size() const { return int64_t{config_.num_q_heads} * config_.head_dim; }
  int64_t kv_size() const { return int64_t{config_.num_kv_heads} * config_.head_dim; }
  int64_t qkv_size() const { return q_size() + 2 * kv_size(); }

  const ModelConfig config_;
  const DecoderWeights weights_;
  const int64_t weights_bytes_;
  ThreadPool& threads_;
  const RopeFrequencies frequencies_;
  AlignedBuffer x_;                // [tokens, hidden], the residual stream
  AlignedBuffer qkv_;              // [tokens, q | k | v]
  AlignedBuffer mixed_;            // [tokens, q_size], what attention returns
  AlignedBuffer cos_sin_;          // [tokens, 2, rotary_dim / 2]
  AlignedBuffer gated_;            // [panel, intermediate]
  AlignedBuffer up_;               // [panel, intermediate] where gate and up cannot be one product
  AlignedBuffer scratch_;          // of the matrix products
  DecoderTimes* times_ = nullptr;  // not owned
};

}  // namespace longspan
