// Turns measured steps into estimates: how fast prompts are computed, how fast tokens come out, how
// long a queue takes. Says nothing before there are measurements. Engine thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "core/clock.h"

namespace longspan {

class LoadEstimator {
 public:
  // One finished step: prompt tokens computed, tokens generated, its duration and end.
  void OnStep(int64_t prefill_tokens, int64_t generated_tokens, Duration duration, TimePoint end);

  // A sequence ended that had held a slot for so long.
  void OnSlotFreed(Duration held);

  // Generated tokens per second over the last kWindow; 0 when nothing ran.
  double tokens_per_second(TimePoint now);
  // Prompt tokens per second of steps that computed prompts (exponential mean); nullopt before the
  // first.
  std::optional<double> prefill_tokens_per_second() const;
  // The fastest prefill seen, a bound for "cannot be in time": nullopt before kMinPrefillTokens
  // were seen.
  std::optional<double> fastest_prefill_tokens_per_second() const;
  // How long a sequence holds its slot (exponential mean); nullopt before the first ended.
  std::optional<double> mean_slot_seconds() const { return mean_slot_seconds_; }

 private:
  struct Sample {
    TimePoint end;
    int64_t generated_tokens;
  };
  std::deque<Sample> window_;
  int64_t window_tokens_ = 0;
  int64_t prefill_tokens_seen_ = 0;
  double mean_prefill_rate_ = 0.0;
  double fastest_prefill_rate_ = 0.0;
  std::optional<double> mean_slot_seconds_;
};

}  // namespace longspan
