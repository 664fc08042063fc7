// The sm_80 prefill kernels as their launcher knows them: arguments on the device, and the table
// row of one compiled kernel. Private to the prefill family.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/attention/kv_scales.h"
#include "kernels/attention/prefill/prefill_plan.h"

namespace longspan {

// Pointers are device memory, strides count elements.
struct Sm80PrefillArgs {
  const void* q;  // [total_q, num_q_heads, head_dim]
  void* o;        // like q
  float* lse;     // [total_q, num_q_heads] or null
  int64_t q_token_stride, q_head_stride;
  int64_t o_token_stride, o_head_stride;
  const void* k;  // [num_blocks, block_size, num_kv_heads, head_dim]
  const void* v;
  int64_t k_block_stride, k_token_stride, k_head_stride;
  int64_t v_block_stride, v_token_stride, v_head_stride;
  const int32_t* block_table;  // [B, block_table_stride]
  int64_t block_table_stride;
  const PrefillBlock* blocks;  // [grid / num_kv_heads]
  int32_t num_q_heads, num_kv_heads, group;
  int32_t head_dim, block_size;
  int32_t window_left, window_right;  // -1: open
  bool causal;
  float scale_log2;       // score scale times log2(e)
  float cap_in, cap_out;  // with softcap c: 2 log2(e) scale / c, and c log2(e); else cap_out = 0
  const float* sinks;     // [num_q_heads] or null
  const float* alibi_slopes;  // [num_q_heads] or null
  bool has_wide_kv;           // rows of keys and values can be copied 16 bytes at a time; else 8

  // What only kernels with 8-bit keys and values read.
  KvScales scales;
  bool is_int8;      // stored as int8; else e4m3
  bool is_bfloat16;  // q and o; else float16
};

struct Sm80PrefillInstance {
  DType dtype;       // of queries, keys, values and output; of none of them with has_8bit_kv
  int32_t head_dim;  // the largest; smaller ones are padded in shared memory
  int32_t block_rows;
  const void* kernel;
  int32_t num_threads;
  int32_t shared_bytes;
  bool has_8bit_kv;  // keys and values e4m3 or int8, queries and output any 16-bit type
};

extern const Sm80PrefillInstance kSm80PrefillBf16D64, kSm80PrefillBf16D128, kSm80PrefillBf16D256,
    kSm80PrefillFp16D64, kSm80PrefillFp16D128, kSm80PrefillFp16D256, kSm80Prefill8BitD128,
    kSm80Prefill8BitD256;

}  // namespace longspan
