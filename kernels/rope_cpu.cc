// Rotary embedding on the CPU: frequencies and the table of angles in double, the rotation by
// Highway.
#include "kernels/cpu/thread_pool.h"
#include "kernels/rope.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rope_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace longspan {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Pair i: (x[i], x[i + num_pairs]). cos_sin: num_pairs cosines, then as many sines.
void RotateHalfSplit(float* x, const float* cos_sin, size_t num_pairs) {
  const hn::CappedTag<float, 16> d;
  const size_t lanes = hn::Lanes(d);
  const float* sines = cos_sin + num_pairs;
  size_t i = 0;
  for (; i + lanes <= num_pairs; i += lanes) {
    const auto a = hn::LoadU(d, x + i);
    const auto b = hn::LoadU(d, x + num_pairs + i);
    const auto c = hn::LoadU(d, cos_sin + i);
    const auto s = hn::LoadU(d, sines + i);
    hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, x + i);
    hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, x + num_pairs + i);
  }
  for (; i < num_pairs; ++i) {
    const float a = x[i];
    const float b = x[num_pairs + i];
    x[i] = a * cos_sin[i] - b * sines[i];
    x[num_pairs + i] = a * sines[i] + b * cos_sin[i];
  }
}

// Pair i: (x[2i], x[2i + 1]).
void RotateInterleaved(float* x, const float* cos_sin, size_t num_pairs) {
  const hn::CappedTag<float, 16> d;
  const size_t lanes = hn::Lanes(d);
  const float* sines = cos_sin + num_pairs;
  size_t i = 0;
  for (; i + lanes <= num_pairs; i += lanes) {
    hn::Vec<decltype(d)> a, b;
    hn::LoadInterleaved2(d, x + 2 * i, a, b);
    const auto c = hn::LoadU(d, cos_sin + i);
    const auto s = hn::LoadU(d, sines + i);
    const auto rotated_a = hn::NegMulAdd(b, s, hn::Mul(a, c));
    const auto rotated_b = hn::MulAdd(a, s, hn::Mul(b, c));
    hn::StoreInterleaved2(rotated_a, rotated_b, d, x + 2 * i);
  }
  for (; i < num_pairs; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = a * cos_sin[i] - b * sines[i];
    x[2 * i + 1] = a * sines[i] + b * cos_sin[i];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace longspan
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/cpu/split_rows.h"

namespace longspan {
namespace {

bool IsPositive(double x) { return std::isfinite(x) && x > 0.0; }

KernelStatus CheckFrequencyParams(const RopeFrequencyParams& p) {
  if (p.rotary_dim < 0 || p.rotary_dim % 2 != 0) return KernelStatus::kBadShape;
  if (!p.freq_factors.empty() && p.freq_factors.size() != size_t(p.rotary_dim) / 2) {
    return KernelStatus::kBadShape;
  }
  if (!IsPositive(p.theta) || !IsPositive(p.factor)) return KernelStatus::kUnsupportedOption;
  for (const float factor : p.freq_factors) {
    if (!IsPositive(factor)) return KernelStatus::kUnsupportedOption;
  }
  const bool needs_length = p.rule == RopeRule::kLlama3 || p.rule == RopeRule::kYarn;
  if (needs_length && p.original_context_length <= 0) return KernelStatus::kUnsupportedOption;
  if (p.rule == RopeRule::kLlama3 &&
      (!IsPositive(p.low_freq_factor) || !(p.high_freq_factor > p.low_freq_factor))) {
    return KernelStatus::kUnsupportedOption;
  }
  if (p.rule == RopeRule::kYarn && (!IsPositive(p.beta_slow) || !(p.beta_fast > p.beta_slow) ||
                                    !(p.attention_factor >= 0.0) || !(p.theta > 1.0))) {
    return KernelStatus::kUnsupportedOption;
  }
  return KernelStatus::kOk;
}

// Llama 3: long waves are stretched by the factor, short ones kept, those between are blended.
double Llama3Frequency(const RopeFrequencyParams& p, double frequency) {
  const double waves = p.original_context_length * frequency / (2.0 * std::numbers::pi);
  if (waves < p.low_freq_factor) return frequency / p.factor;
  if (waves > p.high_freq_factor) return frequency;
  const double smooth = (waves - p.low_freq_factor) / (p.high_freq_factor - p.low_freq_factor);
  return (1.0 - smooth) * frequency / p.factor + smooth * frequency;
}

// YaRN: the pair that turns `rotations` times within the original context (a real number).
double YarnPair(const RopeFrequencyParams& p, double rotations) {
  return p.rotary_dim * std::log(p.original_context_length / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(p.theta));
}

// YaRN: a ramp over the pairs blends kept (fast) and stretched (slow) frequencies.
double YarnFrequency(const RopeFrequencyParams& p, double frequency, int32_t pair) {
  const double low = std::max(0.0, std::floor(YarnPair(p, p.beta_fast)));
  double high = std::min<double>(p.rotary_dim - 1, std::ceil(YarnPair(p, p.beta_slow)));
  if (high == low) high += 0.001;
  const double ramp = std::clamp((pair - low) / (high - low), 0.0, 1.0);
  return frequency / p.factor * ramp + frequency * (1.0 - ramp);
}

}  // namespace

HWY_EXPORT(RotateHalfSplit);
HWY_EXPORT(RotateInterleaved);

KernelStatus MakeRopeFrequencies(const RopeFrequencyParams& params, RopeFrequencies& out) {
  if (const KernelStatus status = CheckFrequencyParams(params); status != KernelStatus::kOk) {
    return status;
  }
  out.inv_freq.resize(params.rotary_dim / 2);
  out.magnitude = 1.0f;
  for (int32_t pair = 0; pair < params.rotary_dim / 2; ++pair) {
    double frequency = std::pow(params.theta, -2.0 * pair / params.rotary_dim);
    if (!params.freq_factors.empty()) frequency /= params.freq_factors[pair];
    switch (params.rule) {
      case RopeRule::kPlain:
        break;
      case RopeRule::kLinear:
        frequency /= params.factor;
        break;
      case RopeRule::kLlama3:
        frequency = Llama3Frequency(params, frequency);
        break;
      case RopeRule::kYarn:
        frequency = YarnFrequency(params, frequency, pair);
        break;
    }
    out.inv_freq[pair] = static_cast<float>(frequency);
  }
  if (params.rule == RopeRule::kYarn) {
    const double magnitude = params.attention_factor > 0.0 ? params.attention_factor
                             : params.factor > 1.0         ? 0.1 * std::log(params.factor) + 1.0
                                                           : 1.0;
    out.magnitude = static_cast<float>(magnitude);
  }
  return KernelStatus::kOk;
}

void FillRopeTableCpu(ThreadPool& pool, const RopeFrequencies& frequencies,
                      std::span<const int32_t> positions, float* cos_sin) {
  const int64_t num_pairs = static_cast<int64_t>(frequencies.inv_freq.size());
  // A cosine and a sine in double cost about as much as 40 float operations.
  SplitRows(pool, static_cast<int64_t>(positions.size()), num_pairs * 40,
            [&](int64_t begin, int64_t end) {
              for (int64_t row = begin; row < end; ++row) {
                float* cosines = cos_sin + row * 2 * num_pairs;
                for (int64_t pair = 0; pair < num_pairs; ++pair) {
                  // 31 bits times 24 bits: exact in double but for its last two bits.
                  const double angle = double(positions[row]) * double(frequencies.inv_freq[pair]);
                  cosines[pair] = static_cast<float>(std::cos(angle) * frequencies.magnitude);
                  cosines[num_pairs + pair] =
                      static_cast<float>(std::sin(angle) * frequencies.magnitude);
                }
              }
            });
}

void RotateRowCpu(float* x, const float* cos_sin, int32_t rotary_dim, RopePairs pairs) {
  const size_t num_pairs = static_cast<size_t>(rotary_dim / 2);
  if (pairs == RopePairs::kHalfSplit) {
    HWY_DYNAMIC_DISPATCH(RotateHalfSplit)(x, cos_sin, num_pairs);
  } else {
    HWY_DYNAMIC_DISPATCH(RotateInterleaved)(x, cos_sin, num_pairs);
  }
}

KernelStatus RopeCpu(ThreadPool& pool, const RopeParams& params) {
  if (params.dtype != DType::kFloat32) return KernelStatus::kUnsupportedDType;
  if (params.num_tokens < 0 || params.num_heads < 1 || params.rotary_dim < 0 ||
      params.rotary_dim % 2 != 0 || params.rotary_dim > params.head_dim) {
    return KernelStatus::kBadShape;
  }
  const int64_t num_pairs = params.rotary_dim / 2;
  SplitRows(pool, params.num_tokens, int64_t{params.num_heads} * params.head_dim,
            [&](int64_t begin, int64_t end) {
              for (int64_t token = begin; token < end; ++token) {
                const float* row = params.cos_sin + token * 2 * num_pairs;
                for (int64_t head = 0; head < params.num_heads; ++head) {
                  float* x = static_cast<float*>(params.x) + token * params.token_stride +
                             head * params.head_stride;
                  RotateRowCpu(x, row, params.rotary_dim, params.pairs);
                }
              }
            });
  return KernelStatus::kOk;
}

}  // namespace longspan
#endif  // HWY_ONCE
