// Scales of 8-bit keys and values, as the pool was written with them (kernels/kv_store.h): one
// plain struct for params, kernel arguments and every GPU line.
#pragma once

#include <cstdint>

namespace longspan {

// real value = stored value * scale, scale > 0 and finite. The scale of a block and KV head stands
// at [block * block_stride + head * head_stride] (elements); stride 0: the same for all. Both
// pointers are null with 16-bit keys and values. Scales of blocks that nobody sees are not used.
struct KvScales {
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t k_block_stride = 0;
  int64_t k_head_stride = 0;
  int64_t v_block_stride = 0;
  int64_t v_head_stride = 0;
};

}  // namespace longspan
