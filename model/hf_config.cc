// Defaults of absent keys are those of the architecture's class in transformers; keys without which
// a model cannot be known are required.
#include "model/hf_config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "core/log.h"
#include "model/config_check.h"
#include "model/hf_rope.h"
#include "model/json_fields.h"

namespace longspan {
namespace {

using Json = nlohmann::json;

struct ArchitectureName {
  std::string_view name;
  Architecture architecture;
};
constexpr auto kArchitectures = std::to_array<ArchitectureName>({
    {"LlamaForCausalLM", Architecture::kLlama},
    {"MistralForCausalLM", Architecture::kMistral},
    {"Qwen2ForCausalLM", Architecture::kQwen2},
    {"Qwen3ForCausalLM", Architecture::kQwen3},
});

// Options of other models that change arithmetic: refused unless null, false, 0 (for counts) or the
// neutral number.
struct ForeignOption {
  const char* name;
  double neutral;
};
constexpr auto kForeignOptions = std::to_array<ForeignOption>({
    {"quantization_config", 0},
    {"compression_config", 0},
    {"mlp_bias", 0},
    {"rope_interleaved", 0},
    {"partial_rotary_factor", 1},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"attention_sinks", 0},
    {"attention_chunk_size", 0},
    {"attention_multiplier", 0},
    {"query_pre_attn_scalar", 0},
    {"attn_temperature_tuning", 0},
    {"clip_qkv", 0},
    {"logit_scale", 1},
    {"logits_scaling", 1},
    {"residual_multiplier", 1},
    {"embedding_multiplier", 1},
    {"scale_emb", 1},
    {"scale_depth", 1},
    {"use_qk_norm", 0},
    {"qk_layernorm", 0},
    {"no_rope_layers", 0},
    {"num_experts", 0},
    {"num_local_experts", 0},
    {"n_routed_experts", 0},
    {"add_cross_attention", 0},
    {"is_encoder_decoder", 0},
    {"dual_chunk_attention_config", 0},
});

bool IsNeutral(const Json& value, double neutral) {
  if (value.is_boolean()) return !value.get<bool>();
  return value.is_number() && value.get<double>() == neutral;
}

// Reads "key": 5, "key": [5, 6], null or nothing.
std::vector<TokenId> ReadIds(JsonFields& fields, const char* key) {
  const Json* value = fields.Find(key);
  if (value == nullptr) return {};
  std::vector<TokenId> ids;
  const Json items = value->is_array() ? *value : Json::array({*value});
  for (const Json& item : items) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() >= uint64_t{kMaxVocabSize}) {
      fields.Unwanted(key, fmt::format("token ids from 0 to {}", kMaxVocabSize - 1));
      return {};
    }
    const auto id = TokenId{static_cast<int32_t>(item.get<uint64_t>())};
    if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  }
  return ids;
}

class ConfigReader {
 public:
  ConfigReader(const Json& root, std::string file) : fields_(root, file), file_(std::move(file)) {}

  StatusOr<ModelConfig> Read() {
    ReadArchitecture();
    RefuseForeignOptions();
    ReadShape();
    ReadHeads();
    RETURN_IF_ERROR(fields_.status());
    ReadBiases();
    ReadWindow();
    ReadLayerTypes();
    ReadHfRope(fields_, file_, config_);
    ReadRest();
    RETURN_IF_ERROR(fields_.status());
    RETURN_IF_ERROR(CheckModelConfig(config_, file_));
    spdlog::debug("{}: keys without effect: {}", file_, fields_.UnusedKeys());
    return std::move(config_);
  }

 private:
  void ReadArchitecture() {
    constexpr const char* kWanted =
        "one of LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM";
    const Json* names = fields_.Find("architectures");
    if (names == nullptr || !names->is_array() || names->size() != 1 || !(*names)[0].is_string()) {
      return fields_.Unwanted("architectures", fmt::format("a list of {}", kWanted));
    }
    const auto& name = (*names)[0].get_ref<const std::string&>();
    const auto* known = std::ranges::find(kArchitectures, name, &ArchitectureName::name);
    if (known == kArchitectures.end()) {
      return fields_.Fail(fmt::format("architecture is \"{}\", wanted {}", Escaped(name), kWanted));
    }
    config_.architecture = known->architecture;
  }

