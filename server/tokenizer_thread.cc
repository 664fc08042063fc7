#include "server/tokenizer_thread.h"

#include <malloc.h>

#include <chrono>
#include <utility>

namespace longspan {
namespace {

// After so many bytes of work and then quiet, freed memory goes back to the system: a flood of
// large prompts leaves its buffers (gRPC's too) scattered over the allocator's arenas, which would
// keep them for good.
constexpr int64_t kTrimAfterBytes = 8 * 1024 * 1024;
constexpr auto kTrimAfterQuiet = std::chrono::milliseconds(300);

}  // namespace

TokenizerThread::TokenizerThread(int32_t max_jobs, int64_t max_bytes)
    : max_jobs_(max_jobs), max_bytes_(max_bytes), thread_([this] { Loop(); }) {}

TokenizerThread::~TokenizerThread() { Stop(); }

bool TokenizerThread::TryPost(int64_t bytes, Job job) {
  {
    const std::lock_guard lock(mutex_);
    const bool too_many = static_cast<int64_t>(jobs_.size()) >= max_jobs_;
    const bool too_large = bytes_ > 0 && bytes_ + bytes > max_bytes_;
    if (stopping_ || too_many || too_large) return false;
    bytes_ += bytes;
    jobs_.push_back({bytes, std::move(job)});
  }
  ready_.notify_one();
  return true;
}

void TokenizerThread::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void TokenizerThread::Loop() {
  int64_t bytes_since_trim = 0;
  const auto has_work = [this] { return stopping_ || !jobs_.empty(); };
  std::unique_lock lock(mutex_);
  while (true) {
    if (bytes_since_trim >= kTrimAfterBytes && !ready_.wait_for(lock, kTrimAfterQuiet, has_work)) {
      bytes_since_trim = 0;
      lock.unlock();
      ::malloc_trim(0);
      lock.lock();
    }
    ready_.wait(lock, has_work);
    if (jobs_.empty()) return;
    Entry entry = std::move(jobs_.front());
    jobs_.pop_front();
    const bool stopping = stopping_;
    lock.unlock();
    entry.job(stopping);
    entry.job = nullptr;  // what it holds is freed before its bytes are
    bytes_since_trim += entry.bytes;
    lock.lock();
    bytes_ -= entry.bytes;
  }
}

}  // namespace longspan
