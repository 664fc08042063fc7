// One compiled prefill kernel as the lookup table knows it. Private to the prefill family.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace longspan {

struct Sm90PrefillInstance {
  int32_t compute_capability;  // exactly this one: the code is architecture-specific
  DType dtype;                 // of queries, keys, values and output
  int32_t head_dim;
  int32_t rows_per_tile;  // query rows
  const void* kernel;
  int32_t num_threads;
  int32_t shared_bytes;
};

extern const Sm90PrefillInstance kSm90PrefillBf16D64, kSm90PrefillBf16D128, kSm90PrefillBf16D256,
    kSm90PrefillFp16D64, kSm90PrefillFp16D128, kSm90PrefillFp16D256;

}  // namespace longspan
