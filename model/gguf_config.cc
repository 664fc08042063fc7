// Keys are "ARCHITECTURE.name" for hyperparameters, "tokenizer.*" for the vocabulary and
// "general.*" for people; names and defaults are those of the GGUF specification and of llama.cpp's
// writers.
#include "model/gguf_config.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/log.h"
#include "model/config_check.h"
#include "model/gguf_fields.h"

namespace longspan {
namespace {

// Below "ARCHITECTURE.attention." and "ARCHITECTURE.rope." every key changes arithmetic: what is
// not listed here is refused.
constexpr auto kKnownAttentionAndRopeKeys = std::to_array<std::string_view>({
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.causal",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
});

// Other hyperparameters that change arithmetic, with the one value that leaves it alone.
struct NeutralKey {
  std::string_view name;
  double neutral;
};
constexpr auto kNeutralKeys = std::to_array<NeutralKey>({
    {"expert_count", 0},
    {"expert_used_count", 0},
    {"expert_shared_count", 0},
    {"logit_scale", 1},
    {"residual_scale", 1},
    {"embedding_scale", 1},
    {"pooling_type", 0},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"nextn_predict_layers", 0},
    {"leading_dense_block_count", 0},
});

// Reads one file's config; prefix_ is the architecture's.
class ConfigReader {
 public:
  explicit ConfigReader(const GgufFile& gguf) : gguf_(gguf), fields_(gguf) {}

  StatusOr<ModelConfig> Read() {
    ReadGeneral();
    RETURN_IF_ERROR(fields_.status());
    RefuseOtherArithmetic();
    ReadShape();
    ReadRope();
    ReadTokens();
    RETURN_IF_ERROR(fields_.status());
    ReadTensorPresence();
    RETURN_IF_ERROR(CheckModelConfig(config_, gguf_.file().path()));
    return std::move(config_);
  }

 private:
  std::string Key(std::string_view name) const { return fmt::format("{}.{}", prefix_, name); }
  bool HasTensor(const std::string& name) const { return gguf_.FindTensor(name) != nullptr; }

  void ReadGeneral() {
    if (const auto type = fields_.String("general.type"); type && *type != "model") {
      fields_.Fail(fmt::format("general.type is \"{}\", wanted \"model\"", Escaped(*type)));
    }
    if (const auto splits = fields_.Int("split.count", 0, 65535); splits && *splits > 1) {
      fields_.Fail(fmt::format("split.count is {}, wanted a model in one file", *splits));
    }
    const auto version = fields_.Int("general.quantization_version", 0, 65535);
    if (version && *version != 2) {
      fields_.Fail(fmt::format("general.quantization_version is {}, wanted 2", *version));
    }
    config_.name = fields_.String("general.name").value_or("");
    prefix_ = fields_.NeedString("general.architecture");
    if (prefix_ == "llama") {
      config_.architecture = Architecture::kLlama;
    } else if (prefix_ == "qwen2") {
      config_.architecture = Architecture::kQwen2;
    } else if (prefix_ == "qwen3") {
      config_.architecture = Architecture::kQwen3;
    } else {
      fields_.Fail(fmt::format("general.architecture is \"{}\", wanted llama, qwen2 or qwen3",
                               Escaped(prefix_)));
    }
  }

  void RefuseOtherArithmetic() {
    for (const auto& [key, value] : gguf_.metadata()) {
      if (!key.starts_with(prefix_ + ".")) continue;
      const std::string name = key.substr(prefix_.size() + 1);
      const bool strict = name.starts_with("attention.") || name.starts_with("rope.");
      if (strict &&
          std::ranges::find(kKnownAttentionAndRopeKeys, name) == kKnownAttentionAndRopeKeys.end()) {
        return fields_.Fail(fmt::format("key {} is an option that is not supported", Escaped(key)));
      }
      const auto* neutral = std::ranges::find(kNeutralKeys, name, &NeutralKey::name);
      if (neutral == kNeutralKeys.end()) continue;
      const auto found = fields_.Float(key);
      if (found && *found != neutral->neutral) {
        return fields_.Fail(fmt::format("key {} is {}, wanted {} (the option is not supported)",
                                        Escaped(key), *found, neutral->neutral));
      }
    }
    if (!fields_.Bool(Key("attention.causal")).value_or(true)) {
      fields_.Fail(fmt::format("key {} is false, wanted true", Key("attention.causal")));
    }
  }

