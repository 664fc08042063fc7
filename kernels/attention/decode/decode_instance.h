// One compiled decode kernel as the lookup table knows it. Private to the decode family.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace longspan {

struct DecodeInstance {
  // 90: exactly this one, the code is architecture-specific. 80: this one and all newer ones.
  int32_t compute_capability;
  DType dtype;           // of queries, keys, values and output; of none of them with has_8bit_kv
  int32_t head_dim;      // 80: the largest; smaller ones are padded in shared memory
  const void* few_rows;  // at most kDecodeFewRows packed rows in every sequence
  const void* many_rows;
  int32_t num_threads;
  int32_t shared_bytes;
  bool has_8bit_kv = false;  // keys and values e4m3 or int8, queries and output any 16-bit type
};

inline constexpr int32_t kDecodeFewRows = 8;

extern const DecodeInstance kSm90DecodeBf16D64, kSm90DecodeBf16D128, kSm90DecodeBf16D192,
    kSm90DecodeFp16D64, kSm90DecodeFp16D128, kSm90DecodeFp16D192;
extern const DecodeInstance kSm80DecodeBf16D64, kSm80DecodeBf16D128, kSm80DecodeBf16D256,
    kSm80DecodeFp16D64, kSm80DecodeFp16D128, kSm80DecodeFp16D256, kSm80Decode8BitD128,
    kSm80Decode8BitD256;

}  // namespace longspan
