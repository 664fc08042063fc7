// Where the new tokens of a drop-in call go, and the cosines and sines of their positions: from
// lengths on the device, so that a graph can be replayed with others. Storing is kv_store.h's,
// turning queries rope.h's.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/kernel_status.h"
#include "kernels/runtime/stream_handle.h"

namespace longspan {

struct AppendRowsParams {
  int32_t num_seqs = 0;
  int32_t new_len = 0;                     // tokens of every sequence
  int32_t q_len = 0;                       // query rows of every sequence
  bool q_fixed = false;                    // all query rows stand at the position of the first
  const int32_t* cache_seqlens = nullptr;  // [num_seqs]
  const int32_t* kv_starts = nullptr;      // [num_seqs] or null: 0; taken off cache_seqlens
  const int32_t* positions = nullptr;      // [num_seqs]

  // Token i of a sequence is in block table[i / block_size]; or, block_size 0, token table[0] + i.
  const int32_t* table = nullptr;  // [num_seqs, table_stride]
  int64_t table_stride = 0;
  int32_t block_size = 0;
  int64_t capacity = 0;      // cache_seqlens + t at or past it are dropped: slot -1
  int64_t* slots = nullptr;  // [num_seqs * new_len] out: block * max(1, block_size) + offset

  // Null cos: no rotation.
  const void* cos = nullptr;  // [num_positions, num_pairs]
  const void* sin = nullptr;
  DType dtype = DType::kFloat16;
  int64_t rotary_stride = 0;
  int64_t num_positions = 0;
  int32_t num_pairs = 0;
  float* k_cos_sin = nullptr;  // [num_seqs * new_len, 2, num_pairs] out
  float* q_cos_sin = nullptr;  // [num_seqs * q_len, 2, num_pairs] out; null: not wanted
};

// Enqueues; kBadShape for null pointers or extents out of range.
KernelStatus AppendRowsGpu(const AppendRowsParams& params, GpuStreamHandle stream);

}  // namespace longspan
