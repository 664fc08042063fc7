// The checks of config_check.h, in the order of ModelConfig's fields.
#include "model/config_check.h"

#include <cmath>

namespace longspan {
namespace {

struct Range {
  const char* what;
  int64_t value;
  int64_t min;
  int64_t max;
};

Status CheckRanges(const ModelConfig& c, const std::string& file) {
  const Range ranges[] = {
      {"vocabulary size", c.vocab_size, 1, kMaxVocabSize},
      {"context length", c.context_length, 1, kMaxContextLength},
      {"hidden size", c.hidden_size, 1, kMaxHiddenSize},
      {"intermediate size", c.intermediate_size, 1, kMaxIntermediateSize},
      {"number of layers", c.num_layers, 1, kMaxLayers},
      {"number of query heads", c.num_q_heads, 1, kMaxHeads},
      {"number of KV heads", c.num_kv_heads, 1, kMaxHeads},
      {"head size", c.head_dim, kMinHeadDim, kMaxHeadDim},
      {"sliding window", c.sliding_window, 0, kMaxContextLength},
      {"number of rotated dimensions", c.rope.rotary_dim, 2, c.head_dim},
  };
  for (const Range& range : ranges) {
    if (range.value < range.min || range.value > range.max) {
      return InvalidArgument("{}: {} is {}, wanted {} to {}", file, range.what, range.value,
                             range.min, range.max);
    }
  }
  return absl::OkStatus();
}

Status CheckHeads(const ModelConfig& c, const std::string& file) {
  if (c.num_q_heads % c.num_kv_heads != 0) {
    return InvalidArgument("{}: {} query heads cannot be shared by {} KV heads, wanted a multiple",
                           file, c.num_q_heads, c.num_kv_heads);
  }
  if (c.head_dim % 8 != 0) {
    return InvalidArgument("{}: head size is {}, wanted a multiple of 8", file, c.head_dim);
  }
  return absl::OkStatus();
}

bool Positive(double value) { return std::isfinite(value) && value > 0.0; }

Status CheckRope(const RopeConfig& rope, const std::string& file) {
  if (rope.rotary_dim % 2 != 0) {
    return InvalidArgument("{}: number of rotated dimensions is {}, wanted an even one", file,
                           rope.rotary_dim);
  }
  if (!Positive(rope.theta)) {
    return InvalidArgument("{}: RoPE base is {}, wanted a positive number", file, rope.theta);
  }
  if (rope.scaling != RopeScaling::kNone && !Positive(rope.factor)) {
    return InvalidArgument("{}: RoPE scaling factor is {}, wanted a positive number", file,
                           rope.factor);
  }
  const bool needs_original =
      rope.scaling == RopeScaling::kLlama3 || rope.scaling == RopeScaling::kYarn;
  if (needs_original && rope.original_context_length < 1) {
    return InvalidArgument("{}: original context length of RoPE scaling is {}, wanted at least 1",
                           file, rope.original_context_length);
  }
  if (rope.scaling == RopeScaling::kLlama3 &&
      !(Positive(rope.low_freq_factor) && Positive(rope.high_freq_factor) &&
        rope.low_freq_factor < rope.high_freq_factor)) {
    return InvalidArgument("{}: llama3 frequency factors are {} and {}, wanted 0 < low < high",
                           file, rope.low_freq_factor, rope.high_freq_factor);
  }
  if (rope.scaling == RopeScaling::kYarn &&
      !(Positive(rope.beta_fast) && Positive(rope.beta_slow) && rope.beta_slow < rope.beta_fast &&
        std::isfinite(rope.attention_factor) && rope.attention_factor >= 0.0)) {
    return InvalidArgument(
        "{}: yarn has beta_fast {}, beta_slow {}, attention factor {}, wanted 0 < slow < fast and "
        "a "
        "finite factor",
        file, rope.beta_fast, rope.beta_slow, rope.attention_factor);
  }
  if (!rope.freq_factors.empty() &&
      rope.freq_factors.size() != static_cast<size_t>(rope.rotary_dim / 2)) {
    return InvalidArgument("{}: has {} RoPE frequency factors, wanted {}", file,
                           rope.freq_factors.size(), rope.rotary_dim / 2);
  }
  for (const float factor : rope.freq_factors) {
    if (!Positive(factor)) {
      return InvalidArgument("{}: a RoPE frequency factor is {}, wanted a positive number", file,
                             factor);
    }
  }
  return absl::OkStatus();
}

Status CheckTokens(const ModelConfig& c, const std::string& file) {
  for (const TokenId id : c.eos_token_ids) {
    if (ToInt(id) < 0 || ToInt(id) >= c.vocab_size) {
      return InvalidArgument("{}: end-of-text id is {}, wanted 0 to {}", file, ToInt(id),
                             c.vocab_size - 1);
    }
  }
  if (c.bos_token_id != kInvalidToken &&
      (ToInt(c.bos_token_id) < 0 || ToInt(c.bos_token_id) >= c.vocab_size)) {
    return InvalidArgument("{}: begin-of-text id is {}, wanted 0 to {}", file,
                           ToInt(c.bos_token_id), c.vocab_size - 1);
  }
  return absl::OkStatus();
}

}  // namespace

Status CheckModelConfig(const ModelConfig& config, const std::string& file) {
  RETURN_IF_ERROR(CheckRanges(config, file));
  RETURN_IF_ERROR(CheckHeads(config, file));
  if (!Positive(config.rms_norm_eps)) {
    return InvalidArgument("{}: RMSNorm epsilon is {}, wanted a positive number", file,
                           config.rms_norm_eps);
  }
  RETURN_IF_ERROR(CheckRope(config.rope, file));
  return CheckTokens(config, file);
}

}  // namespace longspan
