// CPU side of kernels/sampling.h with Highway: one source, compiled for every vector width, chosen
// at run time. A partial last block is padded with -inf, so that no pass has a scalar tail.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sampling_cpu.cc"
#include "hwy/foreach_target.h"
// Highway wants its headers after foreach_target.
#include <algorithm>
#include <cstring>
#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/sampling.h"

HWY_BEFORE_NAMESPACE();
namespace longspan {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::CappedTag<float, 16>;
using Vec = hn::Vec<Tag>;

// Calls f(block index, pointer to kLogitBlock floats, index of the first, number that are real).
template <typename F>
HWY_INLINE void ForEachBlock(const float* logits, int64_t num_logits, F f) {
  const int64_t num_full = num_logits / kLogitBlock;
  for (int64_t b = 0; b < num_full; ++b)
    f(b, logits + b * kLogitBlock, b * kLogitBlock, kLogitBlock);
  const int64_t rest = num_logits - num_full * kLogitBlock;
  if (rest == 0) return;
  HWY_ALIGN float padded[kLogitBlock];
  std::fill_n(padded, kLogitBlock, -std::numeric_limits<float>::infinity());
  std::memcpy(padded, logits + num_full * kLogitBlock, static_cast<size_t>(rest) * sizeof(float));
  f(num_full, padded, num_full * kLogitBlock, rest);
}

bool Summarize(const float* logits, int64_t num_logits, float* block_max) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  // x * 0 is 0 for finite x, NaN else; NaN sticks to the sum.
  Vec zeros = hn::Zero(d);
  bool all_finite = true;
  ForEachBlock(logits, num_logits, [&](int64_t b, const float* x, int64_t, int64_t count) HWY_ATTR {
    Vec largest = hn::LoadU(d, x);
    for (int64_t i = 0; i < kLogitBlock; i += lanes) {
      const Vec v = hn::LoadU(d, x + i);
      largest = hn::Max(largest, v);
      if (count == kLogitBlock) zeros = hn::MulAdd(v, hn::Zero(d), zeros);
    }
    block_max[b] = hn::GetLane(hn::MaxOfLanes(d, largest));
    for (int64_t i = 0; count != kLogitBlock && i < count; ++i) all_finite &= x[i] * 0.0f == 0.0f;
  });
  return all_finite && hn::AllTrue(d, hn::Eq(zeros, hn::Zero(d)));
}

HWY_INLINE Vec ExpTerm(Tag d, const float* x, Vec max, Vec inverse_temperature) {
  return hn::Exp(d, hn::Mul(hn::Sub(hn::LoadU(d, x), max), inverse_temperature));
}

double SumExp(const float* logits, int64_t num_logits, float max, float inverse_temperature,
              float* block_sums) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const Vec vmax = hn::Set(d, max), vinverse = hn::Set(d, inverse_temperature);
  double total = 0.0;
  ForEachBlock(logits, num_logits, [&](int64_t b, const float* x, int64_t, int64_t) HWY_ATTR {
    Vec sum = hn::Zero(d);
    for (int64_t i = 0; i < kLogitBlock; i += lanes) {
      sum = hn::Add(sum, ExpTerm(d, x + i, vmax, vinverse));
    }
    block_sums[b] = hn::GetLane(hn::SumOfLanes(d, sum));
    total += block_sums[b];
  });
  return total;
}

void ExpRow(const float* logits, int64_t num_logits, float max, float inverse_temperature,
            float* out) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const Vec vmax = hn::Set(d, max), vinverse = hn::Set(d, inverse_temperature);
  ForEachBlock(logits, num_logits,
               [&](int64_t, const float* x, int64_t first, int64_t count) HWY_ATTR {
                 HWY_ALIGN float terms[kLogitBlock];
                 for (int64_t i = 0; i < kLogitBlock; i += lanes) {
                   hn::Store(ExpTerm(d, x + i, vmax, vinverse), d, terms + i);
                 }
                 std::memcpy(out + first, terms, static_cast<size_t>(count) * sizeof(float));
               });
}

double SumTop(const float* values, int64_t num_values, float threshold, int64_t* count) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const Vec border = hn::Set(d, threshold);
  double total = 0.0;
  *count = 0;
  ForEachBlock(values, num_values, [&](int64_t, const float* x, int64_t, int64_t) HWY_ATTR {
    Vec sum = hn::Zero(d);
    for (int64_t i = 0; i < kLogitBlock; i += lanes) {
      const Vec v = hn::LoadU(d, x + i);
      const auto keep = hn::Ge(v, border);
      sum = hn::Add(sum, hn::IfThenElseZero(keep, v));
      *count += static_cast<int64_t>(hn::CountTrue(d, keep));
    }
    total += hn::GetLane(hn::SumOfLanes(d, sum));
  });
  return total;
}

}  // namespace HWY_NAMESPACE
}  // namespace longspan
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan {

HWY_EXPORT(Summarize);
HWY_EXPORT(SumExp);
HWY_EXPORT(ExpRow);
HWY_EXPORT(SumTop);

LogitSummary SummarizeLogits(std::span<const float> logits, float* block_max) {
  const int64_t num_logits = static_cast<int64_t>(logits.size());
  const int64_t num_blocks = LogitBlocks(num_logits);
  LogitSummary summary;
  summary.all_finite = HWY_DYNAMIC_DISPATCH(Summarize)(logits.data(), num_logits, block_max);
  const float* largest = std::max_element(block_max, block_max + num_blocks);
  summary.max = *largest;
  const int64_t first = (largest - block_max) * kLogitBlock;
  const int64_t end = std::min(first + kLogitBlock, num_logits);
  const float* place = std::find(logits.data() + first, logits.data() + end, summary.max);
  // Not found only beside NaN; any valid index will do then.
  summary.arg_max = static_cast<int32_t>(place == logits.data() + end ? 0 : place - logits.data());
  return summary;
}

double SumExpLogits(std::span<const float> logits, float max, float inverse_temperature,
                    float* block_sums) {
  return HWY_DYNAMIC_DISPATCH(SumExp)(logits.data(), static_cast<int64_t>(logits.size()), max,
                                      inverse_temperature, block_sums);
}

void ExpLogits(std::span<const float> logits, float max, float inverse_temperature, float* out) {
  HWY_DYNAMIC_DISPATCH(ExpRow)
  (logits.data(), static_cast<int64_t>(logits.size()), max, inverse_temperature, out);
}

TopMass SumAtLeast(std::span<const float> values, float threshold) {
  TopMass mass;
  mass.sum = HWY_DYNAMIC_DISPATCH(SumTop)(values.data(), static_cast<int64_t>(values.size()),
                                          threshold, &mass.count);
  return mass;
}

int64_t CollectLogits(std::span<const float> logits, const float* block_max, float threshold,
                      int32_t* ids) {
  const int64_t num_logits = static_cast<int64_t>(logits.size());
  int64_t count = 0;
  for (int64_t b = 0; b < LogitBlocks(num_logits); ++b) {
    if (!(block_max[b] >= threshold)) continue;
    const int64_t end = std::min((b + 1) * kLogitBlock, num_logits);
    for (int64_t i = b * kLogitBlock; i < end; ++i) {
      ids[count] = static_cast<int32_t>(i);
      count += logits[i] >= threshold ? 1 : 0;  // no branch: hits are scattered
    }
  }
  return count;
}

}  // namespace longspan
#endif
