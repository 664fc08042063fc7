// What longspan-tune makes of its readings: pure functions. The numbers that make the measured work
// fastest as a whole (geometric mean) win, if they beat the built-in ones by more than noise.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/attention/dropin/attn_tuning.h"

namespace longspan {

// A lead below this is none.
inline constexpr double kTuneLead = 0.02;

// One shape by each kernel that computes it; 0: does not.
struct TuneReading {
  int32_t rows, q_len;  // packed rows, queries of a sequence
  double decode_us, sm90_prefill_us, sm80_prefill_us;
};
// Time of the kernel that the numbers choose. On a card without sm_90a kernels sm80_q_len is idle.
double TunedTime(const TuneReading& reading, const AttnTuningRow& row);

// decode_rows and sm80_q_len by the readings, the rest from the row.
AttnTuningRow TuneBorders(std::span<const TuneReading> readings, const AttnTuningRow& row);

// The same work with one min_range_cost.
struct TuneRange {
  int32_t min_range_cost;
  std::span<const double> us;  // of each shape, in one order
};
AttnTuningRow TuneRangeCost(std::span<const TuneRange> ranges, const AttnTuningRow& row);

}  // namespace longspan
