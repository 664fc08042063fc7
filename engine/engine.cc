#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/log.h"

namespace longspan {
namespace {

// A deadline is hopeless when the prompt alone, at the fastest rate ever measured and with this
// much air, cannot be computed before it.
constexpr double kHopelessMargin = 1.5;

SeqId Next(SeqId first, int32_t index) { return SeqId{ToInt(first) + index}; }

// One token of one sequence: as the scheduler tells decodes from prefill chunks.
bool IsDecode(const ScheduledSequence& sequence) { return sequence.num_scheduled_tokens == 1; }

}  // namespace

Engine::Engine(const EngineConfig& config, const Clock& clock, KvCacheManager& kv_cache,
               std::unique_ptr<ModelRunner> runner, Outbox& outbox, EngineObserver& observer)
    : config_(config),
      clock_(clock),
      kv_cache_(kv_cache),
      scheduler_(config.scheduler, kv_cache),
      runner_(std::move(runner)),
      outbox_(outbox),
      observer_(observer),
      paused_(config.start_paused) {}

Engine::~Engine() { Stop(); }

void Engine::Start() {
  thread_ = std::thread([this] { Loop(); });
}

// ---- Any thread -------------------------------------------------------------------------------

SubmitResult Engine::Submit(EngineRequest request) {
  const TimePoint now = clock_.Now();
  const auto prompt_tokens = static_cast<int64_t>(request.params.prompt.size());
  const int32_t n = request.params.n;
  SubmitResult result;
  {
    const std::lock_guard lock(mutex_);
    if (fatal_error_.has_value() || stopping_ || !admitting_) {
      result.status = MakeStatus(absl::StatusCode::kUnavailable, "the server is going down");
      return result;
    }
    if (request.params.deadline && *request.params.deadline <= now) {
      result.status = MakeStatus(absl::StatusCode::kDeadlineExceeded,
                                 "the deadline passed before the request was queued");
      return result;
    }
    if (queued_requests_ >= config_.max_queued_requests) {
      result.status = MakeStatus(absl::StatusCode::kResourceExhausted,
                                 "queue: {} requests wait (limit --max-queued-requests {})",
                                 queued_requests_, config_.max_queued_requests);
      result.retry_after_seconds = queue_delay_;
      return result;
    }
    if (queued_requests_ > 0 && queued_tokens_ + prompt_tokens > config_.max_queued_tokens) {
      result.status = MakeStatus(
          absl::StatusCode::kResourceExhausted,
          "queue: {} prompt tokens wait and {} more were sent (limit --max-queued-tokens {})",
          queued_tokens_, prompt_tokens, config_.max_queued_tokens);
      result.retry_after_seconds = queue_delay_;
      return result;
    }
    result.first = SeqId{next_seq_id_};
    next_seq_id_ += n;
    ++queued_requests_;
    queued_tokens_ += prompt_tokens;
    is_idle_ = false;
    inbox_.push_back(SubmitCommand{result.first, std::move(request), now});
  }
  wake_.notify_one();
  return result;
}

void Engine::Enqueue(Command command) {
  {
    const std::lock_guard lock(mutex_);
    inbox_.push_back(std::move(command));
  }
  wake_.notify_one();
}

void Engine::Abort(SeqId first, int32_t n, FinishReason reason) {
  Enqueue(AbortCommand{first, n, reason});
}

void Engine::StopFound(SeqId id, int32_t num_tokens) { Enqueue(StopCommand{id, num_tokens}); }

void Engine::ReaderCaughtUp(SeqId first, int32_t n) { Enqueue(CaughtUpCommand{first, n}); }

void Engine::ResetPrefixCache(std::function<void(int32_t)> done) {
  Enqueue(ResetCacheCommand{std::move(done)});
}

void Engine::List(std::function<void(std::vector<SequenceInfo>)> done) {
  Enqueue(ListCommand{std::move(done)});
}

void Engine::StopAdmitting() {
  const std::lock_guard lock(mutex_);
  admitting_ = false;
}

void Engine::Resume() {
  {
    const std::lock_guard lock(mutex_);
    paused_ = false;
  }
  wake_.notify_one();
}

void Engine::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  } else {
    EndEverything();
  }
}

