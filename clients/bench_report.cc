// Sums request records up into throughput and percentiles, and prints them as a table or as JSON,
// both in milliseconds (the structs hold seconds). No clock and no connection.
#include "clients/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

namespace longspan {
namespace {

double Percentile(const std::vector<double>& sorted, double p) {
  const double at = p / 100.0 * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

}  // namespace

Distribution Summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  Distribution out;
  out.mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  out.median = Percentile(values, 50);
  out.p90 = Percentile(values, 90);
  out.p99 = Percentile(values, 99);
  out.max = values.back();
  return out;
}

BenchReport MakeReport(const std::vector<RequestRecord>& records, double duration) {
  BenchReport report;
  report.duration = duration;
  std::vector<double> ttft, tpot, itl, e2el;
  for (const RequestRecord& record : records) {
    if (!record.ok) {
      ++report.failed;
      continue;
    }
    ++report.completed;
    report.prompt_tokens += record.prompt_tokens;
    report.cached_tokens += record.cached_tokens;
    report.output_tokens += record.output_tokens;
    ttft.push_back(record.ttft);
    e2el.push_back(record.latency);
    itl.insert(itl.end(), record.gaps.begin(), record.gaps.end());
    if (record.output_tokens > 1)
      tpot.push_back((record.latency - record.ttft) / (record.output_tokens - 1));
  }
  if (duration > 0.0) {
    report.request_throughput = report.completed / duration;
    report.output_throughput = static_cast<double>(report.output_tokens) / duration;
    report.total_throughput =
        static_cast<double>(report.prompt_tokens + report.output_tokens) / duration;
  }
  report.ttft = Summarize(std::move(ttft));
  report.tpot = Summarize(std::move(tpot));
  report.itl = Summarize(std::move(itl));
  report.e2el = Summarize(std::move(e2el));
  return report;
}

std::string ReportText(const BenchReport& report) {
  std::string out;
  out += fmt::format("Requests                 {} completed, {} failed\n", report.completed,
                     report.failed);
  out += fmt::format("Duration                 {:.2f} s\n", report.duration);
  out += fmt::format("Tokens                   {} prompt ({} cached), {} generated\n",
                     report.prompt_tokens, report.cached_tokens, report.output_tokens);
  out += fmt::format(
      "Throughput               {:.2f} requests/s, {:.1f} output tokens/s, {:.1f} tokens/s in "
      "all\n",
      report.request_throughput, report.output_throughput, report.total_throughput);
  out += fmt::format("{:<24} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "Milliseconds", "mean", "median",
                     "p90", "p99", "max");
  for (const auto& [name, d] : {std::pair{"Time to first token", report.ttft},
                                std::pair{"Time per output token", report.tpot},
                                std::pair{"Inter-token latency", report.itl},
                                std::pair{"End-to-end latency", report.e2el}}) {
    out += fmt::format("{:<24} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f}\n", name, d.mean * 1e3,
                       d.median * 1e3, d.p90 * 1e3, d.p99 * 1e3, d.max * 1e3);
  }
  return out;
}

std::string ReportJson(const BenchReport& report) {
  nlohmann::ordered_json json;
  json["completed"] = report.completed;
  json["failed"] = report.failed;
  json["duration"] = report.duration;
  json["total_input_tokens"] = report.prompt_tokens;
  json["total_cached_tokens"] = report.cached_tokens;
  json["total_output_tokens"] = report.output_tokens;
  json["request_throughput"] = report.request_throughput;
  json["output_throughput"] = report.output_throughput;
  json["total_token_throughput"] = report.total_throughput;
  for (const auto& [name, d] : {std::pair{"ttft", report.ttft}, std::pair{"tpot", report.tpot},
                                std::pair{"itl", report.itl}, std::pair{"e2el", report.e2el}}) {
    json[fmt::format("mean_{}_ms", name)] = d.mean * 1e3;
    json[fmt::format("median_{}_ms", name)] = d.median * 1e3;
    json[fmt::format("p90_{}_ms", name)] = d.p90 * 1e3;
    json[fmt::format("p99_{}_ms", name)] = d.p99 * 1e3;
  }
  return json.dump(2) + "\n";
}

}  // namespace longspan
