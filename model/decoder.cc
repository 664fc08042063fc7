// One forward pass over the rows of a step: embed, then per layer norm + QKV, rotation, attention,
// output and MLP; logits are a call of their own. Activations live in buffers of fixed size, and
// products run in panels of rows so that a panel stays in cache.
#include "model/decoder.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/check.h"
#include "core/clock.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/rms_norm.h"
#include "kernels/silu_mul.h"

namespace longspan {
namespace {

// Rows that pass through a layer's feed-forward part together: few enough that their activations
// stay in cache, enough to pay for unpacking the weights once per panel.
constexpr int64_t kPanelRows = 256;

constexpr int64_t kFloat = sizeof(float);

const float* OrNull(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

void CheckOk(KernelStatus status) {
  // Every shape was checked when the decoder was made.
  CHECK(status == KernelStatus::kOk, "{}", KernelStatusText(status));
}

// Adds its lifetime to one field of the times, if there are any.
class PartTimer {
 public:
  PartTimer(DecoderTimes* times, double DecoderTimes::*part) : times_(times), part_(part) {
    if (times_ != nullptr) start_ = SteadyClock().Now();
  }
  PartTimer(const PartTimer&) = delete;
  PartTimer& operator=(const PartTimer&) = delete;
  ~PartTimer() {
    if (times_ != nullptr) times_->*part_ += Seconds(SteadyClock().Now() - start_);
  }

 private:
  DecoderTimes* const times_;
  double DecoderTimes::*const part_;
  TimePoint start_{};
};

RopeFrequencyParams FrequencyParams(const RopeConfig& rope) {
  RopeFrequencyParams p;
  p.theta = rope.theta;
  p.rotary_dim = rope.rotary_dim;
  p.factor = rope.factor;
  p.original_context_length = rope.original_context_length;
  p.low_freq_factor = rope.low_freq_factor;
  p.high_freq_factor = rope.high_freq_factor;
  p.beta_fast = rope.beta_fast;
  p.beta_slow = rope.beta_slow;
  p.attention_factor = rope.attention_factor;
  p.freq_factors = rope.freq_factors;
  switch (rope.scaling) {
    case RopeScaling::kNone:
      p.rule = RopeRule::kPlain;
      break;
    case RopeScaling::kLinear:
      p.rule = RopeRule::kLinear;
      break;
    case RopeScaling::kLlama3:
      p.rule = RopeRule::kLlama3;
      break;
    case RopeScaling::kYarn:
      p.rule = RopeRule::kYarn;
      break;
  }
  return p;
}

}  // namespace

StatusOr<std::unique_ptr<Decoder>> Decoder::Create(const ModelConfig& config,
                                                   DecoderWeights weights,
                                                   const DecoderLimits& limits,
                                                   ThreadPool& threads) {
  RopeFrequencies frequencies;
  const KernelStatus status = MakeRopeFrequencies(FrequencyParams(config.rope), frequencies);
  if (status != KernelStatus::kOk || config.rope.rotary_dim > config.head_dim) {
    return InvalidArgument("rotary embedding: {} of {} dimensions, theta {}, factor {}: {}",
                           config.rope.rotary_dim, config.head_dim, config.rope.theta,
                           config.rope.factor, KernelStatusText(status));
  }
  return std::unique_ptr<Decoder>(
      new Decoder(config, std::move(weights), limits, threads, std::move(frequencies)));
}

Decoder::Decoder(const ModelConfig& config, DecoderWeights weights, const DecoderLimits& limits,
                 ThreadPool& threads, RopeFrequencies frequencies)
    : config_(config),
      weights_(std::move(weights)),
      weights_bytes_(weights_.SizeBytes()),
      threads_(threads),
      frequencies_(std::move(frequencies)),
      x_(limits.max_num_batched_tokens * hidden() * kFloat),
      qkv_(limits.max_num_batched_tokens * qkv_size() * kFloat),
      mixed_(limits.max_num_batched_tokens * q_size() * kFloat),
      cos_sin_(limits.max_num_batched_tokens * int64_t{config_.rope.rotary_dim} * kFloat),
      gated_(kPanelRows * config_.intermediate_size * kFloat),
      up_(std::all_of(weights_.layers.begin(), weights_.layers.end(),
                      [](const LayerWeights& w) { return w.gate_up_fused; })
              ? 0
              : kPanelRows * config_.intermediate_size * kFloat),
      scratch_(MatmulBytes(limits)) {}

int64_t Decoder::workspace_bytes() const {
  int64_t bytes = 0;
  for (const AlignedBuffer* buffer : {&x_, &qkv_, &mixed_, &cos_sin_, &gated_, &up_, &scratch_}) {
    bytes += buffer->size_bytes();
  }
  return bytes;
}

// The largest scratch that any call of RunMatmul needs.
int64_t Decoder::MatmulBytes(const DecoderLimits& limits) const {
  int64_t bytes = 0;
  const auto add = [&](std::span<const MatmulParams> products, int64_t max_rows) {
    bytes = std::max(bytes, MatmulWorkspaceBytes(products, max_rows, threads_.num_threads()));
  };
  const auto product = [](const PackedMatrix& w, const std::vector<float>* norm = nullptr) {
    return MatmulParams{.w = &w,
                        .x = nullptr,
                        .x_stride = w.cols(),
                        .y = nullptr,
                        .y_stride = w.rows(),
                        .norm_weight = norm != nullptr ? norm->data() : nullptr};
  };
  for (const LayerWeights& w : weights_.layers) {
    add(std::array{product(*w.q, &w.attention_norm), product(*w.k, &w.attention_norm),
                   product(*w.v, &w.attention_norm)},
        kPanelRows);
    add(std::array{product(*w.o)}, kPanelRows);
    MatmulParams gate = product(*w.gate, &w.mlp_norm);
    if (w.gate_up_fused) {
      gate.epilogue = MatmulEpilogue::kSiluMul;
      gate.w_up = w.up.get();
      add(std::array{gate}, kPanelRows);
    } else {
      add(std::array{gate, product(*w.up, &w.mlp_norm)}, kPanelRows);
    }
    add(std::array{product(*w.down)}, kPanelRows);
  }
  add(std::array{product(weights_.output(), &weights_.output_norm)}, limits.max_logits_rows);
  return bytes;
}

std::span<const float> Decoder::Forward(std::span<const TokenId> token_ids,
                                        std::span<const int32_t> positions,
                                        const AttentionBatch& batch, AttentionBackend& attention) {
  const int64_t num_tokens = static_cast<int64_t>(token_ids.size());
  {
    const PartTimer timer(times_, &DecoderTimes::embed);
    Embed(token_ids);
    FillRopeTableCpu(threads_, frequencies_, positions, cos_sin_.floats());
    attention.Plan(batch);
  }
  const LayerTensors tensors{.q = qkv_.floats(),
                             .k = qkv_.floats() + q_size(),
                             .v = qkv_.floats() + q_size() + kv_size(),
                             .o = mixed_.floats(),
                             .q_stride = qkv_size(),
                             .k_stride = qkv_size(),
                             .v_stride = qkv_size()};
  int64_t num_rows = num_tokens;
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
    ProjectQkv(w, num_tokens);
    Rotate(w, num_tokens);
    if (layer == config_.num_layers - 1) {
      // Of the last layer only the rows with logits go on; keys and values of all are stored.
      KeepLastRows(batch, qkv_.floats(), q_size(), qkv_size());
      num_rows = KeepLastRows(batch, x_.floats(), hidden(), hidden());
    }
    {
      const PartTimer timer(times_, &DecoderTimes::attention);
      attention.Run(layer, tensors);
    }
    FinishLayer(w, num_rows);
  }
  return {x_.floats(), static_cast<size_t>(num_rows * hidden())};
}

void Decoder::Logits(const float* hidden_rows, int64_t num_rows, float* logits) {
  const PartTimer timer(times_, &DecoderTimes::logits);
  const MatmulParams product{.w = &weights_.output(),
                             .x = hidden_rows,
                             .x_stride = hidden(),
                             .y = logits,
                             .y_stride = config_.vocab_size,
                             .norm_weight = weights_.output_norm.data(),
                             .norm_eps = config_.rms_norm_eps};
  RunMatmul({&product, 1}, num_rows);
}

void Decoder::Embed(std::span<const TokenId> token_ids) {
  const int64_t num_tokens = static_cast<int64_t>(token_ids.size());
  const auto embed = [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      weights_.embedding->ReadRow(ToInt(token_ids[static_cast<size_t>(i)]),
                                  x_.floats() + i * hidden());
    }
  };
  constexpr int64_t kWorthThreads = 16;
  if (num_tokens < kWorthThreads) return embed(0, num_tokens);
  threads_.Run([&](int thread) {
    const int64_t count = threads_.num_threads();
    embed(num_tokens * thread / count, num_tokens * (thread + 1) / count);
  });
}

