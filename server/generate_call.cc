// One request's end is decided in End, and only there: an atomic flag makes the first caller win.
// The upper part runs on gRPC's and the tokenizer's threads, the part below the line on the output
// thread.
#include "server/generate_call.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "server/error_details.h"

namespace longspan {
namespace {

constexpr const char* kMethod = "longspan.v1.Inference/Generate";
// Prompt log-probabilities leave in pieces: 512 positions with 20 alternatives are some 130 kB.
constexpr size_t kMaxPromptEntries = 512;

// A client's deadline reaches us rounded up by its transport, and its own timer fires first: a
// cancel so short before the deadline is the deadline. One 64th covers gRPC's rounding (1 %).
constexpr Duration kDeadlineTolerance = std::chrono::milliseconds(20);
constexpr int kDeadlineToleranceFraction = 64;

void FillLogprobs(const Logprobs& in, v1::TokenLogprobs& out) {
  out.set_token_id(ToInt(in.token));
  out.set_logprob(in.logprob);
  for (size_t i = 0; i < in.top_ids.size(); ++i) {
    v1::TopLogprob* top = out.add_top();
    top->set_token_id(ToInt(in.top_ids[i]));
    top->set_logprob(in.top_logprobs[i]);
  }
}

RequestOutcome OutcomeOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return RequestOutcome::kStop;
    case FinishReason::kLength:
      return RequestOutcome::kLength;
    case FinishReason::kAborted:
    case FinishReason::kCancelled:
      return RequestOutcome::kAborted;
    case FinishReason::kDeadline:
      return RequestOutcome::kDeadline;
    default:
      return RequestOutcome::kError;
  }
}

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    default:
      return v1::FINISH_REASON_ABORTED;
  }
}

}  // namespace

grpc::Status StatusOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kDeadline:
      return {grpc::StatusCode::DEADLINE_EXCEEDED, "the deadline passed"};
    case FinishReason::kCancelled:
      return {grpc::StatusCode::CANCELLED, "the client cancelled"};
    case FinishReason::kNonFinite:
      return {grpc::StatusCode::INTERNAL, "non-finite logits"};
    case FinishReason::kSlowReader:
      return {grpc::StatusCode::RESOURCE_EXHAUSTED,
              "the reader was too slow (limit --slow-reader-timeout)"};
    case FinishReason::kDrained:
      return {grpc::StatusCode::UNAVAILABLE, "the server is going down"};
    default:
      return grpc::Status::OK;
  }
}

GenerateCall::GenerateCall(const ServerContext& context, RequestRegistry& registry,
                           const CallTimes& times, int64_t max_pending_tokens)
    : TokenStream(max_pending_tokens), context_(context), registry_(registry), times_(times) {}

bool GenerateCall::TakeId(const std::string& wanted) {
  std::string id = wanted.empty() ? MakeRequestId() : wanted;
  const std::lock_guard lock(mutex_);
  if (ended_.load()) return true;  // the client has gone; nobody would free the id again
  if (!registry_.Add(id, shared_from_this())) return false;
  id_ = std::move(id);
  return true;
}

void GenerateCall::Submit(ValidatedRequest request) {
  if (ended_.load()) return;
  options_ = std::move(request.output);
  seed_ = request.params.sampling.seed;
  num_prompt_tokens_ = static_cast<int32_t>(request.params.prompt.size());
  if (request.params.sampling.num_prompt_logprobs >= 0) {
    first_prompt_token_ = request.params.prompt.front();
  }
  const int32_t n = request.params.n;
  const Tokenizer* tokenizer = context_.model()->tokenizer;
  const bool needs_text = options_.text || !options_.stop_strings.empty();
  sequences_.reserve(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) {
    auto matcher =
        StopStringMatcher::Create(options_.stop_strings, options_.include_stop_in_output);
    if (!matcher.ok()) return Refuse(ToGrpcStatus(matcher.status()));
    sequences_.push_back(SequenceState{
        SequenceOutput(options_, needs_text ? tokenizer : nullptr, *std::move(matcher)),
        std::nullopt, TimePoint{}, false});
  }
  request.params.deadline = times_.deadline;
  const SubmitResult result =
      context_.engine()->Submit(EngineRequest{std::move(request.params), shared_from_this()});
  if (result.status.code() == absl::StatusCode::kResourceExhausted) {
    return Refuse(
        ResourceExhausted(StatusMessage(result.status),
                          result.retry_after_seconds.value_or(kRetrySecondsBeforeMeasurements)));
  }
  if (result.status.code() == absl::StatusCode::kDeadlineExceeded) {
    End(ToGrpcStatus(result.status), RequestOutcome::kDeadline, ResponseQueue::Rest::kDiscard);
    return;
  }
  if (!result.status.ok()) return Refuse(ToGrpcStatus(result.status));
  bool abort_wanted = false;
  {
    const std::lock_guard lock(mutex_);
    submitted_ = {result.first, n};
    abort_wanted = abort_wanted_;
  }
  // Whoever ended or aborted the call before could not tell the engine.
  if (ended_.load()) {
    AbortInEngine(FinishReason::kCancelled);
  } else if (abort_wanted) {
    AbortInEngine(FinishReason::kAborted);
  }
}

