// How the copy engine of sm_90 sees a tensor: what a box of it is and where it lies in memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace longspan {

// Opaque; passed to kernels by value.
struct alignas(64) TensorMap {
  std::byte bytes[128];
};

// Dimensions innermost first. A box's rows are 128 or 64 bytes, swizzled over as many; reads
// outside give zeros.
struct TensorMapShape {
  static constexpr int kRank = 5;
  const void* base = nullptr;  // device memory, 16-byte aligned
  DType dtype = DType::kBFloat16;
  int64_t extents[kRank] = {};
  int64_t stride_bytes[kRank - 1] = {};  // of dimensions 1..4; multiples of 16, below 2^40
  int32_t box[kRank] = {};
  bool is_reread = false;  // by many CTAs: L2 fetches 256 bytes at a time
};

// False when the driver is too old or refuses the shape. Needs a device.
bool EncodeTensorMap(const TensorMapShape& shape, TensorMap* map);

}  // namespace longspan