void Decoder::ProjectQkv(const LayerWeights& w, int64_t num_rows) {
  const PartTimer timer(times_, &DecoderTimes::qkv);
  for (int64_t first = 0; first < num_rows; first += kPanelRows) {
    const auto product = [&](const PackedMatrix& matrix, const std::vector<float>& bias,
                             int64_t column) {
      return MatmulParams{.w = &matrix,
                          .x = x_.floats() + first * hidden(),
                          .x_stride = hidden(),
                          .y = qkv_.floats() + first * qkv_size() + column,
                          .y_stride = qkv_size(),
                          .bias = OrNull(bias),
                          .norm_weight = w.attention_norm.data(),
                          .norm_eps = config_.rms_norm_eps};
    };
    RunMatmul(std::array{product(*w.q, w.q_bias, 0), product(*w.k, w.k_bias, q_size()),
                         product(*w.v, w.v_bias, q_size() + kv_size())},
              std::min(kPanelRows, num_rows - first));
  }
}

// Norms per head where the model has them, then the rotation, in place.
void Decoder::Rotate(const LayerWeights& w, int64_t num_rows) {
  const PartTimer timer(times_, &DecoderTimes::rotate);
  const auto rotate = [&](float* rows, int32_t num_heads, const std::vector<float>& norm) {
    const int64_t head_dim = config_.head_dim;
    if (!norm.empty()) {
      CheckOk(RmsNormCpu(threads_, {.x = rows,
                                    .y = rows,
                                    .weight = norm.data(),
                                    .x_row_stride = qkv_size(),
                                    .x_head_stride = head_dim,
                                    .y_row_stride = qkv_size(),
                                    .y_head_stride = head_dim,
                                    .num_rows = num_rows,
                                    .num_heads = num_heads,
                                    .dim = config_.head_dim,
                                    .eps = config_.rms_norm_eps}));
    }
    CheckOk(RopeCpu(
        threads_, {.x = rows,
                   .token_stride = qkv_size(),
                   .head_stride = head_dim,
                   .num_tokens = num_rows,
                   .num_heads = num_heads,
                   .head_dim = config_.head_dim,
                   .rotary_dim = config_.rope.rotary_dim,
                   .pairs = config_.rope.style == RopeStyle::kInterleaved ? RopePairs::kInterleaved
                                                                          : RopePairs::kHalfSplit,
                   .cos_sin = cos_sin_.floats()}));
  };
  rotate(qkv_.floats(), config_.num_q_heads, w.q_norm);
  rotate(qkv_.floats() + q_size(), config_.num_kv_heads, w.k_norm);
}

