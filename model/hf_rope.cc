// Kinds: default, linear, llama3 and yarn. Others (dynamic, longrope, mrope, ...) and keys of the
// scaling object that are not known are refused: each of them changes the angles.
#include "model/hf_rope.h"

#include <algorithm>
#include <array>

#include "core/log.h"
#include "model/config_check.h"

namespace longspan {
namespace {

constexpr auto kKnownKeys = std::to_array<std::string_view>(
    {"type", "rope_type", "rope_theta", "factor", "original_max_position_embeddings",
     "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor",
     "truncate", "finetuned", "partial_rotary_factor"});

// "type" is the older name of "rope_type"; files with both exist.
std::string ScalingKind(JsonFields& scaling) {
  const auto kind = scaling.String("rope_type");
  const auto old_kind = scaling.String("type");
  if (kind && old_kind && *kind != *old_kind) {
    scaling.Unwanted("type", fmt::format("\"{}\" as in rope_type", Escaped(*kind)));
  }
  if (kind) return *kind;
  return old_kind.value_or("default");
}

void ReadFactor(JsonFields& scaling, RopeConfig& rope) {
  rope.factor = scaling.NeedFloat("factor");
}

void ReadLlama3(JsonFields& scaling, RopeConfig& rope) {
  rope.scaling = RopeScaling::kLlama3;
  ReadFactor(scaling, rope);
  rope.low_freq_factor = scaling.NeedFloat("low_freq_factor");
  rope.high_freq_factor = scaling.NeedFloat("high_freq_factor");
  rope.original_context_length =
      scaling.NeedInt("original_max_position_embeddings", 1, kMaxContextLength);
}

void ReadYarn(JsonFields& scaling, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  rope.scaling = RopeScaling::kYarn;
  ReadFactor(scaling, rope);
  rope.beta_fast = scaling.Float("beta_fast").value_or(32.0);
  rope.beta_slow = scaling.Float("beta_slow").value_or(1.0);
  rope.attention_factor = scaling.Float("attention_factor").value_or(0.0);
  if (!scaling.Bool("truncate").value_or(true)) scaling.Unwanted("truncate", "true");
  const auto original = scaling.Int("original_max_position_embeddings", 1, kMaxContextLength);
  rope.original_context_length = original.value_or(config.context_length);
  if (!original || !scaling.status().ok()) return;
  const double reach = rope.factor * *original;
  if (reach > config.context_length && reach <= kMaxContextLength) {
    config.context_length = static_cast<int32_t>(reach);
  }
}

void ReadScaling(JsonFields& scaling, ModelConfig& config) {
  for (const auto& [key, value] : scaling.object().items()) {
    if (std::ranges::find(kKnownKeys, key) == kKnownKeys.end()) {
      return scaling.Fail(fmt::format("RoPE option {} is not supported", Escaped(key)));
    }
  }
  if (const auto part = scaling.Float("partial_rotary_factor"); part && *part != 1.0) {
    return scaling.Unwanted("partial_rotary_factor", "1");
  }
  const std::string kind = ScalingKind(scaling);
  if (kind == "linear") {
    config.rope.scaling = RopeScaling::kLinear;
    ReadFactor(scaling, config.rope);
  } else if (kind == "llama3") {
    ReadLlama3(scaling, config.rope);
  } else if (kind == "yarn") {
    ReadYarn(scaling, config);
  } else if (kind != "default") {
    scaling.Fail(fmt::format("RoPE scaling is \"{}\", wanted default, linear, llama3 or yarn",
                             Escaped(kind)));
  }
}

}  // namespace

void ReadHfRope(JsonFields& fields, const std::string& file, ModelConfig& config) {
  config.rope.style = RopeStyle::kHalfSplit;
  config.rope.rotary_dim = config.head_dim;
  const auto outer_theta = fields.Float("rope_theta");
  config.rope.theta = outer_theta.value_or(10000.0);
  const nlohmann::json* scaling = fields.Find("rope_scaling");
  const nlohmann::json* parameters = fields.Find("rope_parameters");
  if (scaling != nullptr && parameters != nullptr) {
    return fields.Fail("rope_scaling and rope_parameters are both given, wanted one of them");
  }
  const char* key = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  const nlohmann::json* object = parameters != nullptr ? parameters : scaling;
  if (object == nullptr) return;
  if (!object->is_object()) return fields.Unwanted(key, "an object");
  JsonFields inner(*object, file, key);
  ReadScaling(inner, config);
  if (const auto inner_theta = inner.Float("rope_theta")) {
    if (outer_theta && *outer_theta != *inner_theta) {
      inner.Unwanted("rope_theta", fmt::format("{} as outside of it", *outer_theta));
    }
    config.rope.theta = *inner_theta;
  }
  fields.Take(inner.status());
}

}  // namespace longspan