void GenerateCall::Refuse(const grpc::Status& status) {
  End(status, RequestOutcome::kRejected, ResponseQueue::Rest::kDiscard);
}

void GenerateCall::RefuseUnlessSubmitted(const grpc::Status& status) {
  if (submitted().n > 0) return;
  if (End(status, RequestOutcome::kRejected, ResponseQueue::Rest::kDiscard)) {
    AbortInEngine(FinishReason::kCancelled);  // it may have arrived there in between
  }
}

void GenerateCall::OnWriteDone(bool ok) { Delivered(queue_.OnWriteDone(ok)); }

void GenerateCall::Delivered(int64_t num_tokens) {
  if (num_tokens == 0 || !TakeDelivered(num_tokens)) return;
  const Submitted submitted = this->submitted();
  if (submitted.n > 0) context_.engine()->ReaderCaughtUp(submitted.first, submitted.n);
}

void GenerateCall::OnClientGone() {
  const TimePoint now = context_.clock().Now();
  bool is_deadline = false;
  if (times_.deadline) {
    const Duration tolerance =
        kDeadlineTolerance + (*times_.deadline - times_.arrival) / kDeadlineToleranceFraction;
    is_deadline = now + tolerance >= *times_.deadline;
  }
  const FinishReason reason = is_deadline ? FinishReason::kDeadline : FinishReason::kCancelled;
  if (End(StatusOf(reason), OutcomeOf(reason), ResponseQueue::Rest::kDiscard)) {
    AbortInEngine(FinishReason::kCancelled);
  }
}

void GenerateCall::Abort() {
  {
    const std::lock_guard lock(mutex_);
    abort_wanted_ = true;
  }
  AbortInEngine(FinishReason::kAborted);
}

void GenerateCall::AbortInEngine(FinishReason reason) {
  const Submitted submitted = this->submitted();
  if (submitted.n > 0) context_.engine()->Abort(submitted.first, submitted.n, reason);
}

GenerateCall::Submitted GenerateCall::submitted() const {
  const std::lock_guard lock(mutex_);
  return submitted_;
}

bool GenerateCall::End(const grpc::Status& status, RequestOutcome outcome,
                       ResponseQueue::Rest rest) {
  if (ended_.exchange(true)) return false;
  {
    const std::lock_guard lock(mutex_);
    if (!id_.empty()) registry_.Remove(id_);
  }
  const double seconds = Seconds(context_.clock().Now() - times_.arrival);
  context_.observer().OnRequestEnded({outcome, seconds});
  context_.observer().OnRpcEnded(kMethod, status.error_code());
  spdlog::debug("request {} ended: code {}, {:.3f} s, trace {}, {}", Escaped(id_),
                static_cast<int>(status.error_code()), seconds,
                traceparent_.empty() ? "none" : Escaped(traceparent_), status.error_message());
  queue_.Finish(status, rest);
  return true;
}

// ---- Output thread ----------------------------------------------------------------------------

