// Attention of the CPU backend: stores keys and values in the pool and calls kernels/attention.
// Prefill chunks and decodes of a step are one call per layer.
#pragma once

#include <memory>
#include <span>

#include "core/clock.h"
#include "core/status.h"
#include "kernels/attention/attention_cpu.h"
#include "kernels/attention/attention_params.h"
#include "kvcache/kv_pool.h"
#include "model/aligned_buffer.h"
#include "model/attention_backend.h"
#include "model/model_config.h"

namespace longspan {

struct CpuAttentionLimits {
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t max_model_len = 0;
  int num_splits = 0;  // 0: chosen from the load
  CpuAttentionPrecision precision = CpuAttentionPrecision::kFloat32;
};

// Engine thread only. Borrows the threads and the pool; owns its workspace.
class CpuAttentionBackend final : public AttentionBackend {
 public:
  // Refuses what the kernels do not take, by name.
  static StatusOr<std::unique_ptr<CpuAttentionBackend>> Create(const ModelConfig& config,
                                                               const CpuAttentionLimits& limits,
                                                               KvPool& kv_pool,
                                                               ThreadPool& threads);

  void Plan(const AttentionBatch& batch) override;
  void Run(int32_t layer, const LayerTensors& tensors) override;
  AttentionCost Cost() const override { return cost_; }
  int64_t workspace_bytes() const override { return workspace_.size_bytes(); }

 private:
  CpuAttentionBackend(const AttentionParams& shape, const CpuAttentionLimits& limits,
                      KvPool& kv_pool, ThreadPool& threads);
  void Store(const KvLayerView& view, const LayerTensors& tensors);
  int64_t LayerBytesRead(std::span<const int32_t> cu_seqlens_q) const;

  KvPool& kv_pool_;
  ThreadPool& threads_;
  const SteadyClock clock_;
  const CpuAttentionOptions options_;
  AttentionParams params_;  // shape and, after Plan, the batch
  AttentionBatch batch_;
  int64_t layer_bytes_read_ = 0;  // of each layer but the last
  int64_t last_layer_bytes_read_ = 0;
  AttentionCost cost_;
  AlignedBuffer workspace_;
};

}  // namespace longspan