  void ReadShape() {
    ModelConfig& c = config_;
    c.num_layers = fields_.NeedInt(Key("block_count"), 1, kMaxLayers);
    c.context_length = fields_.NeedInt(Key("context_length"), 1, kMaxContextLength);
    c.hidden_size = fields_.NeedInt(Key("embedding_length"), 1, kMaxHiddenSize);
    c.intermediate_size = fields_.NeedInt(Key("feed_forward_length"), 1, kMaxIntermediateSize);
    c.num_q_heads = fields_.NeedInt(Key("attention.head_count"), 1, kMaxHeads);
    c.num_kv_heads =
        fields_.Int(Key("attention.head_count_kv"), 1, kMaxHeads).value_or(c.num_q_heads);
    c.rms_norm_eps = static_cast<float>(fields_.NeedFloat(Key("attention.layer_norm_rms_epsilon")));
    c.sliding_window =
        fields_.Int(Key("attention.sliding_window"), 0, kMaxContextLength).value_or(0);
    ReadHeadSize();
    ReadVocabularySize();
  }

  void ReadHeadSize() {
    const auto key_length = fields_.Int(Key("attention.key_length"), 1, kMaxHiddenSize);
    const auto value_length = fields_.Int(Key("attention.value_length"), 1, kMaxHiddenSize);
    if (!fields_.status().ok()) return;
    if (!key_length && config_.hidden_size % config_.num_q_heads != 0) {
      return fields_.Fail(fmt::format("{} is {}, not a multiple of {} heads, and {} is missing",
                                      Key("embedding_length"), config_.hidden_size,
                                      config_.num_q_heads, Key("attention.key_length")));
    }
    config_.head_dim = key_length.value_or(config_.hidden_size / config_.num_q_heads);
    if (value_length.value_or(config_.head_dim) != config_.head_dim) {
      fields_.Fail(fmt::format("key {} is {}, wanted {} as for keys", Key("attention.value_length"),
                               *value_length, config_.head_dim));
    }
  }

  // The embedding's rows decide; the checks of shapes and of the vocabulary hold the others to it.
  void ReadVocabularySize() {
    const auto stated = fields_.Int(Key("vocab_size"), 1, kMaxVocabSize);
    const GgufTensor* embedding = gguf_.FindTensor("token_embd.weight");
    if (embedding == nullptr || embedding->shape.size() != 2) {
      return fields_.Fail("tensor token_embd.weight with two dimensions is missing");
    }
    const int64_t rows = embedding->shape[0];
    if (rows > kMaxVocabSize || rows != stated.value_or(static_cast<int32_t>(rows))) {
      return fields_.Fail(fmt::format("tensor token_embd.weight has {} rows, wanted {}", rows,
                                      stated.value_or(kMaxVocabSize)));
    }
    config_.vocab_size = static_cast<int32_t>(rows);
  }

  void ReadRope() {
    RopeConfig& rope = config_.rope;
    // Writers store llama's q and k rows as adjacent rotation pairs; the others as Hugging Face
    // does.
    rope.style = config_.architecture == Architecture::kLlama ? RopeStyle::kInterleaved
                                                              : RopeStyle::kHalfSplit;
    rope.theta = fields_.Float(Key("rope.freq_base")).value_or(10000.0);
    rope.rotary_dim =
        fields_.Int(Key("rope.dimension_count"), 2, kMaxHiddenSize).value_or(config_.head_dim);
    const std::string type = fields_.String(Key("rope.scaling.type")).value_or("");
    const auto old_linear = fields_.Float(Key("rope.scale_linear"));
    const double factor =
        fields_.Float(Key("rope.scaling.factor")).value_or(old_linear.value_or(1.0));
    if (type == "yarn") {
      rope.scaling = RopeScaling::kYarn;
      rope.factor = factor;
      ReadYarn(rope);
    } else if (type == "linear" || (type.empty() && factor != 1.0)) {
      rope.scaling = RopeScaling::kLinear;
      rope.factor = factor;
    } else if (!type.empty() && type != "none") {
      fields_.Fail(fmt::format("key {} is \"{}\", wanted none, linear or yarn",
                               Key("rope.scaling.type"), Escaped(type)));
    }
  }

