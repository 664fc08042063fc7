// RMSNorm over the last dimension: y = x / sqrt(mean(x^2) + eps) * weight. Also used per head (QK
// norm): then num_heads > 1 and every head of a row is normalised by itself with the same weight.
// With a residual, x is added to it first and the sum is what is normalised.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/kernel_status.h"
#include "kernels/runtime/stream_handle.h"

namespace longspan {

class ThreadPool;

// x, y: [num_rows, num_heads, dim] of dtype, the last dimension contiguous; y may be x.
struct RmsNormParams {
  const void* x = nullptr;
  void* y = nullptr;
  const float* weight = nullptr;  // [dim]
  int64_t x_row_stride = 0;       // strides in elements
  int64_t x_head_stride = 0;
  int64_t y_row_stride = 0;
  int64_t y_head_stride = 0;
  int64_t num_rows = 0;  // 0 is legal
  int32_t num_heads = 1;
  int32_t dim = 0;
  float eps = 1e-5f;
  DType dtype = DType::kFloat32;

  // Shaped like x, apart from x and y; null: none. residual += x, rounded to residual_dtype; what
  // is normalised is the rounded sum.
  void* residual = nullptr;
  int64_t residual_row_stride = 0;
  int64_t residual_head_stride = 0;
  DType residual_dtype = DType::kFloat32;
};

// Any dim >= 1; float32 only (else kUnsupportedDType). A row's bits depend on that row only. Little
// work runs on the calling thread alone.
KernelStatus RmsNormCpu(ThreadPool& pool, const RmsNormParams& params);

// On the device, in the order of the stream; every pointer is device memory. float32, float16 or
// bfloat16, x and the residual apart; sums in float32, in an order that
// depends on dim and on the width of accesses alone.
// Answers, before anything is launched: kUnsupportedDType; kBadShape for extents out of range (rows
// * heads at most 2^31 - 1) or null pointers with rows; kBadStride for negative strides or rows of
// y that overlap; kMisaligned. 16-byte accesses when dim and strides are multiples of 8 and
// pointers of 16 bytes. Moves num_rows * num_heads * dim * (bytes of x + of y + 2 * of residual);
// the second reading comes from cache.
KernelStatus RmsNormGpu(const RmsNormParams& params, GpuStreamHandle stream);

}  // namespace longspan
