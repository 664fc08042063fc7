// From readings to numbers: the fastest whole, and the built-in numbers unless they are beaten.
#include "bench/tune_decision.h"

#include <gtest/gtest.h>

#include <vector>

namespace longspan {
namespace {

// Decode reads the keys once per 16 rows; prefill on sm_90a takes a tile of 128 queries; the sm_80
// line is half as fast and packs groups of 4.
std::vector<TuneReading> Readings(double prefill_scale = 1.0) {
  std::vector<TuneReading> readings;
  for (const int32_t q_len : {4, 8, 16, 32, 64, 128}) {
    const double rows = 4.0 * q_len;
    readings.push_back({4 * q_len, q_len, rows, prefill_scale * 4 * 100.0,
                        prefill_scale * 2.0 * (rows > 128 ? rows : 128.0)});
  }
  return readings;
}

TEST(TuneDecision, TimeIsThatOfTheKernelChosen) {
  const TuneReading reading = {64, 16, 1.0, 2.0, 3.0};
  EXPECT_EQ(TunedTime(reading, {.decode_rows = 64}), 1.0);
  EXPECT_EQ(TunedTime(reading, {.decode_rows = 63}), 2.0);
  EXPECT_EQ(TunedTime(reading, {.decode_rows = 63, .sm80_q_len = 15}), 2.0);
  EXPECT_EQ(TunedTime(reading, {.decode_rows = 63, .sm80_q_len = 16}), 3.0);
  EXPECT_EQ(TunedTime({64, 16, 1.0, 0.0, 3.0}, {.decode_rows = 63}), 3.0) << "an Ampere card";
  EXPECT_EQ(TunedTime({64, 16, 0.0, 2.0, 3.0}, {.decode_rows = 64}), 2.0) << "no decode kernel";
}

TEST(TuneDecision, BordersAreWhereTheFasterKernelChanges) {
  EXPECT_EQ(TuneBorders(Readings(), AttnTuningRow()), (AttnTuningRow{256, 0, 4}));
  // sm_80: 16, 32 queries 12.8 us; 64: 25.6; sm_90a: 20; decode 16, 32, 64, 128.
  EXPECT_EQ(TuneBorders(Readings(0.05), AttnTuningRow()), (AttnTuningRow{1, 32, 4}));
}

TEST(TuneDecision, ALeadWithinTheNoiseChangesNothing) {
  const AttnTuningRow built_in = {64, 0, 4};
  const std::vector<TuneReading> close = {{64, 16, 100, 99, 200}, {128, 32, 99, 100, 200}};
  EXPECT_EQ(TuneBorders(close, built_in), built_in);
  const std::vector<TuneReading> clear = {{64, 16, 100, 95, 200}, {128, 32, 100, 95, 200}};
  EXPECT_EQ(TuneBorders(clear, built_in), (AttnTuningRow{1, 0, 4}));
  EXPECT_EQ(TuneBorders({}, built_in), built_in);
}

TEST(TuneDecision, WithoutSm90KernelsTheirBorderStays) {
  std::vector<TuneReading> readings = Readings(0.05);
  for (TuneReading& reading : readings) reading.sm90_prefill_us = 0.0;
  EXPECT_EQ(TuneBorders(readings, AttnTuningRow()), (AttnTuningRow{1, 0, 4}));
}

TEST(TuneDecision, RangesByTheWholeOfTheWork) {
  const double four[] = {10.0, 20.0}, eight[] = {9.0, 20.0}, two[] = {8.0, 40.0},
               same[] = {9.9, 20};
  const AttnTuningRow built_in = {32, 8, 4};
  const TuneRange ranges[] = {{2, two}, {4, four}, {8, eight}};
  EXPECT_EQ(TuneRangeCost(ranges, built_in), (AttnTuningRow{32, 8, 8}));
  const TuneRange close[] = {{4, four}, {8, same}};
  EXPECT_EQ(TuneRangeCost(close, built_in), built_in);
  const TuneRange others[] = {{2, two}, {8, eight}};
  EXPECT_EQ(TuneRangeCost(others, built_in), built_in) << "nothing to compare with";
}

}  // namespace
}  // namespace longspan
