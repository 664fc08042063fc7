// Fork-join with bounded spinning: a region is announced by a counter, workers that slept are woken
// through a condition variable, and the end of a region is a counter that falls to zero.
#include "kernels/cpu/thread_pool.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace longspan {
namespace {

// How long a worker waits awake for the next region: longer than the serial work between two
// products of a decode step, short enough to be invisible in an idle process.
constexpr std::chrono::microseconds kSpin{100};
// After this long in a region's barrier the other thread has probably lost its core: give ours away
// too.
constexpr std::chrono::microseconds kSpinBeforeYield{20};
constexpr int kPausesPerClockRead = 32;

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// Waits until done() with the core kept for `limit`; false when that time is over.
template <typename Done>
bool SpinFor(std::chrono::microseconds limit, Done done) {
  for (int i = 0; i < kPausesPerClockRead; ++i) {
    if (done()) return true;
    Pause();
  }
  const auto end = std::chrono::steady_clock::now() + limit;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (done()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

// For waits that end soon unless the other side is not running.
template <typename Done>
void SpinThenYield(Done done) {
  if (SpinFor(kSpinBeforeYield, done)) return;
  while (!done()) std::this_thread::yield();
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  workers_.reserve(num_threads_ - 1);
  for (int t = 1; t < num_threads_; ++t) workers_.emplace_back([this, t] { WorkerLoop(t); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_.store(true);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(ThreadBody body) {
  ResetTasks();
  if (num_threads_ == 1) {
    body(0);
    return;
  }
  body_ = &body;
  running_.store(num_threads_ - 1, std::memory_order_relaxed);
  // Sequentially consistent with num_sleeping_: either the worker that falls asleep sees the new
  // region, or this thread sees the sleeper.
  region_.fetch_add(1, std::memory_order_seq_cst);
  if (num_sleeping_.load(std::memory_order_seq_cst) > 0) {
    { const std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  body(0);
  SpinThenYield([this] { return running_.load(std::memory_order_acquire) == 0; });
}

void ThreadPool::Barrier() {
  if (num_threads_ == 1) {
    ResetTasks();
    return;
  }
  const uint64_t generation = barrier_generation_.load(std::memory_order_relaxed);
  if (barrier_count_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
    barrier_count_.store(0, std::memory_order_relaxed);
    ResetTasks();
    barrier_generation_.store(generation + 1, std::memory_order_release);
    return;
  }
  SpinThenYield([&] { return barrier_generation_.load(std::memory_order_acquire) != generation; });
}

void ThreadPool::WorkerLoop(int thread) {
  uint64_t seen = 0;
  const auto has_work = [&] {
    return region_.load(std::memory_order_acquire) != seen ||
           stopping_.load(std::memory_order_relaxed);
  };
  for (;;) {
    if (!SpinFor(kSpin, has_work)) {
      std::unique_lock lock(mutex_);
      num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] {
        return region_.load(std::memory_order_seq_cst) != seen || stopping_.load();
      });
      num_sleeping_.fetch_sub(1, std::memory_order_relaxed);
    }
    if (region_.load(std::memory_order_acquire) == seen) return;  // stopping
    ++seen;
    (*body_)(thread);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace longspan
