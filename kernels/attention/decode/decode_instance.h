// One compiled decode kernel as the lookup table knows it. Private to the decode family.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace longspan {

struct DecodeInstance {
  // 90: exactly this one, the code is architecture-specific. 80: this one and all newer ones.
  int32_t compute_capability;
  DType dtype;           // of queries, keys, values and output; with has_8bit_kv see there
  int32_t head_dim;      // 80: the largest; smaller ones are padded in shared memory
  const void* few_rows;  // at most kDecodeFewRows packed rows in every sequence
  const void* many_rows;
  int32_t num_threads;
  int32_t shared_bytes;
  // Queries and output of any 16-bit type; keys and values of `dtype` (90), or e4m3 and int8 (80).
  bool has_8bit_kv = false;
};

inline constexpr int32_t kDecodeFewRows = 8;

extern const DecodeInstance kSm90DecodeBf16D64, kSm90DecodeBf16D128, kSm90DecodeBf16D192,
    kSm90DecodeFp16D64, kSm90DecodeFp16D128, kSm90DecodeFp16D192;
extern const DecodeInstance kSm90DecodeKvE4M3D64, kSm90DecodeKvE4M3D128, kSm90DecodeKvE4M3D192,
    kSm90DecodeKvE4M3D256, kSm90DecodeKvInt8D64, kSm90DecodeKvInt8D128, kSm90DecodeKvInt8D192,
    kSm90DecodeKvInt8D256;
extern const DecodeInstance kSm80DecodeBf16D64, kSm80DecodeBf16D128, kSm80DecodeBf16D256,
    kSm80DecodeFp16D64, kSm80DecodeFp16D128, kSm80DecodeFp16D256, kSm80Decode8BitD128,
    kSm80Decode8BitD256;

}  // namespace longspan
