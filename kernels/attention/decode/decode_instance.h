// One compiled decode kernel as the lookup table knows it. Private to the decode family.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace longspan {

struct DecodeInstance {
  int32_t compute_capability;  // exactly this one: the code is architecture-specific
  DType dtype;                 // of queries, keys, values and output
  int32_t head_dim;
  const void* few_rows;  // at most kDecodeFewRows packed rows in every sequence
  const void* many_rows;
  int32_t num_threads;
  int32_t shared_bytes;
};

inline constexpr int32_t kDecodeFewRows = 8;

extern const DecodeInstance kSm90DecodeBf16D64, kSm90DecodeBf16D128, kSm90DecodeBf16D192,
    kSm90DecodeFp16D64, kSm90DecodeFp16D128, kSm90DecodeFp16D192;

}  // namespace longspan
