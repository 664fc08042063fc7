// The CPU's ModelRunner. Launch does all the work of a step (release, admit, copy blocks, forward,
// sample); Collect only hands the result over. Log-probabilities of a prompt need the last row of
// the chunk before, which is kept per slot.
#include "model/decoder_runner.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "core/check.h"
#include "kernels/cpu/thread_pool.h"
#include "model/cpu_attention_backend.h"
#include "model/decoder.h"
#include "model/sampler.h"
#include "model/step_inputs.h"

namespace longspan {
namespace {

// Rows of logits that are computed, looked at and overwritten together.
int32_t LogitsPanelRows(int32_t vocab_size) {
  constexpr int64_t kPanelBytes = 16 << 20;
  const int64_t rows = kPanelBytes / (int64_t{vocab_size} * static_cast<int64_t>(sizeof(float)));
  return static_cast<int32_t>(std::clamp<int64_t>(rows, 8, 64));
}

class CpuRunner final : public DecoderRunner {
 public:
  CpuRunner(const ModelConfig& config, const DecoderOptions& options, KvPool& kv_pool,
            std::unique_ptr<ThreadPool> threads, std::unique_ptr<Decoder> decoder,
            std::unique_ptr<AttentionBackend> attention)
      : hidden_size_(config.hidden_size),
        vocab_size_(config.vocab_size),
        panel_rows_(LogitsPanelRows(config.vocab_size)),
        kv_pool_(kv_pool),
        threads_(std::move(threads)),
        decoder_(std::move(decoder)),
        attention_(std::move(attention)),
        sampler_(config.vocab_size, options.max_num_seqs, options.threads),
        inputs_({.max_num_seqs = options.max_num_seqs,
                 .max_num_batched_tokens = options.max_num_batched_tokens,
                 .max_model_len = options.max_model_len,
                 .block_size = kv_pool.shape().block_size,
                 .num_blocks = kv_pool.shape().num_blocks,
                 .vocab_size = config.vocab_size}),
        slots_(static_cast<size_t>(options.max_num_seqs)),
        kept_rows_(int64_t{options.max_num_seqs} * hidden_size_ *
                   static_cast<int64_t>(sizeof(float))),
        panel_hidden_(int64_t{panel_rows_} * hidden_size_ * static_cast<int64_t>(sizeof(float))),
        panel_logits_(int64_t{panel_rows_} * vocab_size_ * static_cast<int64_t>(sizeof(float))),
        outcomes_(static_cast<size_t>(panel_rows_)) {
    jobs_.reserve(static_cast<size_t>(options.max_num_batched_tokens + options.max_num_seqs));
    rows_.reserve(static_cast<size_t>(panel_rows_));
  }

  void Launch(const SchedulerOutput& output) override;
  Status Collect(StepResult& result) override;

  void set_times(DecoderTimes* times) override { decoder_->set_times(times); }
  int64_t weights_bytes() const override { return decoder_->weights_bytes(); }
  int64_t workspace_bytes() const override {
    return decoder_->workspace_bytes() + attention_->workspace_bytes() + sampler_.scratch_bytes() +
           kept_rows_.size_bytes() + panel_hidden_.size_bytes() + panel_logits_.size_bytes();
  }

 private:
  struct Slot {
    int32_t num_prompt_tokens = 0;
    int32_t kept_position = -1;  // of the token whose hidden row is kept for the next chunk
  };
  // One row of logits to be looked at; jobs follow SchedulerOutput::scheduled.
  struct Job {
    const float* hidden = nullptr;
    size_t scheduled = 0;
    int32_t slot = 0;
    int32_t position = 0;
    TokenId given = kInvalidToken;
  };

  void Admit(const SchedulerOutput& output);
  void PlanJobs(const SchedulerOutput& output, const float* hidden);
  void PlanSequence(const ScheduledSequence& s, size_t scheduled, const float* hidden);
  void RunJobs(const SchedulerOutput& output);
  void Record(const SchedulerOutput& output, const Job& job, RowOutcome& outcome);
  void KeepRows(const SchedulerOutput& output, const float* hidden);
  bool WantsPromptLogprobs(const ScheduledSequence& s) const {
    return sampler_.params(s.slot).num_prompt_logprobs >= 0;
  }
  Slot& slot(int32_t index) { return slots_[static_cast<size_t>(index)]; }
  float* kept_row(int32_t index) { return kept_rows_.floats() + int64_t{index} * hidden_size_; }

