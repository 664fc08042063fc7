// The gated activation of a feed-forward layer: y = gate / (1 + exp(-gate)) * up, element by
// element.
#pragma once

#include <cstdint>

#include "kernels/kernel_status.h"

namespace longspan {

class ThreadPool;

// gate, up, y: [num_rows, dim] float, the last dimension contiguous; y may be gate or up.
struct SiluMulParams {
  const float* gate = nullptr;
  const float* up = nullptr;
  float* y = nullptr;
  int64_t gate_stride = 0;  // row strides in elements
  int64_t up_stride = 0;
  int64_t y_stride = 0;
  int64_t num_rows = 0;  // 0 is legal
  int64_t dim = 0;
};

// Relative error of the activation below 4e-7; large negative gates give 0, never NaN.
KernelStatus SiluMulCpu(ThreadPool& pool, const SiluMulParams& params);

}  // namespace longspan
