// config.json of the supported architectures becomes the right ModelConfig, and whatever would
// change the arithmetic without being implemented is refused by name.
#include "model/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/tiny_models.h"

namespace longspan {
namespace {

using ::longspan::testing::TinyConfig;
using ::longspan::testing::TinyConfigJson;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

Json With(const std::string& model, const Json& changes) {
  Json config = TinyConfigJson(model);
  config.update(changes);
  return config;
}

StatusOr<ModelConfig> Parsed(const Json& config) { return ParseHfConfig(config.dump(), "c.json"); }

std::string Refusal(const Json& config) {
  const auto parsed = Parsed(config);
  return parsed.ok() ? "" : StatusMessage(parsed.status());
}

TEST(HfConfig, ReadsLlama) {
  const ModelConfig c = TinyConfig("toy_t");
  EXPECT_EQ(c.architecture, Architecture::kLlama);
  EXPECT_EQ(c.vocab_size, 512);
  EXPECT_EQ(c.context_length, 256);
  EXPECT_EQ(c.hidden_size, 64);
  EXPECT_EQ(c.intermediate_size, 128);
  EXPECT_EQ(c.num_layers, 2);
  EXPECT_EQ(c.num_q_heads, 4);
  EXPECT_EQ(c.num_kv_heads, 2);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_FLOAT_EQ(c.rms_norm_eps, 1e-5f);
  EXPECT_FALSE(c.tied_embeddings || c.qkv_bias || c.o_bias || c.qk_norm);
  EXPECT_EQ(c.sliding_window, 0);
  EXPECT_EQ(c.rope.style, RopeStyle::kHalfSplit);
  EXPECT_EQ(c.rope.rotary_dim, 16);
  EXPECT_EQ(c.rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(c.bos_token_id, kInvalidToken);
}

TEST(HfConfig, ReadsTheOtherArchitectures) {
  EXPECT_EQ(TinyConfig("mistral_window").sliding_window, 8);
  const ModelConfig qwen2 = TinyConfig("qwen2");
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.o_bias && !qwen2.qk_norm && qwen2.tied_embeddings);
  EXPECT_EQ(qwen2.sliding_window, 0);
  EXPECT_EQ(qwen2.head_dim, 16);
  const ModelConfig qwen3 = TinyConfig("qwen3");
  EXPECT_TRUE(qwen3.qk_norm && !qwen3.qkv_bias);
  EXPECT_EQ(qwen3.head_dim, 32);
}

TEST(HfConfig, MistralsWindowMayBeNullAndDefaultsWhenAbsent) {
  EXPECT_EQ(Parsed(With("mistral_window", {{"sliding_window", nullptr}}))->sliding_window, 0);
  Json absent = TinyConfigJson("mistral_window");
  absent.erase("sliding_window");
  EXPECT_EQ(Parsed(absent)->sliding_window, 4096);
}

TEST(HfConfig, QwensWindowIsForAllLayersOrNone) {
  const Json on = {{"use_sliding_window", true}, {"sliding_window", 8}};
  const auto with_layers = [&](int first) {
    Json config = With("qwen2", on);
    config["max_window_layers"] = first;
    return config;
  };
  EXPECT_EQ(Parsed(with_layers(0))->sliding_window, 8);
  EXPECT_EQ(Parsed(with_layers(2))->sliding_window, 0);
  EXPECT_THAT(Refusal(with_layers(1)), HasSubstr("max_window_layers is 1 of 2 layers"));
}

TEST(HfConfig, LayerTypesMustAgreeWithOneWindow) {
  const auto with = [](const char* model, const Json& types) {
    return With(model, {{"layer_types", types}});
  };
  EXPECT_EQ(Refusal(with("qwen3", {"full_attention", "full_attention"})), "");
  EXPECT_EQ(Refusal(with("mistral_window", {"sliding_attention", "sliding_attention"})), "");
  EXPECT_THAT(Refusal(with("qwen3", {"full_attention", "sliding_attention"})),
              HasSubstr("layer_types has \"sliding_attention\""));
  EXPECT_THAT(Refusal(with("qwen3", {"full_attention"})), HasSubstr("layer_types is a list of 1"));
}

TEST(HfConfig, ReadsEveryRopeScalingInBothSpellings) {
  const RopeConfig linear = TinyConfig("llama_rope_linear").rope;
  EXPECT_EQ(linear.scaling, RopeScaling::kLinear);
  EXPECT_EQ(linear.factor, 4.0);
  const RopeConfig llama3 = TinyConfig("llama_rope_llama3").rope;
  EXPECT_EQ(llama3.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(llama3.original_context_length, 64);
  EXPECT_EQ(llama3.low_freq_factor, 1.0);
  EXPECT_EQ(llama3.high_freq_factor, 4.0);
  const RopeConfig yarn = TinyConfig("llama_rope_yarn").rope;
  EXPECT_EQ(yarn.scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn.factor, 8.0);
  EXPECT_EQ(yarn.attention_factor, 0.0);

  Json newer = TinyConfigJson("toy_t");
  newer.erase("rope_theta");
  newer.erase("rope_scaling");
  newer["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 5e5}};
  const auto parsed = Parsed(newer);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->rope.theta, 5e5);
  EXPECT_EQ(parsed->rope.factor, 2.0);
}

TEST(HfConfig, YarnExtendsTheContextToWhatItsFactorReaches) {
  const Json scaling = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 256}};
  EXPECT_EQ(Parsed(With("toy_t", {{"rope_scaling", scaling}}))->context_length, 1024);
}

TEST(HfConfig, RefusesOtherRopeScalingsByName) {
  const auto refusal = [](const Json& scaling) {
    return Refusal(With("toy_t", {{"rope_scaling", scaling}}));
  };
  for (const char* kind : {"dynamic", "longrope", "su", "mrope", "ntk"}) {
    EXPECT_THAT(refusal({{"rope_type", kind}, {"factor", 2.0}}), HasSubstr(kind));
  }
  EXPECT_THAT(refusal({{"rope_type", "linear"}}), HasSubstr("rope_scaling.factor is missing"));
  EXPECT_THAT(refusal({{"rope_type", "linear"}, {"factor", 0.0}}), HasSubstr("factor is 0"));
  EXPECT_THAT(refusal({{"rope_type", "yarn"}, {"factor", 2.0}, {"mscale", 1.0}}),
              HasSubstr("RoPE option mscale"));
  EXPECT_THAT(refusal({{"rope_type", "yarn"}, {"factor", 2.0}, {"truncate", false}}),
              HasSubstr("truncate"));
  EXPECT_THAT(refusal({{"rope_type", "linear"}, {"type", "yarn"}, {"factor", 2.0}}),
              HasSubstr("rope_scaling.type"));
  EXPECT_THAT(refusal("linear"), HasSubstr("rope_scaling is \"linear\", wanted an object"));
}

TEST(HfConfig, RefusesOptionsThatChangeArithmeticByName) {
  const Json options[] = {{{"quantization_config", {{"quant_method", "gptq"}}}},
                          {{"mlp_bias", true}},
                          {{"attn_logit_softcapping", 30.0}},
                          {{"final_logit_softcapping", 30.0}},
                          {{"partial_rotary_factor", 0.5}},
                          {{"rope_interleaved", true}},
                          {{"num_local_experts", 8}},
                          {{"logits_scaling", 8.0}},
                          {{"sliding_window", 8}},
                          {{"hidden_act", "gelu"}}};
  for (const Json& option : options) {
    EXPECT_THAT(Refusal(With("toy_t", option)), HasSubstr(option.begin().key()));
  }
  EXPECT_THAT(Refusal(With("mistral_window", {{"attention_bias", true}})),
              HasSubstr("attention_bias"));
}

TEST(HfConfig, RefusesOtherArchitecturesByName) {
  for (const char* name : {"GemmaForCausalLM", "Qwen2MoeForCausalLM", "LlamaModel", "x\ny"}) {
    EXPECT_THAT(Refusal(With("toy_t", {{"architectures", {name}}})),
                StartsWith("c.json: architecture is \""));
  }
  EXPECT_THAT(Refusal(With("toy_t", {{"architectures", Json::array()}})),
              HasSubstr("architectures is a list of 0"));
}

TEST(HfConfig, IgnoresKeysThatChangeNothing) {
  EXPECT_EQ(Refusal(With("toy_t", {{"transformers_version", "4.50"},
                                   {"use_cache", true},
                                   {"auto_map", {{"AutoModel", "../../x.py"}}},
                                   {"custom_code", "/etc/passwd"},
                                   {"num_local_experts", 0},
                                   {"quantization_config", nullptr},
                                   {"logit_scale", 1.0}})),
            "");
}

TEST(HfConfig, RefusesMissingKeysAndWrongTypesByName) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "max_position_embeddings", "rms_norm_eps"}) {
    Json config = TinyConfigJson("toy_t");
    config.erase(key);
    EXPECT_THAT(Refusal(config), HasSubstr(std::string(key) + " is missing"));
    for (const Json& wrong : {Json("4"), Json(-1), Json(true), Json::array()}) {
      config[key] = wrong;
      EXPECT_THAT(Refusal(config), StartsWith("c.json: ")) << key << wrong;
    }
  }
  EXPECT_THAT(Refusal(With("toy_t", {{"hidden_size", 1e9}})), HasSubstr("hidden_size"));
  EXPECT_THAT(Refusal(With("toy_t", {{"num_hidden_layers", 2147483648}})),
              HasSubstr("num_hidden_layers is 2147483648, wanted an integer from 1 to 1024"));
}

