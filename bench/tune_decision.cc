// Borders by trying all pairs that the readings tell apart: see tune_decision.h.
#include "bench/tune_decision.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace longspan {
namespace {

double MeanLogTime(std::span<const TuneReading> readings, const AttnTuningRow& row) {
  double sum = 0.0;
  for (const TuneReading& reading : readings) sum += std::log(TunedTime(reading, row));
  return sum / static_cast<double>(readings.size());
}

double MeanLogTime(std::span<const double> us) {
  double sum = 0.0;
  for (const double time : us) sum += std::log(time);
  return sum / static_cast<double>(us.size());
}

bool IsLead(double log_time, double than) { return log_time < than + std::log1p(-kTuneLead); }

}  // namespace

double TunedTime(const TuneReading& reading, const AttnTuningRow& row) {
  if (reading.decode_us > 0.0 && reading.rows <= row.decode_rows) return reading.decode_us;
  const bool sm80 = reading.sm90_prefill_us == 0.0 || reading.q_len <= row.sm80_q_len;
  return sm80 ? reading.sm80_prefill_us : reading.sm90_prefill_us;
}

AttnTuningRow TuneBorders(std::span<const TuneReading> readings, const AttnTuningRow& row) {
  if (readings.empty()) return row;
  const bool has_sm90 = std::any_of(readings.begin(), readings.end(),
                                    [](const TuneReading& r) { return r.sm90_prefill_us > 0.0; });
  std::vector<int32_t> rows = {row.decode_rows, 1}, q_lens = {row.sm80_q_len, 0};
  for (const TuneReading& reading : readings) {
    rows.push_back(reading.rows);
    if (has_sm90) q_lens.push_back(reading.q_len);
  }
  const double built_in = MeanLogTime(readings, row);
  AttnTuningRow best = row;
  double best_time = built_in;
  for (const int32_t decode_rows : rows) {
    for (const int32_t sm80_q_len : q_lens) {
      AttnTuningRow candidate = row;
      candidate.decode_rows = decode_rows;
      candidate.sm80_q_len = sm80_q_len;
      const double time = MeanLogTime(readings, candidate);
      if (time < best_time) best = candidate, best_time = time;
    }
  }
  return IsLead(best_time, built_in) ? best : row;
}

AttnTuningRow TuneRangeCost(std::span<const TuneRange> ranges, const AttnTuningRow& row) {
  const auto time_of = [](const TuneRange& range) { return MeanLogTime(range.us); };
  const auto built_in = std::find_if(ranges.begin(), ranges.end(), [&](const TuneRange& range) {
    return range.min_range_cost == row.min_range_cost;
  });
  if (built_in == ranges.end() || built_in->us.empty()) return row;
  const TuneRange& best = *std::min_element(
      ranges.begin(), ranges.end(),
      [&](const TuneRange& a, const TuneRange& b) { return time_of(a) < time_of(b); });
  AttnTuningRow tuned = row;
  if (IsLead(time_of(best), time_of(*built_in))) tuned.min_range_cost = best.min_range_cost;
  return tuned;
}

}  // namespace longspan
