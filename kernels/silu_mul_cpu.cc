// SiLU-mul on the CPU, by Highway: silu(g) = g / (1 + 2^(-g log2 e)), with a polynomial for the
// power.
#include "kernels/cpu/thread_pool.h"
#include "kernels/silu_mul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/silu_mul_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace longspan {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// e^-g for g in [-87, 87]; the power's argument is reduced in two steps, so that large g stays
// accurate.
template <class D, class V = hn::Vec<D>>
V ExpOfMinus(D d, V g) {
  const hn::RebindToSigned<D> di;
  const auto n = hn::Round(hn::Mul(g, hn::Set(d, -1.44269504088896341f)));
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), hn::Neg(g));
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  auto p = hn::Set(d, 1.0f / 5040.0f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 720.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 120.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 24.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 6.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const auto power = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  return hn::Mul(p, hn::BitCast(d, power));
}

template <class D, class V = hn::Vec<D>>
V SiluMul(D d, V gate, V up) {
  // Beyond the clamp silu(g) is g to the last bit, or below 1e-36 and cut to 0. NaN stays NaN.
  const auto low = hn::Set(d, -87.0f);
  const auto clamped = hn::IfThenElse(hn::Lt(gate, low), low, hn::Min(gate, hn::Set(d, 87.0f)));
  const auto denominator = hn::Add(hn::Set(d, 1.0f), ExpOfMinus(d, clamped));
  const auto silu = hn::Div(gate, denominator);
  const auto kept = hn::IfThenElse(hn::Lt(gate, low), hn::Zero(d), silu);
  return hn::Mul(hn::IfThenElse(hn::Ne(gate, gate), gate, kept), up);
}

void SiluMulRow(const float* gate, const float* up, float* y, size_t dim) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= dim; i += lanes) {
    hn::StoreU(SiluMul(d, hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), d, y + i);
  }
  if (i == dim) return;
  // The tail through full vectors, so that an element's bits do not depend on where it stands.
  HWY_ALIGN float g[HWY_MAX_BYTES / sizeof(float)] = {};
  HWY_ALIGN float u[HWY_MAX_BYTES / sizeof(float)] = {};
  for (size_t j = i; j < dim; ++j) {
    g[j - i] = gate[j];
    u[j - i] = up[j];
  }
  hn::Store(SiluMul(d, hn::Load(d, g), hn::Load(d, u)), d, g);
  for (size_t j = i; j < dim; ++j) y[j] = g[j - i];
}

}  // namespace HWY_NAMESPACE
}  // namespace longspan
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/cpu/split_rows.h"

namespace longspan {

HWY_EXPORT(SiluMulRow);

KernelStatus SiluMulCpu(ThreadPool& pool, const SiluMulParams& params) {
  if (params.dtype != DType::kFloat32) return KernelStatus::kUnsupportedDType;
  if (params.num_rows < 0 || params.dim < 0) return KernelStatus::kBadShape;
  const auto* gate = static_cast<const float*>(params.gate);
  const auto* up = static_cast<const float*>(params.up);
  auto* y = static_cast<float*>(params.y);
  SplitRows(pool, params.num_rows, params.dim, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      HWY_DYNAMIC_DISPATCH(SiluMulRow)
      (gate + row * params.gate_stride, up + row * params.up_stride, y + row * params.y_stride,
       static_cast<size_t>(params.dim));
    }
  });
  return KernelStatus::kOk;
}

}  // namespace longspan
#endif  // HWY_ONCE
