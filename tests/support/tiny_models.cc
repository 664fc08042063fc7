// The configs by name, as changes to one toy config, and the same tensors written as safetensors or
// GGUF.
#include "tests/support/tiny_models.h"

#include "core/check.h"
#include "model/dummy_model.h"
#include "model/hf_config.h"
#include "model/weight_names.h"

namespace longspan::testing {
namespace {

using Json = nlohmann::json;

Json ToyConfig() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", 512},
          {"hidden_size", 64},
          {"intermediate_size", 128},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 16},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"rope_scaling", nullptr},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"tie_word_embeddings", false},
          {"torch_dtype", "float32"},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr}};
}

Json Changed(Json config, const Json& changes) {
  config.update(changes);
  return config;
}

Json SmallConfig(const Json& changes) {
  return Changed(
      Changed(ToyConfig(), {{"vocab_size", 256}, {"hidden_size", 48}, {"intermediate_size", 64}}),
      changes);
}

Json RopeConfigJson(const std::string& name) {
  if (name == "llama_rope_linear") {
    return SmallConfig({{"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}});
  }
  if (name == "llama_rope_yarn") {
    return SmallConfig(
        {{"max_position_embeddings", 8192},
         {"rope_scaling",
          {{"rope_type", "yarn"}, {"factor", 8.0}, {"original_max_position_embeddings", 1024}}}});
  }
  return SmallConfig({{"rope_scaling",
                       {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 64}}}});
}

Json QwenConfigJson(const std::string& name) {
  Json common = {{"rms_norm_eps", 1e-6},
                 {"rope_theta", 1000000.0},
                 {"use_sliding_window", false},
                 {"num_hidden_layers", 2}};
  if (name == "qwen2") {
    common.update({{"architectures", {"Qwen2ForCausalLM"}},
                   {"model_type", "qwen2"},
                   {"num_attention_heads", 3},
                   {"num_key_value_heads", 1},
                   {"tie_word_embeddings", true},
                   {"sliding_window", 8},
                   {"max_window_layers", 1}});
  } else {
    common.update({{"architectures", {"Qwen3ForCausalLM"}},
                   {"model_type", "qwen3"},
                   {"hidden_size", 32},
                   {"head_dim", 32},
                   {"sliding_window", nullptr},
                   {"max_window_layers", 2}});
  }
  Json config = SmallConfig(common);
  config.erase("mlp_bias");
  if (name == "qwen2") {
    config.erase("head_dim");
    config.erase("attention_bias");
  }
  return config;
}

// Hugging Face puts the pairs of a head at (i, i + d/2), GGUF's llama at (2i, 2i + 1).
std::string InterleavedRows(const std::string& data, int64_t num_heads, int64_t head_dim) {
  const auto row_bytes = static_cast<int64_t>(data.size()) / (num_heads * head_dim);
  std::string out;
  for (int64_t head = 0; head < num_heads; ++head) {
    for (int64_t row = 0; row < head_dim; ++row) {
      const int64_t from = head * head_dim + row / 2 + (row % 2) * (head_dim / 2);
      out += data.substr(static_cast<size_t>(from * row_bytes), static_cast<size_t>(row_bytes));
    }
  }
  return out;
}

void AddGgufKeys(const ModelConfig& c, const std::string& arch, GgufSpec& gguf) {
  gguf.String("general.architecture", arch).String("general.name", c.name);
  const auto u32 = [&](const std::string& key, int32_t value) {
    gguf.U32(arch + "." + key, static_cast<uint32_t>(value));
  };
  u32("block_count", c.num_layers);
  u32("context_length", c.context_length);
  u32("embedding_length", c.hidden_size);
  u32("feed_forward_length", c.intermediate_size);
  u32("attention.head_count", c.num_q_heads);
  u32("attention.head_count_kv", c.num_kv_heads);
  u32("attention.key_length", c.head_dim);
  u32("attention.value_length", c.head_dim);
  if (c.sliding_window > 0) u32("attention.sliding_window", c.sliding_window);
  gguf.F32(arch + ".attention.layer_norm_rms_epsilon", c.rms_norm_eps);
  gguf.F32(arch + ".rope.freq_base", static_cast<float>(c.rope.theta));
  u32("rope.dimension_count", c.rope.rotary_dim);
}

void AddGgufVocabulary(const ModelConfig& c, GgufSpec& gguf) {
  std::vector<std::string> tokens;
  for (int32_t id = 0; id < c.vocab_size; ++id) tokens.push_back("<" + std::to_string(id) + ">");
  gguf.String("tokenizer.ggml.model", "gpt2").String("tokenizer.ggml.pre", "gpt-2");
  gguf.Strings("tokenizer.ggml.tokens", tokens).Strings("tokenizer.ggml.merges", {});
  gguf.U32("tokenizer.ggml.eos_token_id", 2).U32("tokenizer.ggml.bos_token_id", 1);
  gguf.Bool("tokenizer.ggml.add_bos_token", false).String("tokenizer.chat_template", "{{ 1 }}");
}

std::string ShardName(int shard, int num_shards) {
  return fmt::format("model-{:05d}-of-{:05d}.safetensors", shard + 1, num_shards);
}

}  // namespace

Json TinyConfigJson(const std::string& name) {
  if (name == "toy_t") return ToyConfig();
  if (name == "toy_long") {
    return Changed(ToyConfig(), {{"hidden_size", 32},
                                 {"intermediate_size", 64},
                                 {"num_attention_heads", 2},
                                 {"num_key_value_heads", 1},
                                 {"max_position_embeddings", 131072},
                                 {"rope_theta", 1000000.0}});
  }
  if (name == "llama_untied") {
    return SmallConfig({{"num_attention_heads", 6}, {"num_key_value_heads", 2}});
  }
  if (name == "llama_tied") {
    Json config = SmallConfig(
        {{"tie_word_embeddings", true}, {"num_attention_heads", 3}, {"num_key_value_heads", 1}});
    config.erase("head_dim");
    return config;
  }
  if (name == "mistral_window") {
    return SmallConfig({{"architectures", {"MistralForCausalLM"}},
                        {"model_type", "mistral"},
                        {"sliding_window", 8}});
  }
  if (name.starts_with("llama_rope_")) return RopeConfigJson(name);
  CHECK(name == "qwen2" || name == "qwen3", "model {}", name);
  return QwenConfigJson(name);
}

ModelConfig TinyConfig(const std::string& name) {
  auto config = ParseHfConfig(TinyConfigJson(name).dump(), name);
  CHECK(config.ok(), "{}", StatusMessage(config.status()));
  return *std::move(config);
}

std::vector<SafetensorsSpec> TinyTensors(const ModelConfig& config, uint64_t seed) {
  std::vector<SafetensorsSpec> tensors;
  for (const WantedWeight& wanted : WantedWeights(config, WeightNaming::kHuggingFace)) {
    int64_t count = 1;
    for (const int64_t extent : wanted.shape) count *= extent;
    std::vector<float> values(static_cast<size_t>(count));
    FillHashedWeights(wanted.name, seed, 0, values);
    tensors.push_back({wanted.name, "F32", wanted.shape, FloatBytes(values)});
  }
  return tensors;
}

void WriteModelFolder(const TemporaryFolder& folder, const Json& config,
                      const std::vector<SafetensorsSpec>& tensors, int num_shards) {
  folder.Write("config.json", config.dump(1));
  if (num_shards == 1) {
    folder.Write("model.safetensors", BuildSafetensors(tensors));
    return;
  }
  Json weight_map = Json::object();
  const auto count = static_cast<int>(tensors.size());
  for (int shard = 0; shard < num_shards; ++shard) {
    const auto first = static_cast<size_t>(count * shard / num_shards);
    const auto last = static_cast<size_t>(count * (shard + 1) / num_shards);
    const auto part = std::span(tensors).subspan(first, last - first);
    const std::string name = ShardName(shard, num_shards);
    folder.Write(name, BuildSafetensors(part));
    for (const SafetensorsSpec& tensor : part) weight_map[tensor.name] = name;
  }
  folder.Write("model.safetensors.index.json", Json({{"weight_map", weight_map}}).dump(1));
}

void WriteTinyModel(const TemporaryFolder& folder, const std::string& name, int num_shards,
                    uint64_t seed) {
  WriteModelFolder(folder, TinyConfigJson(name), TinyTensors(TinyConfig(name), seed), num_shards);
}

GgufSpec TinyGguf(const ModelConfig& config, uint64_t seed) {
  GgufSpec gguf;
  const bool as_llama =
      config.architecture == Architecture::kLlama || config.architecture == Architecture::kMistral;
  const char* arch = as_llama                                      ? "llama"
                     : config.architecture == Architecture::kQwen2 ? "qwen2"
                                                                   : "qwen3";
  AddGgufKeys(config, arch, gguf);
  AddGgufVocabulary(config, gguf);
  const std::vector<WantedWeight> names = WantedWeights(config, WeightNaming::kGguf);
  const std::vector<SafetensorsSpec> tensors = TinyTensors(config, seed);
  for (size_t i = 0; i < names.size(); ++i) {
    GgufTensorSpec tensor{names[i].name, {}, 0, tensors[i].data, {}};
    tensor.dims.assign(names[i].shape.rbegin(), names[i].shape.rend());
    const WeightRole role = names[i].role;
    if (as_llama && (role == WeightRole::kQuery || role == WeightRole::kQueryBias)) {
      tensor.data = InterleavedRows(tensor.data, config.num_q_heads, config.head_dim);
    } else if (as_llama && (role == WeightRole::kKey || role == WeightRole::kKeyBias)) {
      tensor.data = InterleavedRows(tensor.data, config.num_kv_heads, config.head_dim);
    }
    gguf.Tensor(std::move(tensor));
  }
  return gguf;
}

}  // namespace longspan::testing
