// Threads beside gRPC's for work on requests that takes more than a moment: parsing large
// messages, text to ids and back. A thread's queue is bounded in jobs and bytes; a job is told when
// it is too late to run it, also in the middle of its work.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "core/clock.h"

namespace longspan {

// Public methods are thread-safe. Jobs run in order; every accepted job is called once, and the one
// that runs while Stop comes is called again.
class TokenizerThread {
 public:
  // Called on the thread with stopping = false to do its work. stopping = true: the thread is going
  // down, the job only answers its caller; this call may come from Stop while the first one still
  // works, which should then end soon.
  using Job = std::function<void(bool stopping)>;

  // Jobs of at most so many bytes are bounded by their number alone: one large text that waits does
  // not shut out everybody else's short ones.
  static constexpr int64_t kSmallJobBytes = 64 * 1024;

  // max_jobs and max_bytes bound what waits; the job that runs is not counted.
  TokenizerThread(const Clock& clock, int32_t max_jobs, int64_t max_bytes);
  ~TokenizerThread();  // Stop
  TokenizerThread(const TokenizerThread&) = delete;
  TokenizerThread& operator=(const TokenizerThread&) = delete;

  // bytes: what the job holds while it waits. False when the queue is full; one job larger than all
  // bytes is accepted when nothing large waits.
  bool TryPost(int64_t bytes, Job job);

  // How long what waits will take at the pace so far; nullopt before anything has been measured.
  std::optional<double> estimated_delay_seconds() const;

  // Calls what runs and what waits with stopping = true, then ends. Idempotent; one thread.
  void Stop();

 private:
  struct Entry {
    int64_t bytes;
    Job job;
  };
  void Loop();
  void RunNext(std::unique_lock<std::mutex>& lock);

  const Clock& clock_;
  const int32_t max_jobs_;
  const int64_t max_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Entry> jobs_;
  int64_t waiting_bytes_ = 0;           // of all jobs_
  int64_t large_bytes_ = 0;             // of those above kSmallJobBytes
  std::shared_ptr<const Job> running_;  // shared with Stop
  int64_t running_bytes_ = 0;
  int64_t done_bytes_ = 0;
  double busy_seconds_ = 0.0;
  bool stopping_ = false;
  std::thread thread_;
};

// Two of them, so that long texts, which take seconds, never stand before short ones.
class TokenizerThreads {
 public:
  // The limits are those of each.
  TokenizerThreads(const Clock& clock, int32_t max_jobs, int64_t max_bytes)
      : small_(clock, max_jobs, max_bytes), large_(clock, max_jobs, max_bytes) {}

  TokenizerThread& For(int64_t bytes) {
    return bytes > TokenizerThread::kSmallJobBytes ? large_ : small_;
  }
  void Stop() {
    small_.Stop();
    large_.Stop();
  }

 private:
  TokenizerThread small_, large_;
};

}  // namespace longspan
