// Writing the paged KV cache: storing new keys and values. Reading is attention's; whole blocks are
// copied and poisoned by kvcache/kv_pool.h.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/kernel_status.h"

namespace longspan {

class ThreadPool;

// Keys and values of one layer: [num_blocks, block_size, num_kv_heads, head_dim], in any order of
// strides (in elements of dtype) with the last dimension contiguous.
struct KvPoolView {
  void* k = nullptr;
  void* v = nullptr;
  int64_t k_block_stride = 0;
  int64_t k_token_stride = 0;
  int64_t k_head_stride = 0;
  int64_t v_block_stride = 0;
  int64_t v_token_stride = 0;
  int64_t v_head_stride = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_size = 0;
  DType dtype = DType::kFloat16;  // float32, float16 or bfloat16
};

struct KvStoreParams {
  const float* k = nullptr;  // [num_tokens, num_kv_heads, head_dim], the last dimension contiguous
  const float* v = nullptr;
  int64_t k_token_stride = 0;  // strides in elements
  int64_t k_head_stride = 0;
  int64_t v_token_stride = 0;
  int64_t v_head_stride = 0;
  const int64_t* slot_mapping =
      nullptr;             // [num_tokens]: block * block_size + offset; < 0: not stored
  int64_t num_tokens = 0;  // 0 is legal
};

// Rounds to nearest even; float16 overflow becomes infinity.
KernelStatus KvStoreCpu(ThreadPool& pool, const KvPoolView& pool_view, const KvStoreParams& params);

}  // namespace longspan
