// RMSNorm with an optional residual. kRowThreads threads share a row (a head of it): 32 for short
// rows, four rows a block; else the whole block. Two passes: the sum of squares, then the scaling,
// which finds its row in cache. The sum's order is fixed by dim: lanes, then a butterfly, then
// warps.
#include "kernels/element_io.cuh"
#include "kernels/gpu_launch.cuh"
#include "kernels/rms_norm.h"

namespace longspan {
namespace {

constexpr int kWarp = 32;
constexpr int kShortThreads = 4 * kWarp;  // of a block of short rows

constexpr int BlockThreads(int row_threads) {
  return row_threads == kWarp ? kShortThreads : row_threads;
}

// Sum over the threads of a row, in every one of them.
template <int kRowThreads>
__device__ __forceinline__ float SumOverRow(float x) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, distance);
  }
  if constexpr (kRowThreads > kWarp) {
    constexpr int kWarps = kRowThreads / kWarp;
    __shared__ float warp_sums[kWarps];
    if (threadIdx.x % kWarp == 0) warp_sums[threadIdx.x / kWarp] = x;
    __syncthreads();
    x = 0.0f;
    for (int warp = 0; warp < kWarps; ++warp) x += warp_sums[warp];
  }
  return x;
}

template <int kWidth, int kRowThreads>
__global__ void __launch_bounds__(BlockThreads(kRowThreads))
    RmsNormKernel(const RmsNormParams p, const int64_t num_items) {
  constexpr int kRowsPerBlock = BlockThreads(kRowThreads) / kRowThreads;
  const int64_t item = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kRowThreads;
  if (item >= num_items) return;  // whole warps: short rows have one each
  const int64_t row = item / p.num_heads;
  const int64_t head = item - row * p.num_heads;
  const int first = static_cast<int>(threadIdx.x % kRowThreads) * kWidth;
  constexpr int kStep = kRowThreads * kWidth;
  const int64_t x_begin = row * p.x_row_stride + head * p.x_head_stride;
  const int64_t y_begin = row * p.y_row_stride + head * p.y_head_stride;
  const int64_t residual_begin = row * p.residual_row_stride + head * p.residual_head_stride;
  const bool has_residual = p.residual != nullptr;

  float squares = 0.0f;
#pragma unroll 1
  for (int d = first; d < p.dim; d += kStep) {
    float x[kWidth];
    LoadElements(p.x, p.dtype, x_begin + d, x);
    if (has_residual) {
      float sum[kWidth];
      LoadElements(p.residual, p.residual_dtype, residual_begin + d, sum);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) x[i] = Rounded(sum[i] + x[i], p.residual_dtype);
      StoreElements(p.residual, p.residual_dtype, residual_begin + d, x);
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) squares = fmaf(x[i], x[i], squares);
  }
  const float mean = SumOverRow<kRowThreads>(squares) / static_cast<float>(p.dim);
  const float scale = 1.0f / sqrtf(mean + p.eps);
  // Each thread reads again what it has read, or stored, itself.
#pragma unroll 1
  for (int d = first; d < p.dim; d += kStep) {
    float x[kWidth];
    float weight[kWidth];
    if (has_residual) {
      LoadElements(p.residual, p.residual_dtype, residual_begin + d, x);
    } else {
      LoadElements(p.x, p.dtype, x_begin + d, x);
    }
    LoadElements(p.weight, DType::kFloat32, d, weight);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) x[i] = x[i] * scale * weight[i];
    StoreElements(p.y, p.dtype, y_begin + d, x);
  }
}

KernelStatus CheckShape(const RmsNormParams& p) {
  const bool has_residual = p.residual != nullptr;
  if (!IsWideType(p.dtype) || (has_residual && !IsWideType(p.residual_dtype))) {
    return KernelStatus::kUnsupportedDType;
  }
  if (p.num_rows < 0 || p.num_heads < 1 || p.dim < 1 ||
      p.dim > std::numeric_limits<int32_t>::max() / 2 ||
      p.num_rows > std::numeric_limits<int32_t>::max() / p.num_heads) {
    return KernelStatus::kBadShape;
  }
  for (const int64_t stride : {p.x_row_stride, p.x_head_stride, p.y_row_stride, p.y_head_stride,
                               p.residual_row_stride, p.residual_head_stride}) {
    if (stride < 0) return KernelStatus::kBadStride;
  }
  const bool apart =
      RowsAreApart(p.num_rows, p.y_row_stride, p.num_heads, p.y_head_stride, p.dim) &&
      (!has_residual ||
       RowsAreApart(p.num_rows, p.residual_row_stride, p.num_heads, p.residual_head_stride, p.dim));
  return apart ? KernelStatus::kOk : KernelStatus::kBadStride;
}

KernelStatus CheckPointers(const RmsNormParams& p) {
  if (p.x == nullptr || p.y == nullptr || p.weight == nullptr) return KernelStatus::kBadShape;
  const int bytes = DTypeBytes(p.dtype);
  const bool ok = IsAligned(p.x, bytes) && IsAligned(p.y, bytes) && IsAligned(p.weight, 4) &&
                  IsAligned(p.residual, DTypeBytes(p.residual_dtype));
  return ok ? KernelStatus::kOk : KernelStatus::kMisaligned;
}

template <int kWidth>
KernelStatus Launch(const RmsNormParams& p, GpuStreamHandle stream) {
  const int64_t items = p.num_rows * p.num_heads;
  // dim decides alone, so that a row's bits are its own.
  if (p.dim <= 1024) {
    constexpr int kRows = kShortThreads / kWarp;
    return LaunchKernel(&RmsNormKernel<kWidth, kWarp>, (items + kRows - 1) / kRows, kShortThreads,
                        stream, p, items);
  }
  if (p.dim <= 8192) {
    return LaunchKernel(&RmsNormKernel<kWidth, 256>, items, 256, stream, p, items);
  }
  return LaunchKernel(&RmsNormKernel<kWidth, 1024>, items, 1024, stream, p, items);
}

}  // namespace

KernelStatus RmsNormGpu(const RmsNormParams& params, GpuStreamHandle stream) {
  if (const KernelStatus status = CheckShape(params); status != KernelStatus::kOk) return status;
  if (params.num_rows == 0) return KernelStatus::kOk;
  if (const KernelStatus status = CheckPointers(params); status != KernelStatus::kOk) return status;
  const bool vector =
      params.dim % kVectorWidth == 0 && IsAligned(params.weight, 16) &&
      IsVectorizable(params.x, {params.x_row_stride, params.x_head_stride}) &&
      IsVectorizable(params.y, {params.y_row_stride, params.y_head_stride}) &&
      IsVectorizable(params.residual, {params.residual_row_stride, params.residual_head_stride});
  return vector ? Launch<kVectorWidth>(params, stream) : Launch<1>(params, stream);
}

}  // namespace longspan
