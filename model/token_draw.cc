// Finds thresholds instead of sorting: a block maximum or a bisection bounds what can be in the top
// k or the nucleus, only that is collected, and the border is exact (lowest id on ties).
#include "model/token_draw.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/check.h"

namespace longspan {
namespace {

// Keeps (logit - max) * inverse away from 0 * inf for temperatures near the smallest float.
constexpr float kMaxInverseTemperature = 1e30f;
constexpr float kLowest = std::numeric_limits<float>::lowest();  // below it: masked
constexpr int kBisections = 14;
constexpr int64_t kFewTokens = 64;  // worth sorting

}  // namespace

TokenDraw::TokenDraw(int32_t vocab_size)
    : block_max_(static_cast<size_t>(LogitBlocks(vocab_size))),
      block_values_(block_max_.size()),
      ids_(static_cast<size_t>(vocab_size)),
      terms_(ids_.size()),
      order_(ids_.size()) {}

const LogitSummary& TokenDraw::SetRow(std::span<const float> logits) {
  DCHECK(logits.size() == ids_.size());
  logits_ = logits;
  summary_ = SummarizeLogits(logits, block_max_.data());
  return summary_;
}

double TokenDraw::LogSumExp() {
  return summary_.max + std::log(SumExpLogits(logits_, summary_.max, 1.0f, block_values_.data()));
}

std::span<const int32_t> TokenDraw::Best(int64_t k) {
  CollectBest(k);
  std::sort(ids_.begin(), ids_.begin() + static_cast<ptrdiff_t>(num_ids_),
            [this](int32_t a, int32_t b) {
              const float x = logits_[static_cast<size_t>(a)], y = logits_[static_cast<size_t>(b)];
              return x > y || (x == y && a < b);
            });
  return {ids_.data(), num_ids_};
}

TokenId TokenDraw::Draw(const SamplingParams& params, double uniform) {
  const int64_t vocab_size = static_cast<int64_t>(logits_.size());
  const float max = summary_.max;
  if (params.temperature <= 0.0f) return TokenId{summary_.arg_max};
  const float inverse = std::min(1.0f / params.temperature, kMaxInverseTemperature);
  const bool top_k = params.top_k > 0 && params.top_k < vocab_size;
  const bool min_p = params.min_p > 0.0f;
  const bool top_p = params.top_p < 1.0f;
  if (!top_k && !min_p && !top_p) return DrawFromAll(inverse, uniform);

  double total = 0.0;  // of the distribution that top-p cuts
  double threshold = kLowest;
  if (min_p) threshold = max + params.temperature * std::log(double{params.min_p});
  if (top_k) {
    CollectBest(params.top_k);
    const auto end = ids_.begin() + static_cast<ptrdiff_t>(num_ids_);
    num_ids_ = static_cast<size_t>(
        std::remove_if(ids_.begin(), end,
                       [&](int32_t id) { return logits_[static_cast<size_t>(id)] < threshold; }) -
        ids_.begin());
  } else {
    if (!min_p) {
      // Whatever lies below this has too little mass altogether to reach into the nucleus.
      total = SumExpLogits(logits_, max, inverse, block_values_.data());
      const double rest = 0.5 * (1.0 - params.top_p) * total / static_cast<double>(vocab_size);
      threshold = max + std::log(rest) / inverse;
    }
    num_ids_ = static_cast<size_t>(
        CollectLogits(logits_, block_max_.data(),
                      static_cast<float>(std::max<double>(threshold, kLowest)), ids_.data()));
  }
  const double collected = ComputeTerms(inverse);
  if (!top_p) return DrawFromCollected(collected, uniform);
  KeepNucleus(params.top_p, total > 0.0 ? total : collected);
  return DrawFromCollected(
      std::accumulate(terms_.begin(), terms_.begin() + static_cast<ptrdiff_t>(num_ids_), 0.0),
      uniform);
}

// A logit that at least k logits reach (or the lowest float), and few more than k where that is
// cheap to find.
float TokenDraw::ThresholdOfBest(int64_t k) {
  if (k < static_cast<int64_t>(block_max_.size())) {
    // k blocks have a maximum at least this large, so k logits do.
    std::copy(block_max_.begin(), block_max_.end(), block_values_.begin());
    const auto kth = block_values_.begin() + static_cast<ptrdiff_t>(k - 1);
    std::nth_element(block_values_.begin(), kth, block_values_.end(), std::greater<>());
    return std::max(kLowest, *kth);
  }
  float low = kLowest, high = summary_.max;
  for (float distance = 1.0f; distance < 1e4f && low == kLowest; distance *= 2) {
    const float tried = summary_.max - distance;
    (SumAtLeast(logits_, tried).count >= k ? low : high) = tried;
  }
  if (low == kLowest) return low;
  for (int i = 0; i < kBisections; ++i) {
    const float middle = low + (high - low) / 2;
    (SumAtLeast(logits_, middle).count >= k ? low : high) = middle;
  }
  return low;
}

// Collects exactly the k best above -inf (lowest ids on ties at the border), ascending by id.
void TokenDraw::CollectBest(int64_t k) {
  num_ids_ = 0;
  if (k <= 0) return;
  num_ids_ = static_cast<size_t>(
      CollectLogits(logits_, block_max_.data(), ThresholdOfBest(k), ids_.data()));
  if (static_cast<int64_t>(num_ids_) <= k) return;
  const auto end = static_cast<ptrdiff_t>(num_ids_);
  const auto better = [this](int32_t a, int32_t b) {
    const float x = logits_[static_cast<size_t>(a)], y = logits_[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::copy_n(ids_.begin(), end, order_.begin());
  std::nth_element(order_.begin(), order_.begin() + (k - 1), order_.begin() + end, better);
  const int32_t last = order_[static_cast<size_t>(k - 1)];
  const auto kept = std::remove_if(ids_.begin(), ids_.begin() + end,
                                   [&](int32_t id) { return better(last, id); });
  num_ids_ = static_cast<size_t>(kept - ids_.begin());
}

// Fills terms_ for the collected ids; returns their sum.
double TokenDraw::ComputeTerms(float inverse_temperature) {
  for (size_t i = 0; i < num_ids_; ++i) terms_[i] = logits_[static_cast<size_t>(ids_[i])];
  const std::span<float> terms(terms_.data(), num_ids_);
  ExpLogits(terms, summary_.max, inverse_temperature, terms.data());
  return std::accumulate(terms.begin(), terms.end(), 0.0);
}

// Passes over the terms of the collected tokens narrow the border of the smallest set of largest
// terms with `wanted` mass, which lies above `floor`, down to a few tokens.
TokenDraw::Border TokenDraw::FindBorder(double wanted, double floor) const {
  const std::span<const float> terms(terms_.data(), num_ids_);
  const TopMass best = SumAtLeast(terms, 1.0f);
  if (best.sum >= wanted) return {.low = 1.0f, .high = 2.0f, .inside = {}};
  double low = floor, high = 1.0;
  TopMass inside = best, reached = SumAtLeast(terms, static_cast<float>(low));
  for (int i = 0; i < kBisections && reached.count - inside.count > kFewTokens; ++i) {
    const double middle = std::sqrt(low * high);
    const TopMass mass = SumAtLeast(terms, static_cast<float>(middle));
    (mass.sum >= wanted ? low : high) = middle;
    (mass.sum >= wanted ? reached : inside) = mass;
  }
  return {.low = static_cast<float>(low), .high = static_cast<float>(high), .inside = inside};
}

// Keeps the smallest set of best collected tokens whose mass reaches top_p * total; at least one.
void TokenDraw::KeepNucleus(double top_p, double total) {
  const double wanted = top_p * total;
  const Border border =
      FindBorder(wanted, 0.5 * (1.0 - top_p) * total / static_cast<double>(logits_.size()));
  size_t num_border = 0;  // order_: indices of the border's terms, best first
  for (size_t i = 0; i < num_ids_; ++i) {
    order_[num_border] = static_cast<int32_t>(i);
    num_border += terms_[i] >= border.low && terms_[i] < border.high ? 1 : 0;
  }
  const auto better = [this](int32_t a, int32_t b) {  // indices into ids_, which ascend
    const float x = logits_[static_cast<size_t>(ids_[static_cast<size_t>(a)])];
    const float y = logits_[static_cast<size_t>(ids_[static_cast<size_t>(b)])];
    return x > y || (x == y && a < b);
  };
  std::sort(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(num_border), better);
  double mass = border.inside.sum;
  size_t num_in = 0;
  while (num_in < num_border && (mass < wanted || border.inside.count + num_in == 0)) {
    mass += terms_[static_cast<size_t>(order_[num_in++])];
  }
  // What is not in loses its term; then everything without one goes.
  for (size_t i = num_in; i < num_border; ++i) terms_[static_cast<size_t>(order_[i])] = 0.0f;
  size_t kept = 0;
  for (size_t i = 0; i < num_ids_; ++i) {
    if (terms_[i] < border.low || terms_[i] <= 0.0f) continue;
    ids_[kept] = ids_[i];
    terms_[kept++] = terms_[i];
  }
  num_ids_ = kept;
}

TokenId TokenDraw::DrawFromAll(float inverse_temperature, double uniform) {
  const double total =
      SumExpLogits(logits_, summary_.max, inverse_temperature, block_values_.data());
  double rest = uniform * total;  // mass before the drawn token
  size_t block = 0, last_block = 0;
  for (; block < block_values_.size(); ++block) {
    if (block_values_[block] > 0.0f) last_block = block;
    if (rest < block_values_[block]) break;
    rest -= block_values_[block];
  }
  if (block == block_values_.size()) block = last_block;  // rounding at the very end
  const size_t first = block * kLogitBlock;
  float terms[kLogitBlock];
  const size_t count = std::min<size_t>(kLogitBlock, logits_.size() - first);
  ExpLogits(logits_.subspan(first, count), summary_.max, inverse_temperature, terms);
  size_t drawn = 0;
  for (size_t i = 0; i < count; ++i) {
    if (terms[i] <= 0.0f) continue;
    drawn = i;
    if (rest < terms[i]) break;
    rest -= terms[i];
  }
  return TokenId{static_cast<int32_t>(first + drawn)};
}

TokenId TokenDraw::DrawFromCollected(double total, double uniform) const {
  double rest = uniform * total;
  int32_t drawn = summary_.arg_max;
  for (size_t i = 0; i < num_ids_; ++i) {
    if (terms_[i] <= 0.0f) continue;
    drawn = ids_[i];
    if (rest < terms_[i]) break;
    rest -= terms_[i];
  }
  return TokenId{drawn};
}

}  // namespace longspan