  void ReadYarn(RopeConfig& rope) {
    rope.original_context_length =
        fields_.Int(Key("rope.scaling.original_context_length"), 1, kMaxContextLength)
            .value_or(config_.context_length);
    rope.beta_fast = fields_.Float(Key("rope.scaling.yarn_beta_fast")).value_or(32.0);
    rope.beta_slow = fields_.Float(Key("rope.scaling.yarn_beta_slow")).value_or(1.0);
    for (const char* name : {"rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"}) {
      if (const auto found = fields_.Float(Key(name)); found && *found != 1.0) {
        fields_.Fail(fmt::format("key {} is {}, wanted 1", Key(name), *found));
      }
    }
    // A multiplier of the usual magnitude there, a replacement of it in RopeConfig.
    const double multiplier = fields_.Float(Key("rope.scaling.attn_factor")).value_or(1.0);
    if (multiplier != 1.0 && rope.factor > 0.0) {
      rope.attention_factor = multiplier * (0.1 * std::log(rope.factor) + 1.0);
    }
  }

  void ReadTokens() {
    constexpr int64_t kMaxId = kMaxVocabSize;
    for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
      const auto id = fields_.Int(key, 0, kMaxId);
      if (id &&
          std::ranges::find(config_.eos_token_ids, TokenId{*id}) == config_.eos_token_ids.end()) {
        config_.eos_token_ids.push_back(TokenId{*id});
      }
    }
    if (const auto id = fields_.Int("tokenizer.ggml.bos_token_id", 0, kMaxId)) {
      config_.bos_token_id = TokenId{*id};
    }
    config_.chat_template = fields_.String("tokenizer.chat_template").value_or("");
  }

  // Biases of the first layer decide; the check of all tensors then wants them in every layer.
  void ReadTensorPresence() {
    config_.tied_embeddings = !HasTensor("output.weight");
    config_.qkv_bias =
        config_.architecture == Architecture::kQwen2 || HasTensor("blk.0.attn_q.bias");
    config_.o_bias = HasTensor("blk.0.attn_output.bias");
    config_.qk_norm = config_.architecture == Architecture::kQwen3;
  }

  const GgufFile& gguf_;
  GgufFields fields_;
  std::string prefix_;
  ModelConfig config_;
};

}  // namespace

StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& gguf) { return ConfigReader(gguf).Read(); }

StatusOr<VocabularyData> ReadGgufVocabulary(const GgufFile& gguf, const ModelConfig& config) {
  GgufFields fields(gguf);
  VocabularyData data;
  const auto vocab = static_cast<int64_t>(config.vocab_size);
  const GgufArray* tokens = fields.Array("tokenizer.ggml.tokens", GgufType::kString);
  const GgufArray* types = fields.Array("tokenizer.ggml.token_type", GgufType::kInt32);
  const GgufArray* scores = fields.Array("tokenizer.ggml.scores", GgufType::kFloat32);
  const GgufArray* merges = fields.Array("tokenizer.ggml.merges", GgufType::kString);
  RETURN_IF_ERROR(fields.status());
  if (tokens == nullptr) return data;
  for (const auto& [key, array] :
       {std::pair("tokens", tokens), std::pair("token_type", types), std::pair("scores", scores)}) {
    if (array != nullptr && array->count != vocab) {
      fields.Fail(
          fmt::format("key tokenizer.ggml.{} has {} entries, wanted {} as the embedding has "
                      "rows",
                      key, array->count, vocab));
    }
  }
  data.model = fields.NeedString("tokenizer.ggml.model");
  data.pre_tokenizer = fields.String("tokenizer.ggml.pre").value_or("");
  data.bos_id = fields.Int("tokenizer.ggml.bos_token_id", 0, vocab - 1).value_or(-1);
  data.eos_id = fields.Int("tokenizer.ggml.eos_token_id", 0, vocab - 1).value_or(-1);
  data.unknown_id = fields.Int("tokenizer.ggml.unknown_token_id", 0, vocab - 1).value_or(-1);
  // Writers leave the flag out where the tokenizer's kind implies it.
  const bool adds_bos = data.model == "llama" || data.pre_tokenizer == "llama-bpe";
  data.add_bos = fields.Bool("tokenizer.ggml.add_bos_token").value_or(adds_bos);
  data.add_eos = fields.Bool("tokenizer.ggml.add_eos_token").value_or(false);
  RETURN_IF_ERROR(fields.status());
  data.tokens = tokens->strings;
  if (types != nullptr) data.token_types.assign(types->integers.begin(), types->integers.end());
  if (merges != nullptr) data.merges = merges->strings;
  return data;
}

}  // namespace longspan
