// Rotary embedding: the table of cosines and sines, and the rotation in place. The rotation has one
// block per token; its threads take chunks of pairs of all heads. Each pair is read and written by
// one thread, so in place is safe. Bound by memory.
#include <numbers>

#include "kernels/element_io.cuh"
#include "kernels/gpu_launch.cuh"
#include "kernels/rope.h"

namespace longspan {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ void Rotate(float& a, float& b, float cosine, float sine) {
  const float rotated_a = fmaf(-b, sine, a * cosine);
  b = fmaf(a, sine, b * cosine);
  a = rotated_a;
}

// kWidth pairs (i, i + num_pairs) of the head that begins at element `head`.
template <int kWidth>
__device__ __forceinline__ void RotateHalfSplit(const RopeParams& p, int64_t head, int i,
                                                const float* cosines) {
  const int num_pairs = p.rotary_dim / 2;
  float a[kWidth], b[kWidth], cosine[kWidth], sine[kWidth];
  LoadElements(p.x, p.dtype, head + i, a);
  LoadElements(p.x, p.dtype, head + num_pairs + i, b);
  LoadElements(cosines, DType::kFloat32, i, cosine);
  LoadElements(cosines, DType::kFloat32, num_pairs + i, sine);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) Rotate(a[j], b[j], cosine[j], sine[j]);
  StoreElements(p.x, p.dtype, head + i, a);
  StoreElements(p.x, p.dtype, head + num_pairs + i, b);
}

// Pairs (2i, 2i + 1): four when kWidth is 8, else one.
template <int kWidth>
__device__ __forceinline__ void RotateInterleaved(const RopeParams& p, int64_t head, int i,
                                                  const float* cosines) {
  const int num_pairs = p.rotary_dim / 2;
  if constexpr (kWidth == 1) {
    float a[1], b[1];
    LoadElements(p.x, p.dtype, head + 2 * i, a);
    LoadElements(p.x, p.dtype, head + 2 * i + 1, b);
    Rotate(a[0], b[0], cosines[i], cosines[num_pairs + i]);
    StoreElements(p.x, p.dtype, head + 2 * i, a);
    StoreElements(p.x, p.dtype, head + 2 * i + 1, b);
  } else {
    float x[kWidth];
    LoadElements(p.x, p.dtype, head + 2 * i, x);
    const float4 cosine = *reinterpret_cast<const float4*>(cosines + i);
    const float4 sine = *reinterpret_cast<const float4*>(cosines + num_pairs + i);
    Rotate(x[0], x[1], cosine.x, sine.x);
    Rotate(x[2], x[3], cosine.y, sine.y);
    Rotate(x[4], x[5], cosine.z, sine.z);
    Rotate(x[6], x[7], cosine.w, sine.w);
    StoreElements(p.x, p.dtype, head + 2 * i, x);
  }
}

template <int kWidth, bool kHalfSplit>
__global__ void __launch_bounds__(kThreads) RopeKernel(const RopeParams p) {
  constexpr int kPairs = kHalfSplit || kWidth == 1 ? kWidth : kWidth / 2;  // of a chunk
  const int64_t token = blockIdx.x;
  const int num_pairs = p.rotary_dim / 2;
  const float* cosines = p.cos_sin + token * 2 * num_pairs;
  const int chunks = num_pairs / kPairs;  // of a head
  const int items = p.num_heads * chunks;
#pragma unroll 1
  for (int item = static_cast<int>(threadIdx.x); item < items; item += kThreads) {
    const int head = item / chunks;
    const int i = (item - head * chunks) * kPairs;
    const int64_t begin = token * p.token_stride + head * p.head_stride;
    if constexpr (kHalfSplit) {
      RotateHalfSplit<kWidth>(p, begin, i, cosines);
    } else {
      RotateInterleaved<kWidth>(p, begin, i, cosines);
    }
  }
}

