// RMSNorm on the CPU: one row (or head) at a time, sums in fixed lanes, so a row's bits are its
// own. Vectors by Highway, for the best instruction set of the running machine.
#include "kernels/cpu/thread_pool.h"
#include "kernels/rms_norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rms_norm_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace longspan {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

float SumOfSquares(const float* x, size_t dim) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * lanes <= dim; i += 2 * lanes) {
    const auto a = hn::LoadU(d, x + i);
    const auto b = hn::LoadU(d, x + i + lanes);
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  for (; i < dim; ++i) sum += x[i] * x[i];
  return sum;
}

void NormRow(const float* x, const float* weight, float eps, size_t dim, float* y) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const float mean = SumOfSquares(x, dim) / static_cast<float>(dim);
  const float scale = 1.0f / __builtin_sqrtf(mean + eps);
  const auto factor = hn::Set(d, scale);
  size_t i = 0;
  for (; i + lanes <= dim; i += lanes) {
    const auto scaled = hn::Mul(hn::LoadU(d, x + i), factor);
    hn::StoreU(hn::Mul(scaled, hn::LoadU(d, weight + i)), d, y + i);
  }
  for (; i < dim; ++i) y[i] = x[i] * scale * weight[i];
}

void AddRow(const float* x, size_t dim, float* sum) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= dim; i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, sum + i), hn::LoadU(d, x + i)), d, sum + i);
  }
  for (; i < dim; ++i) sum[i] += x[i];
}

}  // namespace HWY_NAMESPACE
}  // namespace longspan
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/cpu/split_rows.h"

namespace longspan {

HWY_EXPORT(NormRow);
HWY_EXPORT(AddRow);

namespace {

void NormOne(const RmsNormParams& params, int64_t row, int64_t head) {
  const size_t dim = static_cast<size_t>(params.dim);
  const float* x =
      static_cast<const float*>(params.x) + row * params.x_row_stride + head * params.x_head_stride;
  float* y =
      static_cast<float*>(params.y) + row * params.y_row_stride + head * params.y_head_stride;
  if (params.residual != nullptr) {
    float* residual = static_cast<float*>(params.residual) + row * params.residual_row_stride +
                      head * params.residual_head_stride;
    HWY_DYNAMIC_DISPATCH(AddRow)(x, dim, residual);
    x = residual;
  }
  HWY_DYNAMIC_DISPATCH(NormRow)(x, params.weight, params.eps, dim, y);
}

}  // namespace

KernelStatus RmsNormCpu(ThreadPool& pool, const RmsNormParams& params) {
  if (params.dtype != DType::kFloat32 ||
      (params.residual != nullptr && params.residual_dtype != DType::kFloat32)) {
    return KernelStatus::kUnsupportedDType;
  }
  if (params.num_rows < 0 || params.num_heads < 1 || params.dim < 1) {
    return KernelStatus::kBadShape;
  }
  SplitRows(pool, params.num_rows, int64_t{params.num_heads} * params.dim,
            [&](int64_t begin, int64_t end) {
              for (int64_t row = begin; row < end; ++row) {
                for (int64_t head = 0; head < params.num_heads; ++head) NormOne(params, row, head);
              }
            });
  return KernelStatus::kOk;
}

}  // namespace longspan
#endif  // HWY_ONCE