// Each ratio of query to KV heads loads when it divides; nothing is special about a list of them.
TEST(HfConfig, Case_040_AnyWholeHeadRatioLoadsAndOthersAreRefused) {
  const auto with = [](int q, int kv) {
    return With("toy_t", {{"num_attention_heads", q}, {"num_key_value_heads", kv}});
  };
  const std::pair<int, int> whole[] = {{9, 3},  {14, 2}, {28, 4}, {40, 8}, {24, 4},
                                       {64, 4}, {8, 8},  {8, 1},  {15, 5}};
  for (const auto& [q, kv] : whole) EXPECT_EQ(Refusal(with(q, kv)), "") << q << "/" << kv;
  EXPECT_EQ(Refusal(with(10, 4)),
            "c.json: 10 query heads cannot be shared by 4 KV heads, wanted a multiple");
  EXPECT_NE(Refusal(with(4, 8)), "");
}

TEST(HfConfig, Case_042_HeadSizeIsItsOwnKeyAndOddOnesAreRefused) {
  const auto with = [](int head_dim) { return With("toy_t", {{"head_dim", head_dim}}); };
  for (const int size : {40, 64, 72, 80, 96, 112, 128, 192, 256, 32}) {
    const auto parsed = Parsed(with(size));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->head_dim, size);  // hidden 64 with 4 heads would be 16
    EXPECT_EQ(parsed->rope.rotary_dim, size);
  }
  EXPECT_EQ(Refusal(with(63)), "c.json: head size is 63, wanted a multiple of 8");
  EXPECT_EQ(Refusal(with(264)), "c.json: head size is 264, wanted 16 to 256");
  Json derived = With("toy_t", {{"hidden_size", 65}});
  derived.erase("head_dim");
  EXPECT_THAT(Refusal(derived), HasSubstr("hidden_size 65 is not a multiple of 4 heads"));
}

