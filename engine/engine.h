// The step loop: the one thread that owns scheduler, KV cache and model runner. Everything else
// talks to it through an inbox (Submit, which is bounded, Abort, ...) and hears from it through the
// Outbox and the EngineObserver.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "engine/engine_observer.h"
#include "engine/load_estimator.h"
#include "engine/token_stream.h"
#include "kvcache/kv_cache_manager.h"
#include "model/model_runner.h"
#include "scheduler/scheduler.h"

namespace longspan {

struct EngineConfig {
  SchedulerConfig scheduler;
  int32_t max_queued_requests = 1024;
  int64_t max_queued_tokens = 8 * 1024 * 1024;  // of prompts, and of lists such as bad words
  Duration step_delay{};                        // test-only: added to every step
  // Called once on the engine thread when a step failed; may be empty.
  std::function<void()> on_fatal;
  bool start_paused = false;  // test-only: schedules nothing until EndStartPause
};

// One validated request. Its n sequences get consecutive ids from SubmitResult::first.
struct EngineRequest {
  SequenceParams params;
  std::shared_ptr<TokenStream> stream;
};

struct SubmitResult {
  Status status;  // OK, RESOURCE_EXHAUSTED, UNAVAILABLE or DEADLINE_EXCEEDED
  SeqId first{};  // when OK
  std::optional<double> retry_after_seconds;  // when RESOURCE_EXHAUSTED, if there are measurements
};

// Public methods are thread-safe unless said otherwise. Owns its thread, scheduler and runner; the
// KV manager, clock, outbox and observer are borrowed and outlive it.
class Engine {
 public:
  Engine(const EngineConfig& config, const Clock& clock, KvCacheManager& kv_cache,
         std::unique_ptr<ModelRunner> runner, Outbox& outbox, EngineObserver& observer);
  ~Engine();  // stops at once; what runs ends with UNAVAILABLE
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Starts the engine thread. Tests call RunOnce instead.
  void Start();

  SubmitResult Submit(EngineRequest request);
  // Ends sequences [first, first + n) with kAborted (the Abort RPC: a Finished event) or kCancelled
  // (the client left: no event is wanted). Unknown ones are ignored.
  void Abort(SeqId first, int32_t n, FinishReason reason);
  // The output thread found a stop string: the sequence ends, its tokens after num_tokens do not
  // count.
  void StopFound(SeqId id, int32_t num_tokens);
  void ReaderCaughtUp(SeqId first, int32_t n);
  // Forgets all cached prefixes; blocks that somebody holds stay held. `done` is called on the
  // engine thread; on the caller's, with 0, once the engine has stopped.
  void ResetPrefixCache(std::function<void(int32_t blocks)> done);
  // ListRequests of the Admin service; `done` likewise, with nothing once the engine has stopped.
  void List(std::function<void(std::vector<SequenceInfo>)> done);

  // Refuses new requests from now on; running and waiting ones finish.
  void StopAccepting();
  // Ends whatever is left with kDrained (UNAVAILABLE) and stops the thread.
  void Stop();
  // Blocks until nothing runs or waits, or the deadline passes; true when idle.
  bool WaitIdle(TimePoint deadline);
  // Test-only: steps run from now on, although EngineConfig::start_paused held them back.
  void EndStartPause();

  // Stats and estimates as last reported.
  EngineStats stats() const;
  std::optional<double> estimated_queue_delay_seconds() const;
  // How long the turn that runs now has taken; zero between turns. For a watchdog.
  Duration turn_age() const;
  // Set once a step failed on the device; the process has to end.
  std::optional<Status> fatal_error() const;

  // One turn of the loop on the caller's thread, for tests without Start: drains the inbox and runs
  // one step if there is work. Returns whether a step ran.
  bool RunOnce();

 private:
  struct SubmitCommand {
    SeqId first;
    EngineRequest request;
    TimePoint now;
    int64_t size;  // what it counts for in the queue, in tokens
  };
  struct AbortCommand {
    SeqId first;
    int32_t n;
    FinishReason reason;
  };
  struct StopCommand {
    SeqId id;
    int32_t num_tokens;
  };
  struct CaughtUpCommand {
    SeqId first;
    int32_t n;
  };
  struct ResetCacheCommand {
    std::function<void(int32_t)> done;
  };
  struct ListCommand {
    std::function<void(std::vector<SequenceInfo>)> done;
  };
  using Command = std::variant<SubmitCommand, AbortCommand, StopCommand, CaughtUpCommand,
                               ResetCacheCommand, ListCommand>;

  // Engine-thread state of one sequence between its submission and its last event.
  struct Track {
    std::shared_ptr<TokenStream> stream;
    SeqId first{};  // of its request
    int32_t n = 1;
    bool counts_as_queued = false;  // the request's first sequence until it starts or ends
    int64_t queued_size = 0;
    std::optional<TimePoint> started;
    std::optional<TimePoint> last_token;  // since it last began to run
    int32_t num_preemptions = 0;          // at its last token
    std::optional<HopelessDeadline> hopeless;
  };

  void Loop();
  void WaitForWork();
  void DrainInbox();
  void Execute(SubmitCommand& command);
  void Execute(AbortCommand& command);
  void Execute(StopCommand& command);
  void Execute(CaughtUpCommand& command);
  void Execute(ResetCacheCommand& command);
  void Execute(ListCommand& command);
  std::optional<HopelessDeadline> FindHopeless(const SequenceParams& params, TimePoint now) const;
  bool RunStep();
  void CountStep(TimePoint begin, TimePoint end, Duration scheduling);
  void TellQueued(TimePoint now);
  std::optional<double> EstimateDelay(int64_t num_tokens, int32_t num_requests) const;
  void Deliver(TimePoint now);
  void DeliverEvent(SequenceEvent& event, TimePoint now);
  void PauseSlowReaders(TimePoint now);
  void LeaveQueue(Track& track);
  void EndEverything();
  void ReportStats();
  bool Enqueue(Command command);  // false, and nothing happened: the engine has stopped

  const EngineConfig config_;
  const Clock& clock_;
  KvCacheManager& kv_cache_;
  Scheduler scheduler_;
  std::unique_ptr<ModelRunner> runner_;
  Outbox& outbox_;
  EngineObserver& observer_;
  LoadEstimator estimator_;

  std::atomic<Duration::rep> turn_begin_{0};  // since the clock's epoch; 0: no turn runs

  // The inbox and what was last reported: guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable wake_;  // the engine thread: a command came, EndStartPause or Stop
  std::condition_variable idle_;  // WaitIdle
  std::vector<Command> inbox_;
  EngineStats reported_stats_;
  std::optional<double> queue_delay_;
  std::optional<Status> fatal_error_;
  int32_t queued_requests_ = 0;  // submitted and neither started nor ended
  int64_t queued_tokens_ = 0;    // their prompts and lists
  int64_t next_seq_id_ = 1;
  bool accepting_ = true;
  bool start_paused_ = false;
  bool stopping_ = false;
  bool closed_ = false;  // nobody will look into the inbox any more
  bool is_idle_ = true;

  // Engine thread only.
  std::vector<Command> commands_;
  SchedulerOutput output_;
  StepResult result_;
  std::vector<SequenceEvent> events_;
  std::vector<StreamEvent> outgoing_;
  std::vector<SeqId> newly_added_;  // first sequences of requests not yet through one Schedule
  std::unordered_map<SeqId, Track> tracks_;
  EngineStats stats_;
  std::thread thread_;
};

}  // namespace longspan
