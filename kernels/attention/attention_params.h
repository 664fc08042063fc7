// The contract between attention kernels and host code: one plain struct for prefill and decode.
// Every pointer carries its shape; strides are in elements. What the fields mean in detail:
// attention.md.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/attention/kv_scales.h"

namespace longspan {

inline constexpr int32_t kMaxTreeTokens = 64;  // bits of a row's word

// B sequences; sequence b has query rows [cu_seqlens_q[b], cu_seqlens_q[b + 1]) and seq_lens[b]
// cached tokens, those of its own query rows included. Query row i of Lq stands at position i + Lk
// - Lq.
struct AttentionParams {
  // Query and output: [total_q, num_q_heads, head_dim], the last dimension contiguous.
  const void* q = nullptr;
  void* o = nullptr;
  float* lse = nullptr;  // [total_q, num_q_heads], natural log, without the sink; null: not wanted
  int64_t q_token_stride = 0;
  int64_t q_head_stride = 0;
  int64_t o_token_stride = 0;
  int64_t o_head_stride = 0;

  // Paged keys and values: [num_blocks, block_size, num_kv_heads, head_dim] in any order of
  // strides.
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t k_block_stride = 0;
  int64_t k_token_stride = 0;
  int64_t k_head_stride = 0;
  int64_t v_block_stride = 0;
  int64_t v_token_stride = 0;
  int64_t v_head_stride = 0;
  KvScales scales;  // of 8-bit k and v

  const int32_t* cu_seqlens_q = nullptr;  // [B + 1]
  const int32_t* seq_lens = nullptr;      // [B]
  const int32_t* block_table =
      nullptr;  // [B, block_table_stride]; entries past a length are garbage
  int64_t block_table_stride = 0;

  int32_t num_seqs = 0;  // B
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_size = 0;
  DType q_dtype = DType::kFloat32;   // of q and o
  DType kv_dtype = DType::kFloat16;  // of k and v

  float scale = 1.0f;            // score = scale * (q . k)
  float softcap = 0.0f;          // c > 0: score = c * tanh(score / c); 0: off
  bool causal = true;            // key j is seen by position p when j <= p
  int32_t window_left = -1;      // key j is seen when p - window_left <= j; -1: open
  int32_t window_right = -1;     // key j is seen when j <= p + window_right; -1: open
  const float* sinks = nullptr;  // [num_q_heads] natural-log logits in the denominator; null: none
  const float* alibi_slopes = nullptr;  // [num_q_heads]; score -= slope * |p - j|; null: none

  // Tree of drafted tokens; null: none, and `causal` counts. Else, in place of causal, query row i
  // of q sees key j of its sequence when j < Lk - Lq, or when bit j - (Lk - Lq) of tree_mask[i *
  // tree_mask_stride] is set. Lq is at most kMaxTreeTokens.
  const uint64_t* tree_mask = nullptr;
  int64_t tree_mask_stride = 1;
};

}  // namespace longspan
