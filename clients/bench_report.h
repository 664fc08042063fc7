// Figures of a load test, with the definitions of vLLM's `bench serve`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longspan {

// One request as the client saw it. Seconds.
struct RequestRecord {
  bool ok = false;
  int code = 0;       // gRPC code
  std::string error;  // code and message, when not ok
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  int32_t output_tokens = 0;
  double ttft = 0.0;         // send to first token
  double latency = 0.0;      // send to last message
  std::vector<double> gaps;  // between messages with tokens
};

struct Distribution {
  double mean = 0.0, median = 0.0, p90 = 0.0, p99 = 0.0, max = 0.0;
};
// Percentiles by linear interpolation; all zero when there are no values.
Distribution Summarize(std::vector<double> values);

struct BenchReport {
  int32_t completed = 0;
  int32_t failed = 0;
  double duration = 0.0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  double request_throughput = 0.0;  // completed / duration
  double output_throughput = 0.0;   // output tokens / duration
  double total_throughput = 0.0;    // prompt and output tokens / duration
  Distribution ttft, tpot, itl,
      e2el;  // tpot = (latency - ttft) / (output tokens - 1), of requests with two or more
};
BenchReport MakeReport(const std::vector<RequestRecord>& records, double duration);

std::string ReportText(const BenchReport& report);
std::string ReportJson(const BenchReport& report);  // times in milliseconds, vLLM's key names

}  // namespace longspan
