// The step loop, in two parts: what any thread may call (it only fills the inbox, under one mutex),
// and what the engine thread does with it. A turn is: drain the inbox, schedule, run, update,
// deliver. Policy is scheduler/'s, arithmetic model/'s.
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

constexpr size_t kIdsPerList = 8;  // what a short list takes besides its ids

SeqId Next(SeqId first, int32_t index) { return SeqId{ToInt(first) + index}; }

// What a request keeps in memory while it waits, in token ids: its prompt and its lists.
int64_t QueuedSize(const SequenceParams& params) {
  const SamplingParams& sampling = params.sampling;
  size_t size = params.prompt.size() + params.stop_token_ids.size() + sampling.logit_bias.size() +
                sampling.allowed_token_ids.size();
  for (const std::vector<TokenId>& word : sampling.bad_words) size += kIdsPerList + word.size();
  return static_cast<int64_t>(size);
}

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
      start_paused_(config.start_paused) {}

Engine::~Engine() { Stop(); }

void Engine::Start() {
  ReportStats();  // whoever asks before the thread's first turn finds the pool's size
  thread_ = std::thread([this] { Loop(); });
}

// ---- Any thread -------------------------------------------------------------------------------

SubmitResult Engine::Submit(EngineRequest request) {
  const TimePoint now = clock_.Now();
  const int64_t size = QueuedSize(request.params);
  const int32_t n = request.params.n;
  SubmitResult result;
  {
    const std::lock_guard lock(mutex_);
    if (fatal_error_.has_value() || stopping_ || !accepting_) {
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
    if (queued_requests_ > 0 && queued_tokens_ + size > config_.max_queued_tokens) {
      result.status =
          MakeStatus(absl::StatusCode::kResourceExhausted,
                     "queue: {} tokens wait, of prompts and of lists such as bad words, "
                     "and {} more were sent (limit --max-queued-tokens {})",
                     queued_tokens_, size, config_.max_queued_tokens);
      result.retry_after_seconds = queue_delay_;
      return result;
    }
    result.first = SeqId{next_seq_id_};
    next_seq_id_ += n;
    ++queued_requests_;
    queued_tokens_ += size;
    is_idle_ = false;
    inbox_.push_back(SubmitCommand{result.first, std::move(request), now, size});
  }
  wake_.notify_one();
  return result;
}

bool Engine::Enqueue(Command command) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    inbox_.push_back(std::move(command));
  }
  wake_.notify_one();
  return true;
}

void Engine::Abort(SeqId first, int32_t n, FinishReason reason) {
  Enqueue(AbortCommand{first, n, reason});
}

void Engine::StopFound(SeqId id, int32_t num_tokens) { Enqueue(StopCommand{id, num_tokens}); }

void Engine::ReaderCaughtUp(SeqId first, int32_t n) { Enqueue(CaughtUpCommand{first, n}); }

void Engine::ResetPrefixCache(std::function<void(int32_t)> done) {
  if (!Enqueue(ResetCacheCommand{done})) done(0);
}

void Engine::List(std::function<void(std::vector<SequenceInfo>)> done) {
  if (!Enqueue(ListCommand{done})) done({});
}

void Engine::StopAccepting() {
  const std::lock_guard lock(mutex_);
  accepting_ = false;
}

