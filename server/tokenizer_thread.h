// One thread beside gRPC's for work on requests that takes more than a moment: parsing large
// messages, text to ids and back. Its queue is bounded in jobs and bytes; a job is told when it is
// too late to run it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace longspan {

// Public methods are thread-safe. Jobs run in order; every accepted job is called exactly once.
class TokenizerThread {
 public:
  // stopping: the thread is going down; the job only answers its caller.
  using Job = std::function<void(bool stopping)>;

  TokenizerThread(int32_t max_jobs, int64_t max_bytes);
  ~TokenizerThread();  // Stop
  TokenizerThread(const TokenizerThread&) = delete;
  TokenizerThread& operator=(const TokenizerThread&) = delete;

  // bytes: what the job holds while it waits. False when the queue is full; one job larger than all
  // bytes is accepted when nothing waits.
  bool TryPost(int64_t bytes, Job job);

  // Calls what waits with stopping = true, then ends. Idempotent.
  void Stop();

 private:
  struct Entry {
    int64_t bytes;
    Job job;
  };
  void Loop();

  const int32_t max_jobs_;
  const int64_t max_bytes_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Entry> jobs_;
  int64_t bytes_ = 0;  // of jobs_ and the one that runs
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace longspan
