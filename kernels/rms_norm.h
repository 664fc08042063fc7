// RMSNorm over the last dimension: y = x / sqrt(mean(x^2) + eps) * weight. Also used per head (QK
// norm): then num_heads > 1 and every head of a row is normalised by itself with the same weight.
#pragma once

#include <cstdint>

#include "kernels/kernel_status.h"

namespace longspan {

class ThreadPool;

// x, y: [num_rows, num_heads, dim] float, the last dimension contiguous; y may be x.
struct RmsNormParams {
  const float* x = nullptr;
  float* y = nullptr;
  const float* weight = nullptr;  // [dim]
  int64_t x_row_stride = 0;       // strides in elements
  int64_t x_head_stride = 0;
  int64_t y_row_stride = 0;
  int64_t y_head_stride = 0;
  int64_t num_rows = 0;  // 0 is legal
  int32_t num_heads = 1;
  int32_t dim = 0;
  float eps = 1e-5f;
};

// Any dim >= 1. A row's bits depend on that row only. Little work runs on the calling thread alone.
KernelStatus RmsNormCpu(ThreadPool& pool, const RmsNormParams& params);

}  // namespace longspan
