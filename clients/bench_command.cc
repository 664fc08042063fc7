#include "clients/bench_command.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include "clients/bench_report.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Counts requests in flight and draws the bar.
class Progress {
 public:
  Progress(int32_t total, int32_t max_concurrency, bool draw)
      : total_(total), max_concurrency_(max_concurrency), draw_(draw) {}

  void Begin() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return max_concurrency_ <= 0 || in_flight_ < max_concurrency_; });
    ++in_flight_;
  }
  void End() {
    const std::lock_guard lock(mutex_);
    --in_flight_;
    ++done_;
    changed_.notify_one();
    if (!draw_) return;
    constexpr int kWidth = 40;
    const int filled = kWidth * done_ / total_;
    fmt::print(stderr, "\r[{:#<{}}{:.<{}}] {}/{}", "", filled, "", kWidth - filled, done_, total_);
    if (done_ == total_) fmt::print(stderr, "\n");
  }

 private:
  const int32_t total_;
  const int32_t max_concurrency_;
  const bool draw_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int32_t in_flight_ = 0;
  int32_t done_ = 0;
};

RequestRecord Send(Connection& connection, const PlannedRequest& planned) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(planned.prompt.begin(), planned.prompt.end());
  request.mutable_sampling()->set_temperature(0.0f);
  request.mutable_stop()->set_max_tokens(planned.output_len);
  request.mutable_stop()->set_ignore_eos(true);
  request.mutable_output()->set_text(false);

  RequestRecord record;
  grpc::ClientContext context;
  const Clock::time_point begin = Clock::now();
  const auto reader = connection.inference->Generate(&context, request);
  v1::GenerateResponse response;
  Clock::time_point last = begin;
  while (reader->Read(&response)) {
    if (response.has_chunk() && response.chunk().token_ids_size() > 0) {
      if (record.output_tokens == 0) {
        record.ttft = SecondsSince(begin);
      } else {
        record.gaps.push_back(SecondsSince(last));
      }
      last = Clock::now();
      record.output_tokens += response.chunk().token_ids_size();
    }
    if (response.has_finished()) {
      record.prompt_tokens = response.finished().usage().prompt_tokens();
      record.cached_tokens = response.finished().usage().cached_tokens();
    }
  }
  const grpc::Status status = reader->Finish();
  record.latency = SecondsSince(begin);
  record.ok = status.ok();
  if (!record.ok)
    record.error = fmt::format("{}: {}", CodeName(status.error_code()), status.error_message());
  return record;
}

}  // namespace

int RunBench(Connection& connection, const BenchOptions& options) {
  grpc::ClientContext context;
  v1::GetModelInfoResponse info;
  const grpc::Status status = connection.inference->GetModelInfo(&context, {}, &info);
  if (!status.ok()) return ExitCodeOf(status);

  LoadPlanOptions plan_options = options.plan;
  plan_options.vocab_size = info.vocab_size();
  const std::vector<PlannedRequest> plan = MakeLoadPlan(plan_options);
  std::vector<RequestRecord> records(plan.size());
  Progress progress(static_cast<int32_t>(plan.size()), options.max_concurrency, options.progress);
  std::vector<std::thread> threads;
  const Clock::time_point begin = Clock::now();
  for (size_t i = 0; i < plan.size(); ++i) {
    std::this_thread::sleep_until(begin +
                                  std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(plan[i].start_seconds)));
    progress.Begin();
    threads.emplace_back([&, i] {
      records[i] = Send(connection, plan[i]);
      progress.End();
    });
  }
  for (std::thread& thread : threads) thread.join();

  const BenchReport report = MakeReport(records, SecondsSince(begin));
  std::fputs(ReportText(report).c_str(), stdout);
  for (const RequestRecord& record : records) {
    if (record.ok) continue;
    fmt::print(stderr, "longspan: first failure: {}\n", record.error);
    break;
  }
  if (!options.json_file.empty()) {
    std::ofstream file(options.json_file);
    file << ReportJson(report);
    file.flush();
    if (!file) {
      fmt::print(stderr, "longspan: --json: cannot write {}\n", options.json_file);
      return 2;
    }
  }
  return report.failed == 0 ? 0 : 1;
}

}  // namespace longspan
