// What the decode kernels of every GPU line take: the launch's arguments as the device sees them.
#pragma once

#include <cstdint>

#include "kernels/attention/decode/gpu_decode_plan.h"
#include "kernels/attention/kv_scales.h"

namespace longspan {

// One row's softmax state of a part: maximum (base 2, scaled) and sum of 2^(x - maximum).
struct DecodePartialSum {
  float maximum;
  float sum;
};

// Pointers are device memory, strides count elements.
struct DecodeArgs {
  const void* q;  // [total_q, num_q_heads, head_dim]
  void* o;        // like q
  float* lse;     // [total_q, num_q_heads] or null
  int64_t q_token_stride, q_head_stride;
  int64_t o_token_stride, o_head_stride;
  const int32_t* block_table;  // [B, block_table_stride]
  int64_t block_table_stride;
  const GpuDecodeWork* works;          // [grid]
  const GpuDecodeSequence* sequences;  // those with query rows
  // Two partials a CTA. [2 * cta]: its part of a unit that began before; [2 * cta + 1]: its part of
  // a unit that goes on behind.
  float* partial_o;               // [2 * grid, kGpuDecodeRows, head_dim], not normalised
  DecodePartialSum* partial_sum;  // [2 * grid, kGpuDecodeRows]
  int32_t* arrivals;  // [grid], parts written of the unit that began there; 0 between launches
  int32_t num_q_heads, num_kv_heads, group;
  int32_t head_dim;                // at most the kernel's
  int32_t block_size, box_tokens;  // a box: the tokens that one copy brings
  int32_t window_left;             // -1: open
  bool causal;
  float scale_log2;    // score scale times log2(e)
  const float* sinks;  // [num_q_heads] or null

  // What only the sm_80 line reads. sm_90a has tensor maps for k and v.
  const void* k;  // [num_blocks, block_size, num_kv_heads, head_dim]
  const void* v;
  int64_t k_block_stride, k_token_stride, k_head_stride;
  int64_t v_block_stride, v_token_stride, v_head_stride;
  int32_t window_right;   // -1: open
  float cap_in, cap_out;  // with softcap c: 2 log2(e) scale / c, and c log2(e); else cap_out = 0
  const float* alibi_slopes;  // [num_q_heads] or null
  const uint64_t* tree_mask;  // [total_q] words or null; in place of causal
  int64_t tree_mask_stride;
  bool has_wide_kv;  // rows of keys and values can be copied 16 bytes at a time; else 8

  // What only kernels with 8-bit keys and values read.
  KvScales scales;
  bool is_int8;      // stored as int8; else e4m3
  bool is_bfloat16;  // q and o; else float16
};

}  // namespace longspan