bool Engine::WaitIdle(TimePoint deadline) {
  std::unique_lock lock(mutex_);
  return idle_.wait_until(lock, deadline, [this] { return is_idle_ && inbox_.empty(); });
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  return published_;
}

std::optional<double> Engine::estimated_queue_delay_seconds() const {
  const std::lock_guard lock(mutex_);
  return queue_delay_;
}

std::optional<Status> Engine::fatal_error() const {
  const std::lock_guard lock(mutex_);
  return fatal_error_;
}

// ---- Engine thread ----------------------------------------------------------------------------

void Engine::Loop() {
  while (true) {
    const bool ran = RunOnce();
    {
      const std::lock_guard lock(mutex_);
      if (stopping_ || fatal_error_.has_value()) break;
    }
    if (!ran) WaitForWork();
  }
  EndEverything();
}

void Engine::WaitForWork() {
  const std::optional<TimePoint> wakeup = scheduler_.NextWakeup();
  std::unique_lock lock(mutex_);
  const bool was_paused = paused_;
  const auto has_work = [&] { return stopping_ || !inbox_.empty() || paused_ != was_paused; };
  if (wakeup.has_value()) {
    wake_.wait_for(lock, *wakeup - clock_.Now(), has_work);
  } else {
    wake_.wait(lock, has_work);
  }
}

bool Engine::RunOnce() {
  DrainInbox();
  const bool ran = RunStep();
  if (!ran) {
    Deliver(clock_.Now());
    Publish();
  }
  return ran;
}

void Engine::DrainInbox() {
  commands_.clear();
  {
    const std::lock_guard lock(mutex_);
    commands_.swap(inbox_);
  }
  for (Command& command : commands_) {
    std::visit([this](auto& c) { Execute(c); }, command);
  }
}

void Engine::Execute(SubmitCommand& command) {
  SequenceParams& params = command.request.params;
  std::vector<SeqId> ids(static_cast<size_t>(params.n));
  for (int32_t i = 0; i < params.n; ++i) {
    ids[static_cast<size_t>(i)] = Next(command.first, i);
    tracks_[ids[static_cast<size_t>(i)]] =
        Track{.stream = command.request.stream,
              .first = command.first,
              .n = params.n,
              .counts_as_queued = i == 0,
              .prompt_tokens = static_cast<int64_t>(params.prompt.size()),
              .last_token = std::nullopt};
  }
  const bool hopeless = IsHopeless(params, command.now);
  scheduler_.Add(ids, std::move(params), command.now);
  if (hopeless) {
    for (const SeqId id : ids) scheduler_.Abort(id, FinishReason::kDeadline);
  } else {
    newly_added_.push_back(command.first);
  }
}

// Whether the prompt cannot be computed before the deadline even if it started now.
bool Engine::IsHopeless(const SequenceParams& params, TimePoint now) const {
  const auto fastest = estimator_.fastest_prefill_tokens_per_second();
  if (!params.deadline.has_value() || !fastest.has_value()) return false;
  int64_t tokens = static_cast<int64_t>(params.prompt.size());
  if (params.use_prefix_cache) {
    const PrefixMatch match = kv_cache_.FindPrefix(kv_cache_.Root(AdapterId{}, params.cache_salt),
                                                   TokenView{params.prompt, {}}, tokens - 1);
    tokens -= static_cast<int64_t>(match.blocks.size()) * kv_cache_.block_size();
  }
  return static_cast<double>(tokens) > *fastest * kHopelessMargin * Seconds(*params.deadline - now);
}

void Engine::Execute(AbortCommand& command) {
  for (int32_t i = 0; i < command.n; ++i) scheduler_.Abort(Next(command.first, i), command.reason);
}

void Engine::Execute(StopCommand& command) { scheduler_.Stop(command.id, command.num_tokens); }