// Moves each sequence's last rows, those of cu_seqlens_q_last, together at the front; rows only
// ever move forward, so in place. Returns their number.
int64_t Decoder::KeepLastRows(const AttentionBatch& batch, float* rows, int64_t row_size,
                              int64_t row_stride) const {
  for (size_t b = 0; b + 1 < batch.cu_seqlens_q.size(); ++b) {
    const int64_t to = batch.cu_seqlens_q_last[b];
    const int64_t count = batch.cu_seqlens_q_last[b + 1] - to;
    const int64_t from = batch.cu_seqlens_q[b + 1] - count;
    if (from == to) continue;
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(rows + (from + i) * row_stride, row_size, rows + (to + i) * row_stride);
    }
  }
  return batch.cu_seqlens_q_last.back();
}

void Decoder::FinishLayer(const LayerWeights& w, int64_t num_rows) {
  for (int64_t first = 0; first < num_rows; first += kPanelRows) {
    FinishPanel(w, first, std::min(kPanelRows, num_rows - first));
  }
}

// Attention's output projection and the feed-forward part, both added to the residual stream.
void Decoder::FinishPanel(const LayerWeights& w, int64_t first, int64_t num_rows) {
  float* x = x_.floats() + first * hidden();
  {
    const PartTimer timer(times_, &DecoderTimes::attention_output);
    RunMatmul(std::array{MatmulParams{.w = w.o.get(),
                                      .x = mixed_.floats() + first * q_size(),
                                      .x_stride = q_size(),
                                      .y = x,
                                      .y_stride = hidden(),
                                      .bias = OrNull(w.o_bias),
                                      .epilogue = MatmulEpilogue::kAdd}},
              num_rows);
  }
  GateUp(w, x, num_rows);
  const PartTimer timer(times_, &DecoderTimes::down);
  RunMatmul(std::array{MatmulParams{.w = w.down.get(),
                                    .x = gated_.floats(),
                                    .x_stride = config_.intermediate_size,
                                    .y = x,
                                    .y_stride = hidden(),
                                    .epilogue = MatmulEpilogue::kAdd}},
            num_rows);
}

// gated = silu(gate(norm(x))) * up(norm(x)), in one product where the formats allow.
void Decoder::GateUp(const LayerWeights& w, const float* x, int64_t num_rows) {
  const PartTimer timer(times_, &DecoderTimes::gate_up);
  const int64_t intermediate = config_.intermediate_size;
  MatmulParams gate{.w = w.gate.get(),
                    .x = x,
                    .x_stride = hidden(),
                    .y = gated_.floats(),
                    .y_stride = intermediate,
                    .norm_weight = w.mlp_norm.data(),
                    .norm_eps = config_.rms_norm_eps};
  if (w.gate_up_fused) {
    gate.epilogue = MatmulEpilogue::kSiluMul;
    gate.w_up = w.up.get();
    return RunMatmul(std::array{gate}, num_rows);
  }
  MatmulParams up = gate;
  up.w = w.up.get();
  up.y = up_.floats();
  RunMatmul(std::array{gate, up}, num_rows);
  CheckOk(SiluMulCpu(threads_, {.gate = gated_.floats(),
                                .up = up_.floats(),
                                .y = gated_.floats(),
                                .gate_stride = intermediate,
                                .up_stride = intermediate,
                                .y_stride = intermediate,
                                .num_rows = num_rows,
                                .dim = intermediate}));
}

void Decoder::RunMatmul(std::span<const MatmulParams> products, int64_t num_rows) {
  CheckOk(Matmul(threads_, products, num_rows, scratch_.bytes()));
}

}  // namespace longspan
