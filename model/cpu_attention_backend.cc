// Translates between the decoder's words (batch, layer tensors) and the kernels' plain structs,
// stores keys and values, then attends. Also counts what attention reads, for the bandwidth
// metrics.
#include "model/cpu_attention_backend.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_store.h"

namespace longspan {
namespace {

// What stays the same in every call: shapes, strides, masks.
AttentionParams ShapeOf(const ModelConfig& config, const KvPool& kv_pool) {
  const KvLayerView view = kv_pool.layer(0);
  AttentionParams p;
  p.num_q_heads = config.num_q_heads;
  p.num_kv_heads = config.num_kv_heads;
  p.head_dim = config.head_dim;
  p.block_size = kv_pool.shape().block_size;
  p.kv_dtype = kv_pool.shape().dtype;
  p.q_head_stride = p.o_head_stride = config.head_dim;
  p.o_token_stride = int64_t{config.num_q_heads} * config.head_dim;
  p.q_token_stride = p.o_token_stride;
  p.k_block_stride = p.v_block_stride = view.block_stride;
  p.k_token_stride = p.v_token_stride = view.token_stride;
  p.k_head_stride = p.v_head_stride = view.head_stride;
  p.scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  // A window of W tokens includes the own one.
  p.window_left = config.sliding_window > 0 ? config.sliding_window - 1 : -1;
  return p;
}

}  // namespace

StatusOr<std::unique_ptr<CpuAttentionBackend>> CpuAttentionBackend::Create(
    const ModelConfig& config, const CpuAttentionLimits& limits, KvPool& kv_pool,
    ThreadPool& threads) {
  const AttentionParams shape = ShapeOf(config, kv_pool);
  const KernelStatus status = CheckCpuAttention(shape);
  if (status != KernelStatus::kOk) {
    return InvalidArgument(
        "attention: {} query heads, {} KV heads, head dim {}, block size {}, KV {} cannot be used: "
        "{}",
        shape.num_q_heads, shape.num_kv_heads, shape.head_dim, shape.block_size,
        DTypeName(shape.kv_dtype), KernelStatusText(status));
  }
  return std::unique_ptr<CpuAttentionBackend>(
      new CpuAttentionBackend(shape, limits, kv_pool, threads));
}

CpuAttentionBackend::CpuAttentionBackend(const AttentionParams& shape,
                                         const CpuAttentionLimits& limits, KvPool& kv_pool,
                                         ThreadPool& threads)
    : kv_pool_(kv_pool),
      threads_(threads),
      options_{.num_splits = limits.num_splits, .precision = limits.precision},
      params_(shape),
      workspace_(CpuAttentionWorkspaceBytes(shape, limits.max_num_seqs,
                                            limits.max_num_batched_tokens, limits.max_model_len,
                                            threads.num_threads(), options_)) {}

void CpuAttentionBackend::Plan(const AttentionBatch& batch) {
  batch_ = batch;
  params_.num_seqs = static_cast<int32_t>(batch.seq_lens.size());
  params_.seq_lens = batch.seq_lens.data();
  params_.block_table = batch.block_table.data();
  params_.block_table_stride = batch.block_table_stride;
  layer_bytes_read_ = LayerBytesRead(batch.cu_seqlens_q);
  last_layer_bytes_read_ = LayerBytesRead(batch.cu_seqlens_q_last);
  cost_ = {};
}

// Keys and values in sight of these query rows.
int64_t CpuAttentionBackend::LayerBytesRead(std::span<const int32_t> cu_seqlens_q) const {
  int64_t tokens = 0;
  for (size_t b = 0; b < batch_.seq_lens.size(); ++b) {
    const int64_t num_rows = cu_seqlens_q[b + 1] - cu_seqlens_q[b];
    if (num_rows == 0) continue;
    int64_t in_sight = batch_.seq_lens[b];
    if (params_.window_left >= 0) in_sight = std::min(in_sight, params_.window_left + num_rows);
    tokens += in_sight;
  }
  return tokens * (kv_pool_.shape().BytesPerToken() / kv_pool_.shape().num_layers);
}

void CpuAttentionBackend::Run(int32_t layer, const LayerTensors& tensors) {
  const TimePoint start = clock_.Now();
  const KvLayerView view = kv_pool_.layer(layer);
  Store(view, tensors);
  const bool last = layer == kv_pool_.shape().num_layers - 1;
  params_.q = tensors.q;
  params_.o = tensors.o;
  params_.q_token_stride = tensors.q_stride;
  params_.k = view.k;
  params_.v = view.v;
  params_.cu_seqlens_q = last ? batch_.cu_seqlens_q_last.data() : batch_.cu_seqlens_q.data();
  int32_t num_splits = 0;
  const KernelStatus status =
      AttentionCpu(threads_, params_, options_, workspace_.bytes(), &num_splits);
  CHECK(status == KernelStatus::kOk, "{}", KernelStatusText(status));
  cost_.num_splits = std::max(cost_.num_splits, num_splits);
  cost_.kv_bytes_read += last ? last_layer_bytes_read_ : layer_bytes_read_;
  cost_.seconds += Seconds(clock_.Now() - start);
}

void CpuAttentionBackend::Store(const KvLayerView& view, const LayerTensors& tensors) {
  const KvPoolView pool_view{.k = view.k,
                             .v = view.v,
                             .k_block_stride = view.block_stride,
                             .k_token_stride = view.token_stride,
                             .k_head_stride = view.head_stride,
                             .v_block_stride = view.block_stride,
                             .v_token_stride = view.token_stride,
                             .v_head_stride = view.head_stride,
                             .num_kv_heads = params_.num_kv_heads,
                             .head_dim = params_.head_dim,
                             .block_size = params_.block_size,
                             .dtype = params_.kv_dtype};
  const KvStoreParams store{.k = tensors.k,
                            .v = tensors.v,
                            .k_token_stride = tensors.k_stride,
                            .k_head_stride = params_.head_dim,
                            .v_token_stride = tensors.v_stride,
                            .v_head_stride = params_.head_dim,
                            .slot_mapping = batch_.slot_mapping.data(),
                            .num_tokens = static_cast<int64_t>(batch_.slot_mapping.size())};
  const KernelStatus status = KvStoreCpu(threads_, pool_view, store);
  CHECK(status == KernelStatus::kOk, "{}", KernelStatusText(status));
}

}  // namespace longspan
