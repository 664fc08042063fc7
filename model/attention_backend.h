// The seam between the decoder and the attention of a device: keys and values go in, attention
// comes out, the KV pool stays hidden behind it. One implementation per device; no arithmetic here.
#pragma once

#include <cstdint>
#include <span>

namespace longspan {

// One step, by device block-table row ("slot"): rows without work have no query tokens. Arrays are
// borrowed until the step's last Run.
struct AttentionBatch {
  std::span<const int32_t> cu_seqlens_q;  // [num_slots + 1] into the step's tokens
  std::span<const int32_t> seq_lens;      // [num_slots] cached tokens, those of this step included
  std::span<const int32_t> block_table;   // [num_slots, block_table_stride]
  int64_t block_table_stride = 0;
  std::span<const int64_t> slot_mapping;  // [tokens]: block * block_size + offset of each token
  // Query tokens of the last layer: the last ones of each row, those whose logits are wanted. Their
  // keys and values are stored all the same.
  std::span<const int32_t> cu_seqlens_q_last;  // [num_slots + 1]
};

// Of one layer. q, k and v are rotated already; float, heads contiguous within a token's row.
struct LayerTensors {
  const float* q = nullptr;  // [query tokens of the layer, num_q_heads, head_dim]
  const float* k = nullptr;  // [tokens, num_kv_heads, head_dim]
  const float* v = nullptr;
  float* o = nullptr;    // [query tokens of the layer, num_q_heads, head_dim], contiguous
  int64_t q_stride = 0;  // elements between tokens
  int64_t k_stride = 0;
  int64_t v_stride = 0;
};

// What a step's attention cost, for metrics.
struct AttentionCost {
  int64_t kv_bytes_read = 0;
  double seconds = 0.0;
  int32_t num_splits = 0;  // most work items per sequence and KV head; 0: unknown
};

// Engine thread only.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;
  // Once per step, before the first Run.
  virtual void Plan(const AttentionBatch& batch) = 0;
  // Stores k and v of the step's tokens, then attends. Layers in order; enqueues only.
  virtual void Run(int32_t layer, const LayerTensors& tensors) = 0;
  // Of the layers run since Plan.
  virtual AttentionCost Cost() const = 0;
  virtual int64_t workspace_bytes() const = 0;
};

}  // namespace longspan