void Engine::Execute(CaughtUpCommand& command) {
  const TimePoint now = clock_.Now();
  for (int32_t i = 0; i < command.n; ++i) scheduler_.Resume(Next(command.first, i), now);
}

void Engine::Execute(ResetCacheCommand& command) { command.done(kv_cache_.ResetPrefixCache()); }

void Engine::Execute(ListCommand& command) { command.done(scheduler_.List()); }

bool Engine::RunStep() {
  {
    const std::lock_guard lock(mutex_);
    if (paused_ || stopping_) return false;
  }
  const TimePoint begin = clock_.Now();
  scheduler_.Schedule(begin, output_);
  const TimePoint scheduled = clock_.Now();
  if (output_.empty()) {
    TellQueued(scheduled);
    return false;
  }
  runner_->Launch(output_);
  Deliver(scheduled);  // kStarted and expired deadlines need not wait for the step
  TellQueued(scheduled);
  const Status status = runner_->Collect(result_);
  if (!status.ok()) {
    spdlog::critical("step {} failed on the device: {}", ToInt(output_.step),
                     StatusMessage(status));
    {
      const std::lock_guard lock(mutex_);
      fatal_error_ = status;
    }
    if (config_.on_fatal) config_.on_fatal();
    return true;
  }
  if (config_.step_delay > Duration::zero()) std::this_thread::sleep_for(config_.step_delay);
  const TimePoint computed = clock_.Now();
  scheduler_.Update(output_, result_, computed);
  const TimePoint end = clock_.Now();
  CountStep(begin, end, (scheduled - begin) + (end - computed));
  Deliver(end);
  Publish();
  return true;
}

void Engine::CountStep(TimePoint begin, TimePoint end, Duration scheduling) {
  int64_t prefill_tokens = 0;
  int32_t num_decodes = 0;
  for (const ScheduledSequence& sequence : output_.scheduled) {
    if (IsDecode(sequence)) {
      ++num_decodes;
    } else {
      prefill_tokens += sequence.num_scheduled_tokens;
    }
  }
  estimator_.OnStep(prefill_tokens, static_cast<int64_t>(result_.token_ids.size()), end - begin,
                    end);
  stats_.kind = prefill_tokens == 0 ? StepKind::kDecode
                : num_decodes == 0  ? StepKind::kPrefill
                                    : StepKind::kMixed;
  stats_.step_tokens = static_cast<int32_t>(prefill_tokens) + num_decodes;
  stats_.step_sequences = static_cast<int32_t>(output_.scheduled.size());
  stats_.step_kv_bytes_read = result_.kv_bytes_read;
  stats_.kv_bytes_read += result_.kv_bytes_read;
  stats_.step_seconds = Seconds(end - begin);
  stats_.step_scheduler_seconds = Seconds(scheduling);
  stats_.step_attention_seconds = result_.attention_seconds;
  stats_.step_attention_splits = result_.attention_splits;
  stats_.longest_decode_stall_seconds = 0.0;
}

// Requests that the first Schedule after their arrival did not start are told that they wait.
void Engine::TellQueued(TimePoint now) {
  for (const SeqId first : newly_added_) {
    const auto it = tracks_.find(first);
    if (it == tracks_.end() || !it->second.counts_as_queued) continue;
    StreamEvent notice;
    notice.stream = it->second.stream;
    notice.event.id = first;
    notice.time = now;
    notice.queued =
        QueuedNotice{std::max(0, scheduler_.QueuePosition(first)), estimated_queue_delay_seconds()};
    outgoing_.push_back(std::move(notice));
  }
  newly_added_.clear();
  outbox_.Push(outgoing_);
}

void Engine::Deliver(TimePoint now) {
  events_.clear();
  scheduler_.TakeEvents(events_);
  for (SequenceEvent& event : events_) DeliverEvent(event, now);
  outbox_.Push(outgoing_);
  PauseSlowReaders(now);
}

