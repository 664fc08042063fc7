// What launchers of simple kernels share: checks of pointers and strides, and the launch itself.
// Host code, for .cu files alone: it needs the compiler of device code.
#pragma once

#include <bit>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "core/dtype.h"
#include "kernels/gpu.h"
#include "kernels/kernel_status.h"
#include "kernels/runtime/stream_handle.h"

namespace longspan {

inline bool IsAligned(const void* pointer, int bytes) {
  return std::bit_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
}

// Whether rows of a tensor may be read and written 16 bytes at a time (8-bit elements: 8 bytes).
inline bool IsVectorizable(const void* pointer, std::initializer_list<int64_t> strides) {
  bool ok = IsAligned(pointer, 16);
  for (const int64_t stride : strides) ok = ok && stride % 8 == 0;
  return ok;
}

inline bool IsWideType(DType dtype) { return DTypeBytes(dtype) >= 2; }  // float32 or 16-bit

// Whether rows of `extent` elements, stride_a apart in one dimension and stride_b in the other, do
// not overlap: one of the dimensions lies within a step of the other.
inline bool RowsAreApart(int64_t num_a, int64_t stride_a, int64_t num_b, int64_t stride_b,
                         int64_t extent) {
  const auto nested = [extent](int64_t outer, int64_t outer_stride, int64_t inner,
                               int64_t inner_stride) {
    if (inner > 1 && inner_stride < extent) return false;
    const int64_t span = inner > 1 ? (inner - 1) * inner_stride + extent : extent;
    return outer <= 1 || outer_stride >= span;
  };
  return nested(num_a, stride_a, num_b, stride_b) || nested(num_b, stride_b, num_a, stride_a);
}
inline bool RowsAreApart(int64_t num, int64_t stride, int64_t extent) {
  return num <= 1 || stride >= extent;
}

// Enqueues kernel(args...) on a grid of num_blocks blocks along x.
template <typename... Params, typename... Args>
KernelStatus LaunchKernel(void (*kernel)(Params...), int64_t num_blocks, int num_threads,
                          GpuStreamHandle stream, Args... args) {
  if (num_blocks > std::numeric_limits<int32_t>::max()) return KernelStatus::kBadShape;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(num_blocks));
  config.blockDim = dim3(static_cast<unsigned>(num_threads));
  config.stream = static_cast<GpuNativeStream>(stream);
  if (cudaLaunchKernelEx(&config, kernel, args...) == cudaSuccess) return KernelStatus::kOk;
  (void)cudaGetLastError();  // reported by the status; not again by the next call
  return KernelStatus::kLaunchFailed;
}

}  // namespace longspan
