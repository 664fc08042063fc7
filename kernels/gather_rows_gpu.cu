// Rows of a table, converted. A block takes kThreads chunks of kWidth elements of one row; blocks
// run along x over the chunks of a row, then over the rows. Bound by memory.
#include <cmath>

#include "kernels/element_io.cuh"
#include "kernels/gather_rows.h"
#include "kernels/gpu_launch.cuh"

namespace longspan {
namespace {

constexpr int kThreads = 256;
constexpr int kQuantBlock = 32;   // elements of a block of Q8_0 and Q4_1
constexpr int kQ8Bytes = 2 + 32;  // scale, codes
constexpr int kQ4Bytes = 4 + 16;  // scale, minimum, codes: low halves are elements 0..15

struct GatherArgs {
  GatherRowsParams params;
  int64_t blocks_per_row;
};

__device__ __forceinline__ float LoadHalf(const uint8_t* bytes) {
  return HalfBitsToFloat(*reinterpret_cast<const uint16_t*>(bytes));
}

// One element of a quantised row. Products are exact in float: 11 bits of scale by 8 of code.
__device__ __forceinline__ float LoadQuantised(const uint8_t* row, WeightFormat format, int64_t d) {
  const int64_t block = d / kQuantBlock;
  const int i = static_cast<int>(d - block * kQuantBlock);
  if (format == WeightFormat::kQ8_0) {
    const uint8_t* from = row + block * kQ8Bytes;
    return LoadHalf(from) * static_cast<float>(static_cast<int8_t>(from[2 + i]));
  }
  const uint8_t* from = row + block * kQ4Bytes;
  const int code = i < 16 ? from[4 + i] & 15 : from[4 + i - 16] >> 4;
  return LoadHalf(from) * static_cast<float>(code) + LoadHalf(from + 2);
}

__device__ __forceinline__ DType FloatType(WeightFormat format) {
  return format == WeightFormat::kF32   ? DType::kFloat32
         : format == WeightFormat::kF16 ? DType::kFloat16
                                        : DType::kBFloat16;
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads) GatherRowsKernel(const GatherArgs args) {
  const GatherRowsParams& p = args.params;
  const int64_t i = blockIdx.x / args.blocks_per_row;
  const int64_t tile = blockIdx.x - i * args.blocks_per_row;
  const int64_t d = (tile * kThreads + threadIdx.x) * kWidth;
  if (d >= p.dim) return;
  const int64_t row = p.rows[i];
  const bool quantised = p.format == WeightFormat::kQ8_0 || p.format == WeightFormat::kQ4_1;
  float x[kWidth];
  if (row < 0 || row >= p.num_table_rows) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) x[j] = __int_as_float(0x7fc00000);
  } else {
    const uint8_t* from = static_cast<const uint8_t*>(p.table) + row * p.table_row_bytes;
    if (quantised) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) x[j] = LoadQuantised(from, p.format, d + j);
    } else {
      LoadElements(from, FloatType(p.format), d, x);
    }
  }
  StoreElements(p.y, p.dtype, i * p.y_stride + d, x);
}

struct FormatShape {
  int elements;   // of a block; 0: not supported here
  int bytes;      // of a block
  int alignment;  // of a block in bytes
};

FormatShape ShapeOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return {1, 4, 4};
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return {1, 2, 2};
    case WeightFormat::kQ8_0:
      return {kQuantBlock, kQ8Bytes, 2};
    case WeightFormat::kQ4_1:
      return {kQuantBlock, kQ4Bytes, 4};
    default:
      return {0, 0, 0};
  }
}

KernelStatus Check(const GatherRowsParams& p) {
  const FormatShape shape = ShapeOf(p.format);
  if (shape.elements == 0 || !IsWideType(p.dtype)) return KernelStatus::kUnsupportedDType;
  if (p.num_table_rows < 0 || p.num_rows < 0 || p.dim < 1 || p.dim % shape.elements != 0 ||
      p.dim > (int64_t{1} << 40)) {
    return KernelStatus::kBadShape;
  }
  if (p.table_row_bytes < p.dim / shape.elements * shape.bytes || p.y_stride < 0 ||
      !RowsAreApart(p.num_rows, p.y_stride, p.dim)) {
    return KernelStatus::kBadStride;
  }
  if (p.num_rows == 0) return KernelStatus::kOk;
  if (p.table == nullptr || p.rows == nullptr || p.y == nullptr) return KernelStatus::kBadShape;
  const bool ok = IsAligned(p.table, shape.alignment) && p.table_row_bytes % shape.alignment == 0 &&
                  IsAligned(p.rows, 4) && IsAligned(p.y, DTypeBytes(p.dtype));
  return ok ? KernelStatus::kOk : KernelStatus::kMisaligned;
}

template <int kWidth>
KernelStatus Launch(const GatherRowsParams& p, GpuStreamHandle stream) {
  constexpr int64_t kElements = kThreads * kWidth;
  const int64_t blocks_per_row = (p.dim + kElements - 1) / kElements;
  if (p.num_rows > std::numeric_limits<int32_t>::max() / blocks_per_row) {
    return KernelStatus::kBadShape;
  }
  return LaunchKernel(&GatherRowsKernel<kWidth>, p.num_rows * blocks_per_row, kThreads, stream,
                      GatherArgs{p, blocks_per_row});
}

}  // namespace

KernelStatus GatherRowsGpu(const GatherRowsParams& params, GpuStreamHandle stream) {
  if (const KernelStatus status = Check(params); status != KernelStatus::kOk) return status;
  if (params.num_rows == 0) return KernelStatus::kOk;
  const bool quantised = ShapeOf(params.format).elements > 1;
  const bool vector =
      params.dim % kVectorWidth == 0 && IsVectorizable(params.y, {params.y_stride}) &&
      (quantised || (IsAligned(params.table, 16) && params.table_row_bytes % 16 == 0));
  return vector ? Launch<kVectorWidth>(params, stream) : Launch<1>(params, stream);
}

}  // namespace longspan