void GenerateCall::OnEvent(StreamEvent& event) {
  if (ended_.load()) return;
  LearnIds(event.event);
  if (event.queued) return OnQueued(*event.queued);
  if (event.hopeless) return OnHopeless(*event.hopeless);
  switch (event.event.kind) {
    case SequenceEvent::Kind::kStarted:
      return OnStarted(event.event, event.time);
    case SequenceEvent::Kind::kTokens:
      return OnToken(event.event, event.time);
    case SequenceEvent::Kind::kPromptLogprobs:
      return OnPromptLogprobs(event.event);
    case SequenceEvent::Kind::kFinished:
      return OnFinished(event.event, event.time);
  }
}

// The first event may overtake the return of Engine::Submit.
void GenerateCall::LearnIds(const SequenceEvent& event) {
  if (knows_ids_) return;
  knows_ids_ = true;
  const std::lock_guard lock(mutex_);
  submitted_ = {SeqId{ToInt(event.id) - event.index}, static_cast<int32_t>(sequences_.size())};
}

// Ended before it ran, all n sequences alike.
void GenerateCall::OnHopeless(const HopelessDeadline& hopeless) {
  End({grpc::StatusCode::DEADLINE_EXCEEDED,
       fmt::format("the deadline cannot be met: estimated {:.1f} s until the first token (deadline "
                   "{:.1f} s)",
                   hopeless.estimated_seconds, hopeless.deadline_seconds)},
      RequestOutcome::kDeadline, ResponseQueue::Rest::kDiscard);
}

void GenerateCall::OnQueued(const QueuedNotice& notice) {
  v1::GenerateResponse response;
  v1::Queued& queued = *response.mutable_queued();
  queued.set_position(notice.position);
  if (notice.estimated_delay_seconds) {
    queued.set_estimated_delay_seconds(*notice.estimated_delay_seconds);
  }
  queue_.Push(std::move(response), 0);
}

// Siblings start with the first sequence or after it; the request starts once.
void GenerateCall::OnStarted(const SequenceEvent& event, TimePoint time) {
  if (started_) return;
  started_ = time;
  num_cached_tokens_ = event.num_cached_tokens;
  v1::GenerateResponse response;
  v1::Started& started = *response.mutable_started();
  started.set_request_id(id_);
  started.set_prompt_tokens(num_prompt_tokens_);
  started.set_cached_tokens(num_cached_tokens_);
  started.set_seed(seed_);
  queue_.Push(std::move(response), 0);
  if (first_prompt_token_ != kInvalidToken) {
    // Nothing comes before the first token: its entry has no logprob, and the engine no event for
    // it.
    v1::GenerateResponse first;
    first.mutable_prompt_logprobs()->add_entries()->set_token_id(ToInt(first_prompt_token_));
    queue_.Push(std::move(first), 0);
  }
  context_.observer().OnStarted(
      {num_prompt_tokens_, num_cached_tokens_, Seconds(time - times_.arrival)});
}

void GenerateCall::OnToken(SequenceEvent& event, TimePoint time) {
  SequenceState& sequence = sequences_[static_cast<size_t>(event.index)];
  // Tokens after a stop string: the engine had not heard of it yet. Neither delivered nor counted.
  if (sequence.output.is_over()) return Delivered(1);
  v1::GenerateResponse response;
  v1::Chunk& chunk = *response.mutable_chunk();
  chunk.set_index(event.index);
  std::string text = sequence.output.Append(event.token);
  if (options_.text) *chunk.mutable_text() = std::move(text);
  if (options_.token_ids) chunk.add_token_ids(ToInt(event.token));
  for (const Logprobs& logprobs : event.logprobs) FillLogprobs(logprobs, *chunk.add_logprobs());
  ObserveToken(sequence, time);
  if (sequence.output.is_over()) {
    context_.engine()->StopFound(event.id, sequence.output.num_tokens());
  }
  const bool is_empty =
      chunk.token_ids().empty() && chunk.text().empty() && chunk.logprobs().empty();
  if (is_empty) return Delivered(1);
  queue_.Push(std::move(response), 1);
}

void GenerateCall::ObserveToken(SequenceState& sequence, TimePoint time) {
  if (!has_first_token_) {
    has_first_token_ = true;
    context_.observer().OnFirstToken(
        {Seconds(time - times_.arrival), Seconds(time - started_.value_or(times_.arrival))});
  }
  const double gap = sequence.first_token ? Seconds(time - sequence.last_token) : -1.0;
  if (!sequence.first_token) sequence.first_token = time;
  sequence.last_token = time;
  context_.observer().OnTokens({1, gap});
}