void Engine::EndStartPause() {
  {
    const std::lock_guard lock(mutex_);
    start_paused_ = false;
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
  return reported_stats_;
}

std::optional<double> Engine::estimated_queue_delay_seconds() const {
  const std::lock_guard lock(mutex_);
  return queue_delay_;
}

Duration Engine::turn_age() const {
  const Duration begin(turn_begin_.load(std::memory_order_relaxed));
  if (begin == Duration::zero()) return Duration::zero();
  return clock_.Now() - TimePoint(begin);
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
  const bool was_paused = start_paused_;
  const auto has_work = [&] { return stopping_ || !inbox_.empty() || start_paused_ != was_paused; };
  if (wakeup.has_value()) {
    wake_.wait_for(lock, *wakeup - clock_.Now(), has_work);
  } else {
    wake_.wait(lock, has_work);
  }
}

bool Engine::RunOnce() {
  turn_begin_.store(clock_.Now().time_since_epoch().count(), std::memory_order_relaxed);
  DrainInbox();
  const bool ran = RunStep();
  if (!ran) {
    Deliver(clock_.Now());
    ReportStats();
  }
  turn_begin_.store(0, std::memory_order_relaxed);
  return ran;
}

void Engine::DrainInbox() {
  {
    const std::lock_guard lock(mutex_);
    commands_.swap(inbox_);
  }
  for (Command& command : commands_) {
    std::visit([this](auto& c) { Execute(c); }, command);
  }
  commands_.clear();  // they hold streams and callbacks, which are not kept while the engine sleeps
}

void Engine::Execute(SubmitCommand& command) {
  SequenceParams& params = command.request.params;
  std::vector<SeqId> ids(static_cast<size_t>(params.n));
  const std::optional<HopelessDeadline> hopeless = FindHopeless(params, command.now);
  for (int32_t i = 0; i < params.n; ++i) {
    ids[static_cast<size_t>(i)] = Next(command.first, i);
    tracks_[ids[static_cast<size_t>(i)]] = Track{.stream = command.request.stream,
                                                 .first = command.first,
                                                 .n = params.n,
                                                 .counts_as_queued = i == 0,
                                                 .queued_size = command.size,
                                                 .started = std::nullopt,
                                                 .last_token = std::nullopt,
                                                 .hopeless = hopeless};
  }
  scheduler_.Add(ids, std::move(params), command.now);
  if (hopeless.has_value()) {
    for (const SeqId id : ids) scheduler_.Abort(id, FinishReason::kDeadline);
  } else {
    newly_added_.push_back(command.first);
  }
}

// Set when the prompt cannot be computed before the deadline even if it started now.
std::optional<HopelessDeadline> Engine::FindHopeless(const SequenceParams& params,
                                                     TimePoint now) const {
  const auto fastest = estimator_.fastest_prefill_tokens_per_second();
  if (!params.deadline.has_value() || !fastest.has_value()) return std::nullopt;
  int64_t tokens = static_cast<int64_t>(params.prompt.size());
  if (params.use_prefix_cache) {
    const PrefixMatch match = kv_cache_.FindPrefix(kv_cache_.Root(AdapterId{}, params.cache_salt),
                                                   TokenView{params.prompt, {}}, tokens - 1);
    tokens -= static_cast<int64_t>(match.blocks.size()) * kv_cache_.block_size();
  }
  const HopelessDeadline found{static_cast<double>(tokens) / *fastest,
                               Seconds(*params.deadline - now)};
  if (found.estimated_seconds <= kHopelessMargin * found.deadline_seconds) return std::nullopt;
  return found;
}

void Engine::Execute(AbortCommand& command) {
  for (int32_t i = 0; i < command.n; ++i) scheduler_.Abort(Next(command.first, i), command.reason);
}

void Engine::Execute(StopCommand& command) { scheduler_.Stop(command.id, command.num_tokens); }

void Engine::Execute(CaughtUpCommand& command) {
  const TimePoint now = clock_.Now();
  for (int32_t i = 0; i < command.n; ++i) {
    const SeqId id = Next(command.first, i);
    if (!scheduler_.Resume(id, now)) continue;
    tracks_.at(id).last_token.reset();  // the pause was the reader's: no stall
  }
}

void Engine::Execute(ResetCacheCommand& command) { command.done(kv_cache_.ResetPrefixCache()); }

void Engine::Execute(ListCommand& command) { command.done(scheduler_.List()); }

bool Engine::RunStep() {
  {
    const std::lock_guard lock(mutex_);
    if (start_paused_ || stopping_) return false;
  }
  const TimePoint begin = clock_.Now();
  scheduler_.Schedule(begin, output_);
  const TimePoint scheduled = clock_.Now();
  if (output_.empty()) {
    TellQueued(scheduled);
    return false;
  }
  Deliver(scheduled);  // kStarted and expired deadlines do not wait for the step
  TellQueued(scheduled);
  runner_->Launch(output_);
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
  ReportStats();
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
  std::erase_if(newly_added_, [this](SeqId first) {
    const auto it = tracks_.find(first);
    return it == tracks_.end() || !it->second.counts_as_queued;
  });
  if (newly_added_.empty()) return;
  const std::vector<int32_t> positions = scheduler_.QueuePositions(newly_added_);
  const int64_t waiting_tokens = scheduler_.stats().num_waiting_tokens;
  for (size_t i = 0; i < newly_added_.size(); ++i) {
    const int32_t position = std::max(0, positions[i]);
    StreamEvent notice;
    notice.stream = tracks_.at(newly_added_[i]).stream;
    notice.event.id = newly_added_[i];
    notice.time = now;
    notice.queued = QueuedNotice{position, EstimateDelay(waiting_tokens, position + 1)};
    outgoing_.push_back(std::move(notice));
  }
  newly_added_.clear();
  outbox_.Push(outgoing_);
}

// How long until so many waiting requests have started: these prompt tokens have to be computed,
// and when no slot is free, as many sequences have to end. Nothing is said before there are
// measurements.
std::optional<double> Engine::EstimateDelay(int64_t num_tokens, int32_t num_requests) const {
  const auto prefill_rate = estimator_.prefill_tokens_per_second();
  if (!prefill_rate.has_value()) return std::nullopt;
  const double prefill = static_cast<double>(num_tokens) / *prefill_rate;
  if (num_requests == 0 || !scheduler_.slots_are_full()) return prefill;
  const auto slot_seconds = estimator_.mean_slot_seconds();
  if (!slot_seconds.has_value()) return std::nullopt;
  return std::max(prefill, num_requests * *slot_seconds / config_.scheduler.max_num_seqs);
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
    if (track.last_token.has_value() && track.num_preemptions == event.num_preemptions) {
      stats_.longest_decode_stall_seconds =
          std::max(stats_.longest_decode_stall_seconds, Seconds(now - *track.last_token));
    }
    track.last_token = now;
    track.num_preemptions = event.num_preemptions;
    track.stream->AddPending(1);
  } else if (event.kind == SequenceEvent::Kind::kPromptLogprobs) {
    track.stream->AddPending(static_cast<int64_t>(event.logprobs.size()));
  }
  if (event.kind == SequenceEvent::Kind::kStarted) track.started = now;
  const bool last = event.kind == SequenceEvent::Kind::kFinished;
  if (last && track.started.has_value()) estimator_.OnSlotFreed(now - *track.started);
  outgoing_.push_back({track.stream, std::move(event), now, std::nullopt, track.hopeless});
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
  queued_tokens_ -= track.queued_size;
}

