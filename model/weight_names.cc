// The table itself: role, GGUF name, Hugging Face name; and the shape that a config gives each role
// (no shape: the model has no such tensor).
#include "model/weight_names.h"

#include <fmt/format.h>

#include <array>

namespace longspan {
namespace {

struct RoleNames {
  WeightRole role;
  const char* gguf;          // after "blk.N." for tensors of a layer
  const char* hugging_face;  // after "model.layers.N."
};

constexpr auto kLayerNames = std::to_array<RoleNames>({
    {WeightRole::kAttentionNorm, "attn_norm.weight", "input_layernorm.weight"},
    {WeightRole::kQuery, "attn_q.weight", "self_attn.q_proj.weight"},
    {WeightRole::kQueryBias, "attn_q.bias", "self_attn.q_proj.bias"},
    {WeightRole::kKey, "attn_k.weight", "self_attn.k_proj.weight"},
    {WeightRole::kKeyBias, "attn_k.bias", "self_attn.k_proj.bias"},
    {WeightRole::kValue, "attn_v.weight", "self_attn.v_proj.weight"},
    {WeightRole::kValueBias, "attn_v.bias", "self_attn.v_proj.bias"},
    {WeightRole::kQueryNorm, "attn_q_norm.weight", "self_attn.q_norm.weight"},
    {WeightRole::kKeyNorm, "attn_k_norm.weight", "self_attn.k_norm.weight"},
    {WeightRole::kAttentionOutput, "attn_output.weight", "self_attn.o_proj.weight"},
    {WeightRole::kAttentionOutputBias, "attn_output.bias", "self_attn.o_proj.bias"},
    {WeightRole::kMlpNorm, "ffn_norm.weight", "post_attention_layernorm.weight"},
    {WeightRole::kGate, "ffn_gate.weight", "mlp.gate_proj.weight"},
    {WeightRole::kUp, "ffn_up.weight", "mlp.up_proj.weight"},
    {WeightRole::kDown, "ffn_down.weight", "mlp.down_proj.weight"},
});

// Empty: a model of this config has no such tensor.
std::vector<int64_t> LayerShape(const ModelConfig& c, WeightRole role) {
  const int64_t hidden = c.hidden_size;
  const int64_t mlp = c.intermediate_size;
  const int64_t q_rows = int64_t{c.num_q_heads} * c.head_dim;
  const int64_t kv_rows = int64_t{c.num_kv_heads} * c.head_dim;
  switch (role) {
    case WeightRole::kQuery:
      return {q_rows, hidden};
    case WeightRole::kKey:
    case WeightRole::kValue:
      return {kv_rows, hidden};
    case WeightRole::kAttentionOutput:
      return {hidden, q_rows};
    case WeightRole::kQueryBias:
      return c.qkv_bias ? std::vector{q_rows} : std::vector<int64_t>{};
    case WeightRole::kKeyBias:
    case WeightRole::kValueBias:
      return c.qkv_bias ? std::vector{kv_rows} : std::vector<int64_t>{};
    case WeightRole::kAttentionOutputBias:
      return c.o_bias ? std::vector{hidden} : std::vector<int64_t>{};
    case WeightRole::kQueryNorm:
    case WeightRole::kKeyNorm:
      return c.qk_norm ? std::vector<int64_t>{c.head_dim} : std::vector<int64_t>{};
    case WeightRole::kGate:
    case WeightRole::kUp:
      return {mlp, hidden};
    case WeightRole::kDown:
      return {hidden, mlp};
    default:
      return {hidden};  // the norms
  }
}

}  // namespace

std::vector<WantedWeight> WantedWeights(const ModelConfig& config, WeightNaming naming) {
  const bool gguf = naming == WeightNaming::kGguf;
  const int64_t vocab = config.vocab_size;
  const int64_t hidden = config.hidden_size;
  std::vector<WantedWeight> wanted;
  wanted.push_back({WeightRole::kTokenEmbedding,
                    -1,
                    gguf ? "token_embd.weight" : "model.embed_tokens.weight",
                    {vocab, hidden}});
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    for (const RoleNames& names : kLayerNames) {
      std::vector<int64_t> shape = LayerShape(config, names.role);
      if (shape.empty()) continue;
      std::string name = gguf ? fmt::format("blk.{}.{}", layer, names.gguf)
                              : fmt::format("model.layers.{}.{}", layer, names.hugging_face);
      wanted.push_back({names.role, layer, std::move(name), std::move(shape)});
    }
  }
  wanted.push_back(
      {WeightRole::kOutputNorm, -1, gguf ? "output_norm.weight" : "model.norm.weight", {hidden}});
  if (!config.tied_embeddings) {
    wanted.push_back(
        {WeightRole::kOutput, -1, gguf ? "output.weight" : "lm_head.weight", {vocab, hidden}});
  }
  return wanted;
}

}  // namespace longspan
