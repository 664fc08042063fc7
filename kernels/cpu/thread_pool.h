// The compute threads of the CPU backend: fork-join over a fixed set of threads, the caller being
// thread 0. Workers spin for a bounded time after a region and then sleep, so that an idle process
// uses no CPU.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace longspan {

// A borrowed callable void(int thread); valid only during the call it is passed to.
class ThreadBody {
 public:
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, ThreadBody>)
      ThreadBody(F&& f)  // NOLINT(google-explicit-constructor): a lambda is what callers write
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* object, int thread) {
          (*static_cast<std::remove_reference_t<F>*>(object))(thread);
        }) {}
  void operator()(int thread) const { call_(object_, thread); }

 private:
  void* object_;
  void (*call_)(void*, int);
};

// Not thread-safe: one thread at a time calls Run. Owned by whoever owns the compute (the runner).
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // num_threads >= 1, the caller included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }
  // Workers that wait without using their processor; all but the caller's when the pool is idle.
  int num_sleeping() const { return num_sleeping_.load(std::memory_order_relaxed); }

  // Calls body(t) once on every thread t in [0, num_threads) and returns when all are done.
  void Run(ThreadBody body);

  // Inside a region: returns on every thread once all threads have called it. Restarts NextTask at
  // 0.
  void Barrier();

  // Inside a region: the next index of a shared counter, for uneven work; Run and Barrier restart
  // it at 0. Returns values >= the number of tasks once they are used up.
  int64_t NextTask() { return next_task_.fetch_add(1, std::memory_order_relaxed); }
  void ResetTasks() { next_task_.store(0, std::memory_order_relaxed); }

 private:
  void WorkerLoop(int thread);

  const int num_threads_;
  std::vector<std::thread> workers_;
  const ThreadBody* body_ = nullptr;
  alignas(64) std::atomic<uint64_t> region_{0};  // counts regions
  alignas(64) std::atomic<int> running_{0};      // workers still inside the region
  alignas(64) std::atomic<int> barrier_count_{0};
  alignas(64) std::atomic<uint64_t> barrier_generation_{0};
  alignas(64) std::atomic<int64_t> next_task_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;  // only to sleep and to wake sleepers
  std::condition_variable wake_;
  std::atomic<int> num_sleeping_{0};
};

}  // namespace longspan