TEST(HfConfig, EndIdsComeFromGenerationConfigFirst) {
  auto config = Parsed(With("toy_t", {{"eos_token_id", 5}, {"bos_token_id", 1}}));
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(config->eos_token_ids, ElementsAre(TokenId{5}));
  EXPECT_EQ(config->bos_token_id, TokenId{1});
  ASSERT_TRUE(ApplyGenerationConfig(R"({"temperature": 1})", "g.json", *config).ok());
  EXPECT_THAT(config->eos_token_ids, ElementsAre(TokenId{5}));
  ASSERT_TRUE(ApplyGenerationConfig(R"({"eos_token_id": [7, 8, 7]})", "g.json", *config).ok());
  EXPECT_THAT(config->eos_token_ids, ElementsAre(TokenId{7}, TokenId{8}));
  EXPECT_FALSE(ApplyGenerationConfig(R"({"eos_token_id": [512]})", "g.json", *config).ok());
  EXPECT_FALSE(ApplyGenerationConfig(R"({"eos_token_id": -1})", "g.json", *config).ok());
}

TEST(HfConfig, ChatTemplateIsATextOrTheDefaultOfAList) {
  ModelConfig config = TinyConfig("toy_t");
  ASSERT_TRUE(ApplyTokenizerConfig(R"({"chat_template": "A"})", "t.json", config).ok());
  EXPECT_EQ(config.chat_template, "A");
  const char* list = R"({"chat_template": [{"name": "tool_use", "template": "T"},
                                           {"name": "default", "template": "D"}]})";
  ASSERT_TRUE(ApplyTokenizerConfig(list, "t.json", config).ok());
  EXPECT_EQ(config.chat_template, "D");
  ASSERT_TRUE(ApplyTokenizerConfig("{}", "t.json", config).ok());
  EXPECT_EQ(config.chat_template, "D");
  EXPECT_FALSE(ApplyTokenizerConfig(R"({"chat_template": 5})", "t.json", config).ok());
}

}  // namespace
}  // namespace longspan
