// Exponential means for speeds, a window of ten seconds for tokens per second. The engine decides
// what is done with an estimate.
#include "engine/load_estimator.h"

#include <algorithm>

namespace longspan {
namespace {

constexpr Duration kWindow = std::chrono::seconds(10);
constexpr int64_t kMinPrefillTokens = 1024;  // fewer say little about speed
constexpr double kNewSampleWeight = 0.2;

}  // namespace

void LoadEstimator::OnStep(int64_t prefill_tokens, int64_t generated_tokens, Duration duration,
                           TimePoint end) {
  window_.push_back({end, generated_tokens});
  window_tokens_ += generated_tokens;
  const double seconds = Seconds(duration);
  if (prefill_tokens <= 0 || seconds <= 0.0) return;
  const double rate = static_cast<double>(prefill_tokens) / seconds;
  mean_prefill_rate_ = prefill_tokens_seen_ == 0 ? rate
                                                 : (1.0 - kNewSampleWeight) * mean_prefill_rate_ +
                                                       kNewSampleWeight * rate;
  fastest_prefill_rate_ = std::max(fastest_prefill_rate_, rate);
  prefill_tokens_seen_ += prefill_tokens;
}

void LoadEstimator::OnSlotFreed(Duration held) {
  const double seconds = Seconds(held);
  mean_slot_seconds_ =
      mean_slot_seconds_.has_value()
          ? (1.0 - kNewSampleWeight) * *mean_slot_seconds_ + kNewSampleWeight * seconds
          : seconds;
}

double LoadEstimator::tokens_per_second(TimePoint now) {
  while (!window_.empty() && window_.front().end < now - kWindow) {
    window_tokens_ -= window_.front().generated_tokens;
    window_.pop_front();
  }
  if (window_.empty()) return 0.0;
  return static_cast<double>(window_tokens_) / Seconds(kWindow);
}

std::optional<double> LoadEstimator::prefill_tokens_per_second() const {
  if (prefill_tokens_seen_ == 0) return std::nullopt;
  return mean_prefill_rate_;
}

std::optional<double> LoadEstimator::fastest_prefill_tokens_per_second() const {
  if (prefill_tokens_seen_ < kMinPrefillTokens) return std::nullopt;
  return fastest_prefill_rate_;
}

}  // namespace longspan
