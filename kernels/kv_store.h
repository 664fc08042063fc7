// Writing the paged KV cache: storing new keys and values, quantised where the pool is narrower.
// Reading is attention's; whole blocks are copied and poisoned by kvcache/kv_pool.h. Scales of
// 8-bit pools are given, not chosen here.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/kernel_status.h"
#include "kernels/rope.h"
#include "kernels/runtime/stream_handle.h"

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
  DType dtype = DType::kFloat16;

  // 8-bit pools only: real value = stored value * scale, scale > 0 and finite. The scale of a block
  // and head stands at [block * block_stride + head * head_stride] (elements); stride 0: the same
  // for all.
  const float* k_scales = nullptr;
  const float* v_scales = nullptr;
  int64_t k_scale_block_stride = 0;
  int64_t k_scale_head_stride = 0;
  int64_t v_scale_block_stride = 0;
  int64_t v_scale_head_stride = 0;
};

struct KvStoreParams {
  const void* k = nullptr;  // [num_tokens, num_kv_heads, head_dim], the last dimension contiguous
  const void* v = nullptr;
  int64_t k_token_stride = 0;  // strides in elements
  int64_t k_head_stride = 0;
  int64_t v_token_stride = 0;
  int64_t v_head_stride = 0;
  const int64_t* slot_mapping =
      nullptr;                    // [num_tokens]: block * block_size + offset; < 0: not stored
  int64_t num_tokens = 0;         // 0 is legal: nothing is written
  DType dtype = DType::kFloat32;  // of k and v: float32, float16 or bfloat16

  // Keys are rotated in float32 before they are rounded, as rope.h says; null: stored as they come.
  const float* cos_sin = nullptr;  // [num_tokens, 2, rotary_dim / 2]
  int32_t rotary_dim = 0;          // even, at most head_dim
  RopePairs pairs = RopePairs::kHalfSplit;
};

// Rounds to nearest even; float16 overflow becomes infinity; 8-bit values are x / scale (a float
// division), saturated, as core/dtype.h converts them. Two tokens of one call never have one slot.
// Answers kUnsupportedDType; kBadShape for extents out of range or an 8-bit pool without scales.
KernelStatus KvStoreCpu(ThreadPool& pool, const KvPoolView& pool_view, const KvStoreParams& params);

// The same bits (of a NaN: a NaN) by the device, in the order of the stream; every pointer is
// device memory. Further answers, all before anything is launched: kBadShape for a null pointer or
// more than 2^31 - 1 tokens, kBadStride for a negative stride, kMisaligned for a pointer that is no
// multiple of its element. 16-byte accesses when head_dim and all strides are multiples of 8
// elements, rotary_dim of 16 (interleaved: 8), and the pointers of 16 bytes, else one element at a
// time. Moves 2 * num_tokens * num_kv_heads * head_dim * (bytes in + bytes out).
KernelStatus KvStoreGpu(const KvPoolView& pool, const KvStoreParams& params,
                        GpuStreamHandle stream);

}  // namespace longspan
