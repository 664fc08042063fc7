// Sends the requests of a load plan at their times, each as a callback call on gRPC's threads, so
// that thousands in flight need one thread of ours; then prints the report. What is sent is decided
// in load_plan.h, what the figures mean in bench_report.h.
#include "clients/bench_command.h"

#include <fmt/format.h>

#include <algorithm>
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
    changed_.notify_all();
    if (!draw_) return;
    constexpr int kWidth = 40;
    const int filled = kWidth * done_ / total_;
    fmt::print(stderr, "\r[{:#<{}}{:.<{}}] {}/{}", "", filled, "", kWidth - filled, done_, total_);
    if (done_ == total_) fmt::print(stderr, "\n");
  }
  void WaitAll() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_ == total_; });
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

v1::GenerateRequest ToRequest(const PlannedRequest& planned) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(planned.prompt.begin(), planned.prompt.end());
  request.mutable_sampling()->set_temperature(0.0f);
  request.mutable_stop()->set_max_tokens(planned.output_len);
  request.mutable_stop()->set_ignore_eos(true);
  request.mutable_output()->set_text(false);
  return request;
}

// One request in flight, on gRPC's threads: a load of many thousands needs none of its own. Fills
// the record, tells the progress, and deletes itself.
class BenchCall final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  static void Start(Connection& connection, const PlannedRequest& planned, RequestRecord& record,
                    Progress& progress) {
    auto* call = new BenchCall(planned, record, progress);
    connection.inference->async()->Generate(&call->context_, &call->request_, call);
    call->StartRead(&call->response_);
    call->StartCall();
  }

 private:
  BenchCall(const PlannedRequest& planned, RequestRecord& record, Progress& progress)
      : request_(ToRequest(planned)),
        record_(record),
        progress_(progress),
        begin_(Clock::now()),
        last_(begin_) {}

  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone comes next
    if (response_.has_chunk() && response_.chunk().token_ids_size() > 0) {
      if (record_.output_tokens == 0) {
        record_.ttft = SecondsSince(begin_);
      } else {
        record_.gaps.push_back(SecondsSince(last_));
      }
      last_ = Clock::now();
      record_.output_tokens += response_.chunk().token_ids_size();
    }
    if (response_.has_finished()) {
      record_.prompt_tokens = response_.finished().usage().prompt_tokens();
      record_.cached_tokens = response_.finished().usage().cached_tokens();
    }
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    record_.latency = SecondsSince(begin_);
    record_.ok = status.ok();
    record_.code = status.error_code();
    if (!record_.ok) {
      record_.error = fmt::format("{}: {}", CodeName(status.error_code()), status.error_message());
    }
    Progress& progress = progress_;
    delete this;
    progress.End();  // the last thing: whoever waits may end the program
  }

  grpc::ClientContext context_;
  const v1::GenerateRequest request_;
  v1::GenerateResponse response_;
  RequestRecord& record_;
  Progress& progress_;
  const Clock::time_point begin_;
  Clock::time_point last_;
};

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
  const Clock::time_point begin = Clock::now();
  for (size_t i = 0; i < plan.size(); ++i) {
    std::this_thread::sleep_until(begin +
                                  std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(plan[i].start_seconds)));
    progress.Begin();
    BenchCall::Start(connection, plan[i], records[i], progress);
  }
  progress.WaitAll();

  const BenchReport report = MakeReport(records, SecondsSince(begin));
  std::fputs(ReportText(report).c_str(), stdout);
  if (!options.json_file.empty()) {
    std::ofstream file(options.json_file);
    file << ReportJson(report);
    file.flush();
    if (!file) {
      fmt::print(stderr, "longspan: --json: cannot write {}\n", options.json_file);
      return 2;
    }
  }
  const auto failed = std::find_if(records.begin(), records.end(),
                                   [](const RequestRecord& record) { return !record.ok; });
  if (failed == records.end()) return 0;
  fmt::print(stderr, "longspan: {} of {} requests failed, the first with {}\n", report.failed,
             records.size(), failed->error);
  return 64 + failed->code;
}

}  // namespace longspan