  void RefuseForeignOptions() {
    for (const ForeignOption& option : kForeignOptions) {
      const Json* value = fields_.Find(option.name);
      if (value == nullptr || IsNeutral(*value, option.neutral)) continue;
      fields_.Fail(fmt::format("option {} ({}) is not supported", option.name, JsonShown(*value)));
    }
    for (const char* key : {"hidden_act", "hidden_activation"}) {
      if (fields_.String(key).value_or("silu") != "silu") fields_.Unwanted(key, "\"silu\"");
    }
  }

  void ReadShape() {
    ModelConfig& c = config_;
    c.vocab_size = fields_.NeedInt("vocab_size", 1, kMaxVocabSize);
    c.context_length = fields_.NeedInt("max_position_embeddings", 1, kMaxContextLength);
    c.hidden_size = fields_.NeedInt("hidden_size", 1, kMaxHiddenSize);
    c.intermediate_size = fields_.NeedInt("intermediate_size", 1, kMaxIntermediateSize);
    c.num_layers = fields_.NeedInt("num_hidden_layers", 1, kMaxLayers);
    c.rms_norm_eps = static_cast<float>(fields_.NeedFloat("rms_norm_eps"));
  }

  void ReadHeads() {
    ModelConfig& c = config_;
    c.num_q_heads = fields_.NeedInt("num_attention_heads", 1, kMaxHeads);
    c.num_kv_heads = c.architecture == Architecture::kLlama
                         ? fields_.Int("num_key_value_heads", 1, kMaxHeads).value_or(c.num_q_heads)
                         : fields_.NeedInt("num_key_value_heads", 1, kMaxHeads);
    if (!fields_.status().ok()) return;
    if (c.architecture == Architecture::kQwen3 || fields_.Find("head_dim") != nullptr) {
      c.head_dim = fields_.NeedInt("head_dim", 1, kMaxHiddenSize);
    } else if (c.hidden_size % c.num_q_heads == 0) {
      c.head_dim = c.hidden_size / c.num_q_heads;
    } else {
      fields_.Fail(
          fmt::format("hidden_size {} is not a multiple of {} heads and head_dim is missing",
                      c.hidden_size, c.num_q_heads));
    }
    c.qk_norm = c.architecture == Architecture::kQwen3;
  }

  void ReadBiases() {
    const bool stated = fields_.Bool("attention_bias").value_or(false);
    switch (config_.architecture) {
      case Architecture::kLlama:
      case Architecture::kQwen3:
        config_.qkv_bias = stated;
        config_.o_bias = stated;
        break;
      case Architecture::kMistral:
        if (stated) fields_.Unwanted("attention_bias", "false for MistralForCausalLM");
        break;
      case Architecture::kQwen2:
        config_.qkv_bias = true;  // the architecture's own, whatever attention_bias says
        break;
    }
  }

  void ReadWindow() {
    constexpr int32_t kClassDefault = 4096;  // of Mistral and Qwen when the key is absent
    const auto stated = fields_.Int("sliding_window", 1, kMaxContextLength);
    const int32_t window = stated.value_or(fields_.Has("sliding_window") ? 0 : kClassDefault);
    switch (config_.architecture) {
      case Architecture::kLlama:
        if (stated) fields_.Unwanted("sliding_window", "none for LlamaForCausalLM");
        break;
      case Architecture::kMistral:
        config_.sliding_window = window;
        break;
      case Architecture::kQwen2:
      case Architecture::kQwen3:
        if (fields_.Bool("use_sliding_window").value_or(false)) ReadWindowLayers(window);
        break;
    }
  }