// One thread per entry of the table. The angle is reduced by whole turns with a fused product, so
// that positions up to 2^31 keep their last bits; then cosine and sine of half turns in double.
__global__ void __launch_bounds__(kThreads) RopeTableKernel(const RopeTableParams p) {
  const int64_t entry = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = entry / p.num_pairs;
  if (row >= p.num_positions) return;
  const int64_t pair = entry - row * p.num_pairs;
  constexpr double kTurn = 2.0 * std::numbers::pi;
  constexpr double kTurnRest = 2.4492935982947064e-16;  // 2 pi - kTurn
  const double angle = double{static_cast<double>(p.positions[row])} * double{p.inv_freq[pair]};
  const double turns = rint(angle / kTurn);
  const double rest = fma(-turns, kTurnRest, fma(-turns, kTurn, angle));
  double sine, cosine;
  sincospi(rest / std::numbers::pi, &sine, &cosine);
  float* out = p.cos_sin + row * 2 * p.num_pairs + pair;
  out[0] = static_cast<float>(cosine * p.magnitude);
  out[p.num_pairs] = static_cast<float>(sine * p.magnitude);
}

KernelStatus Check(const RopeParams& p) {
  if (!IsWideType(p.dtype)) return KernelStatus::kUnsupportedDType;
  if (p.num_tokens < 0 || p.num_heads < 1 || p.rotary_dim < 0 || p.rotary_dim % 2 != 0 ||
      p.rotary_dim > p.head_dim || p.num_tokens > std::numeric_limits<int32_t>::max() ||
      int64_t{p.num_heads} * p.head_dim > (int64_t{1} << 30)) {
    return KernelStatus::kBadShape;
  }
  if (p.num_tokens == 0 || p.rotary_dim == 0) return KernelStatus::kOk;
  if (p.token_stride < 0 || p.head_stride < 0 ||
      !RowsAreApart(p.num_tokens, p.token_stride, p.num_heads, p.head_stride, p.rotary_dim)) {
    return KernelStatus::kBadStride;
  }
  if (p.x == nullptr || p.cos_sin == nullptr) return KernelStatus::kBadShape;
  const bool ok = IsAligned(p.x, DTypeBytes(p.dtype)) && IsAligned(p.cos_sin, 4);
  return ok ? KernelStatus::kOk : KernelStatus::kMisaligned;
}

}  // namespace

KernelStatus RopeGpu(const RopeParams& params, GpuStreamHandle stream) {
  if (const KernelStatus status = Check(params); status != KernelStatus::kOk) return status;
  if (params.num_tokens == 0 || params.rotary_dim == 0) return KernelStatus::kOk;
  const bool half_split = params.pairs == RopePairs::kHalfSplit;
  const bool vector = params.rotary_dim % (half_split ? 16 : 8) == 0 &&
                      IsVectorizable(params.x, {params.token_stride, params.head_stride}) &&
                      IsAligned(params.cos_sin, 16);
  void (*kernel)(RopeParams) = nullptr;
  if (half_split) {
    kernel = vector ? &RopeKernel<kVectorWidth, true> : &RopeKernel<1, true>;
  } else {
    kernel = vector ? &RopeKernel<kVectorWidth, false> : &RopeKernel<1, false>;
  }
  return LaunchKernel(kernel, params.num_tokens, kThreads, stream, params);
}

KernelStatus FillRopeTableGpu(const RopeTableParams& params, GpuStreamHandle stream) {
  if (params.num_positions < 0 || params.num_pairs < 0 ||
      params.num_positions > (int64_t{1} << 31)) {
    return KernelStatus::kBadShape;
  }
  const int64_t entries = params.num_positions * params.num_pairs;
  if (entries == 0) return KernelStatus::kOk;
  if (params.inv_freq == nullptr || params.positions == nullptr || params.cos_sin == nullptr) {
    return KernelStatus::kBadShape;
  }
  if (!IsAligned(params.inv_freq, 4) || !IsAligned(params.positions, 4) ||
      !IsAligned(params.cos_sin, 4)) {
    return KernelStatus::kMisaligned;
  }
  return LaunchKernel(&RopeTableKernel, (entries + kThreads - 1) / kThreads, kThreads, stream,
                      params);
}

}  // namespace longspan
