// The gated activation of a feed-forward layer: y = gate / (1 + exp(-gate)) * up, element by
// element.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/kernel_status.h"
#include "kernels/runtime/stream_handle.h"

namespace longspan {

class ThreadPool;

// gate, up, y: [num_rows, dim] of dtype, the last dimension contiguous; y may be gate or up.
struct SiluMulParams {
  const void* gate = nullptr;
  const void* up = nullptr;
  void* y = nullptr;
  int64_t gate_stride = 0;  // row strides in elements
  int64_t up_stride = 0;
  int64_t y_stride = 0;
  int64_t num_rows = 0;  // 0 is legal
  int64_t dim = 0;
  DType dtype = DType::kFloat32;
};

// float32 only, else kUnsupportedDType. Relative error of the activation below 4e-7; large negative
// gates give 0, never NaN.
KernelStatus SiluMulCpu(ThreadPool& pool, const SiluMulParams& params);

// On the device, in the order of the stream; float32, float16 or bfloat16, computed in float32 and
// rounded once. Answers, before anything is launched: kUnsupportedDType; kBadShape, null pointers
// included; kBadStride for negative strides or rows of y that overlap; kMisaligned. 16-byte
// accesses when dim and strides are multiples of 8 and pointers of 16 bytes. Moves 3 * num_rows *
// dim * bytes.
KernelStatus SiluMulGpu(const SiluMulParams& params, GpuStreamHandle stream);

}  // namespace longspan