// Whatever is left ends with UNAVAILABLE; commands of the inbox are carried out first, so that no
// submission and no question is lost without an answer. Later ones do not get in.
void Engine::EndEverything() {
  {
    const std::lock_guard lock(mutex_);
    accepting_ = false;
    closed_ = true;
  }
  DrainInbox();
  std::vector<SeqId> left;
  left.reserve(tracks_.size());
  for (const auto& [id, track] : tracks_) left.push_back(id);
  std::sort(left.begin(), left.end());
  for (const SeqId id : left) scheduler_.Abort(id, FinishReason::kDrained);
  Deliver(clock_.Now());
  ReportStats();
}

void Engine::ReportStats() {
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
  const std::optional<double> delay =
      EstimateDelay(scheduler.num_waiting_tokens, scheduler.num_waiting);
  observer_.OnStats(stats_);  // first: who sees the engine idle finds its counters complete
  {
    const std::lock_guard lock(mutex_);
    reported_stats_ = stats_;
    queue_delay_ = delay;
    is_idle_ = scheduler_.idle() && inbox_.empty();
  }
  idle_.notify_all();
  stats_.kind = StepKind::kIdle;
  stats_.step_tokens = 0;
  stats_.step_sequences = 0;
  stats_.step_kv_bytes_read = 0;
}

}  // namespace longspan