  // Qwen: layers from max_window_layers on see the window only.
  void ReadWindowLayers(int32_t window) {
    constexpr int32_t kClassDefault = 28;
    const int32_t first = fields_.Int("max_window_layers", 0, INT32_MAX).value_or(kClassDefault);
    if (first == 0) {
      config_.sliding_window = window;
    } else if (first < config_.num_layers && window > 0) {
      fields_.Fail(
          fmt::format("max_window_layers is {} of {} layers: a mixture of windows is not "
                      "supported, wanted 0 or all",
                      first, config_.num_layers));
    }
  }

  // The newer list of kinds per layer; it must agree with one window for all.
  void ReadLayerTypes() {
    const Json* types = fields_.Find("layer_types");
    if (types == nullptr) return;
    const char* wanted = config_.sliding_window > 0 ? "sliding_attention" : "full_attention";
    if (!types->is_array() || types->size() != static_cast<size_t>(config_.num_layers)) {
      return fields_.Unwanted("layer_types", fmt::format("a list of {}", config_.num_layers));
    }
    for (const Json& type : *types) {
      if (type != wanted) {
        return fields_.Fail(fmt::format("layer_types has {}, wanted \"{}\" for every layer",
                                        JsonShown(type), wanted));
      }
    }
  }

  void ReadRest() {
    config_.tied_embeddings = fields_.Bool("tie_word_embeddings").value_or(false);
    config_.eos_token_ids = ReadIds(fields_, "eos_token_id");
    const std::vector<TokenId> bos = ReadIds(fields_, "bos_token_id");
    if (!bos.empty()) config_.bos_token_id = bos[0];
    config_.name = fields_.String("_name_or_path").value_or("");
    // Nominal: OpenModel replaces it by what the files hold.
    const auto dtype = fields_.String(fields_.Has("dtype") ? "dtype" : "torch_dtype");
    if (dtype == "bfloat16") config_.weight_dtype = DType::kBFloat16;
    if (dtype == "float16") config_.weight_dtype = DType::kFloat16;
  }

  JsonFields fields_;
  std::string file_;
  ModelConfig config_;
};

StatusOr<Json> ParseObject(std::string_view text, const std::string& file) {
  ASSIGN_OR_RETURN(Json root, ParseJson(text, file));
  if (!root.is_object()) {
    return InvalidArgument("{}: is {}, wanted an object", file, JsonShown(root));
  }
  return root;
}

}  // namespace

StatusOr<ModelConfig> ParseHfConfig(std::string_view text, const std::string& file) {
  ASSIGN_OR_RETURN(const Json root, ParseObject(text, file));
  return ConfigReader(root, file).Read();
}

Status ApplyGenerationConfig(std::string_view text, const std::string& file, ModelConfig& config) {
  ASSIGN_OR_RETURN(const Json root, ParseObject(text, file));
  JsonFields fields(root, file);
  std::vector<TokenId> ids = ReadIds(fields, "eos_token_id");
  RETURN_IF_ERROR(fields.status());
  if (!ids.empty()) config.eos_token_ids = std::move(ids);
  return CheckModelConfig(config, file);
}

Status ApplyTokenizerConfig(std::string_view text, const std::string& file, ModelConfig& config) {
  ASSIGN_OR_RETURN(const Json root, ParseObject(text, file));
  const auto found = root.find("chat_template");
  if (found == root.end() || found->is_null()) return absl::OkStatus();
  if (found->is_string()) {
    config.chat_template = found->get<std::string>();
    return absl::OkStatus();
  }
  if (!found->is_array()) {
    return InvalidArgument("{}: chat_template is {}, wanted a text or a list of named templates",
                           file, JsonShown(*found));
  }
  for (const Json& item : *found) {
    if (!item.is_object() || !item.contains("name") || item["name"] != "default") continue;
    const auto body = item.find("template");
    if (body == item.end() || !body->is_string()) {
      return InvalidArgument("{}: chat_template \"default\" has no text", file);
    }
    config.chat_template = body->get<std::string>();
  }
  return absl::OkStatus();
}

}  // namespace longspan