void Engine::DeliverEvent(SequenceEvent& event, TimePoint now) {
  const auto it = tracks_.find(event.id);
  CHECK(it != tracks_.end(), "event of unknown sequence {}", ToInt(event.id));
  Track& track = it->second;
  LeaveQueue(track);
  if (event.kind == SequenceEvent::Kind::kTokens) {
    if (track.last_token.has_value()) {
      stats_.longest_decode_stall_seconds =
          std::max(stats_.longest_decode_stall_seconds, Seconds(now - *track.last_token));
    }
    track.last_token = now;
    track.stream->AddPending(1);
  } else if (event.kind == SequenceEvent::Kind::kPromptLogprobs) {
    track.stream->AddPending(static_cast<int64_t>(event.logprobs.size()));
  }
  const bool last = event.kind == SequenceEvent::Kind::kFinished;
  outgoing_.push_back(StreamEvent{track.stream, std::move(event), now, std::nullopt});
  if (last) tracks_.erase(it);
}

void Engine::PauseSlowReaders(TimePoint now) {
  for (const SequenceEvent& event : events_) {
    if (event.kind != SequenceEvent::Kind::kTokens &&
        event.kind != SequenceEvent::Kind::kPromptLogprobs) {
      continue;
    }
    const auto it = tracks_.find(event.id);
    if (it == tracks_.end() || !it->second.stream->PauseIfBehind()) continue;
    for (int32_t i = 0; i < it->second.n; ++i) scheduler_.Pause(Next(it->second.first, i), now);
  }
}

void Engine::LeaveQueue(Track& track) {
  if (!track.counts_as_queued) return;
  track.counts_as_queued = false;
  const std::lock_guard lock(mutex_);
  --queued_requests_;
  queued_tokens_ -= track.prompt_tokens;
}

// Whatever is left ends with UNAVAILABLE; commands of the inbox are carried out first, so that no
// submission is lost without an answer.
void Engine::EndEverything() {
  {
    const std::lock_guard lock(mutex_);
    admitting_ = false;
  }
  DrainInbox();
  std::vector<SeqId> left;
  left.reserve(tracks_.size());
  for (const auto& [id, track] : tracks_) left.push_back(id);
  std::sort(left.begin(), left.end());
  for (const SeqId id : left) scheduler_.Abort(id, FinishReason::kDrained);
  Deliver(clock_.Now());
  Publish();
}

void Engine::Publish() {
  const SchedulerStats scheduler = scheduler_.stats();
  stats_.requests_running = scheduler.num_running;
  stats_.requests_waiting = scheduler.num_waiting;
  stats_.requests_paused = scheduler.num_paused;
  stats_.waiting_tokens = scheduler.num_waiting_tokens;
  stats_.preemptions = scheduler.num_preemptions;
  stats_.blocks_total = scheduler.kv.num_blocks;
  stats_.blocks_free = scheduler.kv.num_free;
  stats_.blocks_held = scheduler.kv.num_held;
  stats_.blocks_evictable = scheduler.kv.num_evictable;
  stats_.blocks_leaked = scheduler.kv.num_leaked;
  stats_.prefix_queries_tokens = scheduler.kv.query_tokens;
  stats_.prefix_hits_tokens = scheduler.kv.hit_tokens;
  stats_.prefix_evictions_blocks = scheduler.kv.evicted_blocks;
  stats_.tokens_per_second = estimator_.tokens_per_second(clock_.Now());
  const auto prefill_rate = estimator_.prefill_tokens_per_second();
  {
    const std::lock_guard lock(mutex_);
    published_ = stats_;
    if (prefill_rate.has_value()) {
      queue_delay_ = static_cast<double>(stats_.waiting_tokens) / *prefill_rate;
    }
    is_idle_ = scheduler_.idle() && inbox_.empty();
  }
  idle_.notify_all();
  observer_.OnStats(stats_);
  stats_.kind = StepKind::kIdle;
  stats_.step_tokens = 0;
  stats_.step_sequences = 0;
  stats_.step_kv_bytes_read = 0;
}

}  // namespace longspan
