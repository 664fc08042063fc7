// What events do to metrics, read as a scrape reads them.
#include "server/metrics.h"

#include <gtest/gtest.h>
#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <string>
#include <thread>

namespace longspan {
namespace {

constexpr RequestOutcome kAll[] = {RequestOutcome::kStop,     RequestOutcome::kLength,
                                   RequestOutcome::kAborted,  RequestOutcome::kDeadline,
                                   RequestOutcome::kRejected, RequestOutcome::kError};

ModelMetricsInfo Model() {
  ModelMetricsInfo info;
  info.model_name = "m";
  info.num_blocks = 8;
  return info;
}

// _count of a histogram, summed over its series; -1 when there is none.
int64_t Count(const Metrics& metrics, const std::string& name) {
  int64_t count = -1;
  for (const auto& collectable : metrics.collectables()) {
    for (const prometheus::MetricFamily& family : collectable.lock()->Collect()) {
      if (family.name != name) continue;
      count = 0;
      for (const auto& metric : family.metric) {
        count += static_cast<int64_t>(metric.histogram.sample_count);
      }
    }
  }
  return count;
}

TEST(Metrics, LatencyIsThatOfServedRequestsOnly) {
  Metrics metrics({"1", "c", "cpu", "x"}, true);
  metrics.SetModel(Model());
  for (const RequestOutcome outcome : kAll) metrics.OnRequestEnded({outcome, 1.0});
  EXPECT_EQ(Count(metrics, "longspan_e2e_request_latency_seconds"), 5) << "all but the refused";
  EXPECT_EQ(Count(metrics, "vllm:e2e_request_latency_seconds"), 4) << "nor those that failed";
}

TEST(Metrics, EveryCodeOfGenerateIsThereBeforeItsFirstCall) {
  Metrics metrics({"1", "c", "cpu", "x"}, true);
  size_t num_codes = 0;
  for (const auto& collectable : metrics.collectables()) {
    for (const prometheus::MetricFamily& family : collectable.lock()->Collect()) {
      if (family.name == "longspan_grpc_requests_total") num_codes = family.metric.size();
    }
  }
  EXPECT_EQ(num_codes, 17u);
}

TEST(Metrics, OtherNamesAreAbsentWhenNotWanted) {
  Metrics metrics({"1", "c", "cpu", "x"}, false);
  metrics.SetModel(Model());
  metrics.OnRequestEnded({RequestOutcome::kStop, 1.0});
  EXPECT_EQ(Count(metrics, "vllm:e2e_request_latency_seconds"), -1);
  EXPECT_EQ(Count(metrics, "longspan_e2e_request_latency_seconds"), 1);
}

// A call that is refused while the model loads is counted on a thread of gRPC's. For TSan.
TEST(Metrics, RequestsMayEndWhileTheModelIsSet) {
  Metrics metrics({"1", "c", "cpu", "x"}, true);
  std::thread refused([&] {
    for (int i = 0; i < 1000; ++i) metrics.OnRequestEnded({RequestOutcome::kRejected, 0.0});
  });
  metrics.SetModel(Model());
  refused.join();
  EXPECT_EQ(Count(metrics, "longspan_e2e_request_latency_seconds"), 0);
}

}  // namespace
}  // namespace longspan
