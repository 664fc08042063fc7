// SiLU-mul, element by element. A block takes kThreads chunks of kWidth elements of one row; blocks
// run along x over the chunks of a row, then over the rows. Bound by memory.
#include "kernels/element_io.cuh"
#include "kernels/gpu_launch.cuh"
#include "kernels/silu_mul.h"

namespace longspan {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float SiluMul(float gate, float up) {
  // As the CPU: below -87 the activation is 0, not -0 or a denormal; NaN stays NaN.
  const float silu = gate < -87.0f ? 0.0f : gate / (1.0f + expf(-gate));
  return silu * up;
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    SiluMulKernel(const SiluMulParams p, const int64_t blocks_per_row) {
  const int64_t row = blockIdx.x / blocks_per_row;
  const int64_t tile = blockIdx.x - row * blocks_per_row;
  const int64_t d = (tile * kThreads + threadIdx.x) * kWidth;
  if (d >= p.dim) return;
  float gate[kWidth];
  float up[kWidth];
  LoadElements(p.gate, p.dtype, row * p.gate_stride + d, gate);
  LoadElements(p.up, p.dtype, row * p.up_stride + d, up);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) gate[i] = SiluMul(gate[i], up[i]);
  StoreElements(p.y, p.dtype, row * p.y_stride + d, gate);
}

template <int kWidth>
KernelStatus Launch(const SiluMulParams& p, GpuStreamHandle stream) {
  constexpr int64_t kElements = kThreads * kWidth;
  const int64_t blocks_per_row = (p.dim + kElements - 1) / kElements;
  if (p.num_rows > std::numeric_limits<int32_t>::max() / blocks_per_row) {
    return KernelStatus::kBadShape;
  }
  return LaunchKernel(&SiluMulKernel<kWidth>, p.num_rows * blocks_per_row, kThreads, stream, p,
                      blocks_per_row);
}

KernelStatus Check(const SiluMulParams& p) {
  if (!IsWideType(p.dtype)) return KernelStatus::kUnsupportedDType;
  if (p.num_rows < 0 || p.dim < 0 || p.dim > (int64_t{1} << 40)) return KernelStatus::kBadShape;
  if (p.num_rows == 0 || p.dim == 0) return KernelStatus::kOk;
  if (p.gate_stride < 0 || p.up_stride < 0 || p.y_stride < 0 ||
      !RowsAreApart(p.num_rows, p.y_stride, p.dim)) {
    return KernelStatus::kBadStride;
  }
  if (p.gate == nullptr || p.up == nullptr || p.y == nullptr) return KernelStatus::kBadShape;
  const int bytes = DTypeBytes(p.dtype);
  const bool ok = IsAligned(p.gate, bytes) && IsAligned(p.up, bytes) && IsAligned(p.y, bytes);
  return ok ? KernelStatus::kOk : KernelStatus::kMisaligned;
}

}  // namespace

KernelStatus SiluMulGpu(const SiluMulParams& params, GpuStreamHandle stream) {
  if (const KernelStatus status = Check(params); status != KernelStatus::kOk) return status;
  if (params.num_rows == 0 || params.dim == 0) return KernelStatus::kOk;
  const bool vector =
      params.dim % kVectorWidth == 0 && IsVectorizable(params.gate, {params.gate_stride}) &&
      IsVectorizable(params.up, {params.up_stride}) && IsVectorizable(params.y, {params.y_stride});
  return vector ? Launch<kVectorWidth>(params, stream) : Launch<1>(params, stream);
}

}  // namespace longspan
