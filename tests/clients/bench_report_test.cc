// Percentiles, time per output token and failures, on records written by hand.
#include "clients/bench_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace longspan {
namespace {

RequestRecord Record(int32_t tokens, double ttft, double latency) {
  RequestRecord record;
  record.ok = true;
  record.prompt_tokens = 10;
  record.output_tokens = tokens;
  record.ttft = ttft;
  record.latency = latency;
  return record;
}

TEST(BenchReport, PercentilesInterpolate) {
  const Distribution d = Summarize({4, 1, 3, 2, 5});
  EXPECT_DOUBLE_EQ(d.mean, 3.0);
  EXPECT_DOUBLE_EQ(d.median, 3.0);
  EXPECT_DOUBLE_EQ(d.p90, 4.6);
  EXPECT_DOUBLE_EQ(d.max, 5.0);
  EXPECT_EQ(Summarize({}).max, 0.0);
}

TEST(BenchReport, TimePerOutputTokenLeavesTheFirstTokenOut) {
  const BenchReport report = MakeReport({Record(11, 1.0, 2.0), Record(1, 9.0, 9.0)}, 10.0);
  EXPECT_DOUBLE_EQ(report.tpot.mean, 0.1);  // the one-token request has none
  EXPECT_DOUBLE_EQ(report.output_throughput, 1.2);
  EXPECT_DOUBLE_EQ(report.total_throughput, 3.2);
}

TEST(BenchReport, FailedRequestsAreCountedAndLeftOut) {
  RequestRecord failed;
  failed.output_tokens = 1000;
  const BenchReport report = MakeReport({failed, Record(2, 0.5, 1.0)}, 1.0);
  EXPECT_EQ(report.failed, 1);
  EXPECT_EQ(report.completed, 1);
  EXPECT_EQ(report.output_tokens, 2);
}

TEST(BenchReport, JsonUsesMilliseconds) {
  const auto json = nlohmann::json::parse(ReportJson(MakeReport({Record(3, 0.25, 1.25)}, 2.0)));
  EXPECT_DOUBLE_EQ(json["mean_ttft_ms"], 250.0);
  EXPECT_DOUBLE_EQ(json["median_tpot_ms"], 500.0);
  EXPECT_EQ(json["completed"], 1);
}

}  // namespace
}  // namespace longspan
