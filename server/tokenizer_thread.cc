// The queue and its accounting: small jobs are limited by number only, large ones by bytes too.
// Stop calls the running job a second time so that it can answer and give up.
#include "server/tokenizer_thread.h"

#include <utility>

namespace longspan {

TokenizerThread::TokenizerThread(const Clock& clock, int32_t max_jobs, int64_t max_bytes)
    : clock_(clock), max_jobs_(max_jobs), max_bytes_(max_bytes), thread_([this] { Loop(); }) {}

TokenizerThread::~TokenizerThread() { Stop(); }

bool TokenizerThread::TryPost(int64_t bytes, Job job) {
  {
    const std::lock_guard lock(mutex_);
    const bool too_many = static_cast<int64_t>(jobs_.size()) >= max_jobs_;
    const bool is_large = bytes > kSmallJobBytes;
    const bool too_large = is_large && large_bytes_ > 0 && large_bytes_ + bytes > max_bytes_;
    if (stopping_ || too_many || too_large) return false;
    waiting_bytes_ += bytes;
    if (is_large) large_bytes_ += bytes;
    jobs_.push_back({bytes, std::move(job)});
  }
  ready_.notify_one();
  return true;
}

std::optional<double> TokenizerThread::estimated_delay_seconds() const {
  const std::lock_guard lock(mutex_);
  if (done_bytes_ == 0) return std::nullopt;
  const auto ahead = static_cast<double>(waiting_bytes_ + running_bytes_);
  return ahead * busy_seconds_ / static_cast<double>(done_bytes_);
}

void TokenizerThread::Stop() {
  std::shared_ptr<const Job> running;
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) running = running_;
    stopping_ = true;
  }
  ready_.notify_one();
  if (running != nullptr) (*running)(true);
  if (thread_.joinable()) thread_.join();
}

void TokenizerThread::Loop() {
  const auto has_work = [this] { return stopping_ || !jobs_.empty(); };
  std::unique_lock lock(mutex_);
  while (true) {
    ready_.wait(lock, has_work);
    if (jobs_.empty()) return;
    RunNext(lock);
  }
}

void TokenizerThread::RunNext(std::unique_lock<std::mutex>& lock) {
  const int64_t bytes = jobs_.front().bytes;
  auto job = std::make_shared<const Job>(std::move(jobs_.front().job));
  jobs_.pop_front();
  waiting_bytes_ -= bytes;
  if (bytes > kSmallJobBytes) large_bytes_ -= bytes;
  running_ = job;
  running_bytes_ = bytes;
  const bool stopping = stopping_;
  lock.unlock();
  const TimePoint begin = clock_.Now();
  (*job)(stopping);
  const double seconds = Seconds(clock_.Now() - begin);
  lock.lock();
  running_.reset();
  running_bytes_ = 0;
  done_bytes_ += bytes;
  busy_seconds_ += seconds;
  lock.unlock();
  job.reset();  // what it holds is freed without the lock
  lock.lock();
}

}  // namespace longspan