void GenerateCall::OnPromptLogprobs(SequenceEvent& event) {
  for (size_t begin = 0; begin < event.logprobs.size(); begin += kMaxPromptEntries) {
    const size_t end = std::min(begin + kMaxPromptEntries, event.logprobs.size());
    v1::GenerateResponse response;
    v1::PromptLogprobs& piece = *response.mutable_prompt_logprobs();
    const int32_t start = event.prompt_position + static_cast<int32_t>(begin);
    piece.set_start(start);
    for (size_t i = begin; i < end; ++i) FillLogprobs(event.logprobs[i], *piece.add_entries());
    queue_.Push(std::move(response), static_cast<int64_t>(end - begin));
  }
}

void GenerateCall::OnFinished(const SequenceEvent& event, TimePoint time) {
  SequenceState& sequence = sequences_[static_cast<size_t>(event.index)];
  if (sequence.is_finished) return;
  sequence.is_finished = true;
  // A stop string was there first, whatever else happened before the engine heard of it.
  const FinishReason reason = sequence.output.is_over() ? FinishReason::kStop : event.reason;
  const grpc::Status status = StatusOf(reason);
  if (!status.ok()) {
    const bool has_time = reason == FinishReason::kDrained || reason == FinishReason::kNonFinite;
    End(status, OutcomeOf(reason),
        has_time ? ResponseQueue::Rest::kSend : ResponseQueue::Rest::kDiscard);
    // The siblings end with it; when the engine stops they have ended already.
    if (sequences_.size() > 1 && reason != FinishReason::kDrained) {
      AbortInEngine(FinishReason::kCancelled);
    }
    return;
  }
  const FinishReason sent = SendFinished(event, reason, time);
  ++num_finished_;
  if (num_finished_ == static_cast<int32_t>(sequences_.size())) {
    End(grpc::Status::OK, OutcomeOf(sent), ResponseQueue::Rest::kSend);
  }
}

FinishReason GenerateCall::SendFinished(const SequenceEvent& event, FinishReason reason,
                                        TimePoint time) {
  SequenceState& sequence = sequences_[static_cast<size_t>(event.index)];
  const std::string rest = sequence.output.Finish();
  if (sequence.output.is_over())
    reason = FinishReason::kStop;  // the very last character completed it
  if (options_.text && !rest.empty()) {
    v1::GenerateResponse last;
    last.mutable_chunk()->set_index(event.index);
    last.mutable_chunk()->set_text(rest);
    queue_.Push(std::move(last), 0);
  }
  v1::GenerateResponse response;
  v1::Finished& finished = *response.mutable_finished();
  finished.set_index(event.index);
  finished.set_reason(ToProto(reason));
  if (sequence.output.is_over()) {
    finished.set_matched_string(sequence.output.matched_string());
  } else if (reason == FinishReason::kStop) {
    finished.set_matched_token_id(ToInt(event.stop_token));
  }
  const int32_t completion = sequence.output.num_tokens();
  finished.mutable_usage()->set_prompt_tokens(num_prompt_tokens_);
  finished.mutable_usage()->set_cached_tokens(num_cached_tokens_);
  finished.mutable_usage()->set_completion_tokens(completion);

  v1::Timings& timings = *finished.mutable_timings();
  const TimePoint started = started_.value_or(time);
  timings.set_queue_seconds(Seconds(started - times_.arrival));
  SequenceFinished observed{num_prompt_tokens_ + completion, completion, 0.0, -1.0};
  if (sequence.first_token) {
    timings.set_prefill_seconds(Seconds(*sequence.first_token - started));
    timings.set_time_to_first_token_seconds(Seconds(*sequence.first_token - times_.arrival));
    observed.decode_seconds = Seconds(sequence.last_token - *sequence.first_token);
    if (completion > 1) {
      observed.time_per_output_token_seconds = observed.decode_seconds / (completion - 1);
      timings.set_time_per_output_token_seconds(observed.time_per_output_token_seconds);
    }
  }
  timings.set_kv_bytes_read(event.num_kv_tokens_read * context_.model()->kv_bytes_per_token);
  queue_.Push(std::move(response), 0);
  context_.observer().OnSequenceFinished(observed);
  return reason;
}

}  // namespace longspan
