// What a decoder-only transformer is made of, whatever file said so (GGUF metadata or config.json).
// A plain value: architectures differ in these fields only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/ids.h"

namespace longspan {

enum class Architecture : uint8_t { kLlama, kMistral, kQwen2, kQwen3 };

enum class RopeStyle : uint8_t {
  kInterleaved,  // pairs (2i, 2i + 1), GGUF's llama rows
  kHalfSplit,    // pairs (i, i + rotary_dim / 2), Hugging Face
};

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn };

struct RopeConfig {
  RopeStyle style = RopeStyle::kHalfSplit;
  double theta = 10000.0;
  int32_t rotary_dim = 0;  // dimensions of a head that rotate, even
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  int32_t original_context_length = 0;  // llama3, yarn
  double low_freq_factor = 1.0;         // llama3
  double high_freq_factor = 4.0;        // llama3
  double beta_fast = 32.0;              // yarn
  double beta_slow = 1.0;               // yarn
  double attention_factor = 0.0;        // yarn; 0: 0.1 ln(factor) + 1
  std::vector<float> freq_factors;      // divisors per pair from a GGUF's rope_freqs; empty: none

  bool operator==(const RopeConfig&) const = default;
};

struct ModelConfig {
  std::string name;  // for people; the served name is a flag
  Architecture architecture = Architecture::kLlama;
  int32_t vocab_size = 0;
  int32_t context_length = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t num_layers = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // need not be hidden_size / num_q_heads
  float rms_norm_eps = 1e-5f;
  bool qkv_bias = false;
  bool o_bias = false;
  bool qk_norm = false;  // RMSNorm of each head before rotation
  bool tied_embeddings = false;
  int32_t sliding_window = 0;  // tokens seen, the own one included; 0: all
  RopeConfig rope;
  std::vector<TokenId> eos_token_ids;
  TokenId bos_token_id = kInvalidToken;
  std::string chat_template;  // jinja2 source; empty: none
  DType weight_dtype =
      DType::kFloat32;        // nominal, for GetModelInfo; quantised files say so by weight_format
  std::string weight_format;  // "Q4_1", "BF16", ...

  bool operator==(const ModelConfig&) const = default;
};

}  // namespace longspan