  const int64_t hidden_size_;
  const int64_t vocab_size_;
  const int32_t panel_rows_;
  KvPool& kv_pool_;
  const std::unique_ptr<ThreadPool> threads_;
  const std::unique_ptr<Decoder> decoder_;
  const std::unique_ptr<AttentionBackend> attention_;
  Sampler sampler_;
  StepInputs inputs_;
  std::vector<Slot> slots_;
  AlignedBuffer kept_rows_;  // [max_num_seqs, hidden], see Slot::kept_position
  AlignedBuffer panel_hidden_;
  AlignedBuffer panel_logits_;
  std::vector<Job> jobs_;
  std::vector<LogitsRow> rows_;
  std::vector<RowOutcome> outcomes_;
  StepResult result_;
};

void CpuRunner::Launch(const SchedulerOutput& output) {
  for (const int32_t index : output.released_slots) inputs_.Release(index);
  Admit(output);
  for (const BlockCopy& copy : output.copies) {
    kv_pool_.CopyBlock(copy.src, copy.dst, copy.num_tokens);
  }
  result_.Clear();
  result_.step = output.step;
  result_.num_tokens.assign(output.scheduled.size(), 0);
  const auto wants = [this](const ScheduledSequence& s) { return WantsPromptLogprobs(s); };
  const bool prompt_logprobs = std::any_of(output.scheduled.begin(), output.scheduled.end(), wants);
  result_.num_prompt_logprobs.assign(prompt_logprobs ? output.scheduled.size() : 0, 0);
  if (output.scheduled.empty()) return;

  inputs_.Fill(output);
  const std::span<const float> hidden = decoder_->Forward(inputs_.token_ids(), inputs_.positions(),
                                                          inputs_.attention_batch(), *attention_);
  PlanJobs(output, hidden.data());
  RunJobs(output);
  KeepRows(output, hidden.data());
  result_.kv_bytes_read = attention_->Cost().kv_bytes_read;
  result_.attention_seconds = attention_->Cost().seconds;
  result_.attention_splits = attention_->Cost().num_splits;
}

Status CpuRunner::Collect(StepResult& result) {
  std::swap(result, result_);
  return absl::OkStatus();
}

void CpuRunner::Admit(const SchedulerOutput& output) {
  std::span<const TokenId> history(output.history);
  for (const AdmittedSequence& sequence : output.admitted) {
    const size_t count = static_cast<size_t>(sequence.num_history_tokens);
    CHECK(count <= history.size(), "{} history tokens of {}", count, history.size());
    inputs_.Release(sequence.slot);
    sampler_.Admit(sequence, history.first(count));
    slot(sequence.slot) = {.num_prompt_tokens = sequence.num_prompt_tokens};
    history = history.subspan(count);
  }
}

void CpuRunner::PlanJobs(const SchedulerOutput& output, const float* hidden) {
  jobs_.clear();
  for (size_t i = 0; i < output.scheduled.size(); ++i) PlanSequence(output.scheduled[i], i, hidden);
}

// Prompt log-probabilities of a chunk's tokens come from the rows before them: the first one's row
// was kept by the chunk before.
void CpuRunner::PlanSequence(const ScheduledSequence& s, size_t scheduled, const float* hidden) {
  if (s.num_logits == 0) return;
  const TokenId* ids = inputs_.token_ids().data() + inputs_.first_token(s.slot);
  const float* rows = hidden + inputs_.first_logits_row(s.slot) * hidden_size_;
  Job job{.hidden = kept_row(s.slot), .scheduled = scheduled, .slot = s.slot};
  if (WantsPromptLogprobs(s)) {
    CHECK(s.num_logits == 1 || s.num_logits == s.num_scheduled_tokens, "{} rows of logits of {}",
          s.num_logits, s.num_scheduled_tokens);
    job.given = ids[0];
    if (s.num_computed_tokens > 0 && slot(s.slot).kept_position == s.num_computed_tokens - 1) {
      jobs_.push_back(job);
    }
    for (int32_t i = 0; i + 1 < s.num_logits; ++i) {
      job.hidden = rows + i * hidden_size_;
      job.given = ids[i + 1];
      jobs_.push_back(job);
    }
  }
  if (!s.samples) return;
  job.hidden = rows + (s.num_logits - 1) * hidden_size_;
  job.given = kInvalidToken;
  job.position = s.num_computed_tokens + s.num_scheduled_tokens - slot(s.slot).num_prompt_tokens;
  jobs_.push_back(job);
}

void CpuRunner::RunJobs(const SchedulerOutput& output) {
  for (size_t first = 0; first < jobs_.size(); first += static_cast<size_t>(panel_rows_)) {
    const size_t count = std::min(static_cast<size_t>(panel_rows_), jobs_.size() - first);
    rows_.clear();
    for (size_t i = 0; i < count; ++i) {
      const Job& job = jobs_[first + i];
      std::copy_n(job.hidden, hidden_size_,
                  panel_hidden_.floats() + static_cast<int64_t>(i) * hidden_size_);
      rows_.push_back({.logits = {panel_logits_.floats() + static_cast<int64_t>(i) * vocab_size_,
                                  static_cast<size_t>(vocab_size_)},
                       .slot = job.slot,
                       .position = job.position,
                       .given = job.given});
    }
    decoder_->Logits(panel_hidden_.floats(), static_cast<int64_t>(count), panel_logits_.floats());
    sampler_.Run(*threads_, rows_, std::span(outcomes_).first(count));
    for (size_t i = 0; i < count; ++i) Record(output, jobs_[first + i], outcomes_[i]);
  }
}

void CpuRunner::Record(const SchedulerOutput& output, const Job& job, RowOutcome& outcome) {
  const SeqId id = output.scheduled[job.scheduled].id;
  const bool failed = !result_.nonfinite.empty() && result_.nonfinite.back() == id;
  if (failed) return;
  if (!outcome.finite) {
    result_.nonfinite.push_back(id);
    return;
  }
  if (job.given != kInvalidToken) {
    ++result_.num_prompt_logprobs[job.scheduled];
    result_.prompt_logprobs.push_back(std::move(outcome.logprobs));
    return;
  }
  inputs_.SetLastSample(job.slot, outcome.token);
  result_.num_tokens[job.scheduled] = 1;
  result_.token_ids.push_back(outcome.token);
  if (sampler_.params(job.slot).num_logprobs >= 0) {
    result_.logprobs.push_back(std::move(outcome.logprobs));
  }
}

// The last row of a prompt's chunk predicts a token that only the next chunk brings.
void CpuRunner::KeepRows(const SchedulerOutput& output, const float* hidden) {
  for (const ScheduledSequence& s : output.scheduled) {
    if (!WantsPromptLogprobs(s) || s.num_logits == 0 || s.samples) continue;
    const int64_t row = inputs_.first_logits_row(s.slot) + s.num_logits - 1;
    std::copy_n(hidden + row * hidden_size_, hidden_size_, kept_row(s.slot));
    slot(s.slot).kept_position = s.num_computed_tokens + s.num_scheduled_tokens - 1;
  }
}

Status CheckOptions(const DecoderOptions& options) {
  for (const auto& [name, value] :
       {std::pair{"threads", options.threads}, std::pair{"max_num_seqs", options.max_num_seqs},
        std::pair{"max_num_batched_tokens", options.max_num_batched_tokens},
        std::pair{"max_model_len", options.max_model_len}}) {
    if (value < 1) return InvalidArgument("{}: {} (at least 1)", name, value);
  }
  if (options.matmul_precision == MatmulPrecision::kBFloat16 && !CpuHasBFloat16()) {
    return InvalidArgument("matmul_precision: this processor has no bfloat16 products");
  }
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<DecoderRunner>> MakeRunner(WeightSource& source,
                                                    const DecoderOptions& options, KvPool& pool) {
  const ModelConfig& config = source.config();
  // Where matrix products are in bfloat16, attention's products of weights and values are too.
  const auto precision = options.matmul_precision == MatmulPrecision::kBFloat16
                             ? CpuAttentionPrecision::kBFloat16
                             : CpuAttentionPrecision::kFloat32;
  auto threads = std::make_unique<ThreadPool>(options.threads);
  ASSIGN_OR_RETURN(
      std::unique_ptr<CpuAttentionBackend> attention,
      CpuAttentionBackend::Create(config,
                                  {.max_num_seqs = options.max_num_seqs,
                                   .max_num_batched_tokens = options.max_num_batched_tokens,
                                   .max_model_len = options.max_model_len,
                                   .num_splits = options.num_splits,
                                   .precision = precision},
                                  pool, *threads));
  ASSIGN_OR_RETURN(DecoderWeights weights, LoadWeights(source, options.matmul_precision,
                                                       options.check_weights, options.cancelled));
  ASSIGN_OR_RETURN(std::unique_ptr<Decoder> decoder,
                   Decoder::Create(config, std::move(weights),
                                   {.max_num_batched_tokens = options.max_num_batched_tokens,
                                    .max_logits_rows = LogitsPanelRows(config.vocab_size)},
                                   *threads));
  return std::unique_ptr<DecoderRunner>(new CpuRunner(config, options, pool, std::move(threads),
                                                      std::move(decoder), std::move(attention)));
}

}  // namespace

KvPoolShape KvPoolShapeOf(const ModelConfig& config, DType kv_dtype, int32_t block_size,
                          int32_t num_blocks) {
  return {.num_layers = config.num_layers,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .block_size = block_size,
          .num_blocks = num_blocks,
          .dtype = kv_dtype};
}

StatusOr<std::unique_ptr<DecoderRunner>> MakeCpuRunner(WeightSource& source,
                                                       const DecoderOptions& options,
                                                       KvPool& pool) {
  RETURN_IF_ERROR(CheckOptions(options));
  const KvPoolShape& shape = pool.shape();
  CHECK(shape.num_layers == source.config().num_layers &&
            shape.num_kv_heads == source.config().num_kv_heads &&
            shape.head_dim == source.config().head_dim,
        "KV pool of another model");
  try {
    return MakeRunner(source, options, pool);
  } catch (const std::bad_alloc&) {
    return MakeStatus(absl::StatusCode::kResourceExhausted,
                      "not enough memory for weights and workspace");
  }
}

}  // namespace longspan
