// GGUF metadata become the right ModelConfig and VocabularyData; what is not implemented is refused
// by name.
#include "model/gguf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "model/weight_source.h"
#include "tests/support/tiny_models.h"

namespace longspan {
namespace {

using ::longspan::testing::Bytes;
using ::longspan::testing::FloatBytes;
using ::longspan::testing::GgufSpec;
using ::longspan::testing::GgufString;
using ::longspan::testing::TemporaryFolder;
using ::longspan::testing::TinyConfig;
using ::longspan::testing::TinyGguf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kU32 = 4;
constexpr uint32_t kString = 8;

StatusOr<ModelConfig> ConfigOf(const GgufSpec& spec) {
  const TemporaryFolder folder;
  const auto source = OpenModel(folder.Write("x.gguf", spec.Build()));
  if (!source.ok()) return source.status();
  return (*source)->config();
}

std::string Refusal(const GgufSpec& spec) {
  const auto config = ConfigOf(spec);
  return config.ok() ? "" : StatusMessage(config.status());
}

GgufSpec Llama() { return TinyGguf(TinyConfig("llama_untied")); }

TEST(GgufConfig, ReadsTheShapeOfEveryArchitecture) {
  for (const char* name : {"llama_untied", "llama_tied", "mistral_window", "qwen2", "qwen3"}) {
    const ModelConfig wanted = TinyConfig(name);
    const auto config = ConfigOf(TinyGguf(wanted));
    ASSERT_TRUE(config.ok()) << name << config.status();
    EXPECT_EQ(config->vocab_size, wanted.vocab_size);
    EXPECT_EQ(config->context_length, wanted.context_length);
    EXPECT_EQ(config->hidden_size, wanted.hidden_size);
    EXPECT_EQ(config->intermediate_size, wanted.intermediate_size);
    EXPECT_EQ(config->num_layers, wanted.num_layers);
    EXPECT_EQ(config->num_q_heads, wanted.num_q_heads);
    EXPECT_EQ(config->num_kv_heads, wanted.num_kv_heads);
    EXPECT_EQ(config->head_dim, wanted.head_dim);
    EXPECT_EQ(config->rms_norm_eps, wanted.rms_norm_eps);
    EXPECT_EQ(config->qkv_bias, wanted.qkv_bias);
    EXPECT_EQ(config->o_bias, wanted.o_bias);
    EXPECT_EQ(config->qk_norm, wanted.qk_norm);
    EXPECT_EQ(config->tied_embeddings, wanted.tied_embeddings);
    EXPECT_EQ(config->sliding_window, wanted.sliding_window);
    EXPECT_EQ(config->rope.theta, wanted.rope.theta);
    EXPECT_EQ(config->weight_format, "F32");
  }
}

TEST(GgufConfig, LlamaRowsAreAdjacentPairsAndQwensAreHalves) {
  EXPECT_EQ(ConfigOf(Llama())->rope.style, RopeStyle::kInterleaved);
  EXPECT_EQ(ConfigOf(TinyGguf(TinyConfig("mistral_window")))->rope.style, RopeStyle::kInterleaved);
  EXPECT_EQ(ConfigOf(TinyGguf(TinyConfig("qwen2")))->rope.style, RopeStyle::kHalfSplit);
  EXPECT_EQ(ConfigOf(TinyGguf(TinyConfig("qwen3")))->rope.style, RopeStyle::kHalfSplit);
}

TEST(GgufConfig, TakesDefaultsOfAbsentKeys) {
  GgufSpec spec = TinyGguf(TinyConfig("llama_tied"));
  for (const char* key : {"llama.attention.key_length", "llama.attention.value_length",
                          "llama.rope.dimension_count", "llama.rope.freq_base"}) {
    spec.Remove(key);
  }
  const auto config = ConfigOf(spec);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->rope.rotary_dim, 16);
  EXPECT_EQ(config->rope.theta, 10000.0);
}

TEST(GgufConfig, ReadsLinearAndYarnScaling) {
  const auto linear = ConfigOf(
      Llama().String("llama.rope.scaling.type", "linear").F32("llama.rope.scaling.factor", 4.0f));
  ASSERT_TRUE(linear.ok()) << linear.status();
  EXPECT_EQ(linear->rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(linear->rope.factor, 4.0);
  EXPECT_EQ(ConfigOf(Llama().F32("llama.rope.scale_linear", 2.0f))->rope.factor, 2.0);
  EXPECT_EQ(ConfigOf(Llama().String("llama.rope.scaling.type", "none"))->rope.scaling,
            RopeScaling::kNone);

  const auto yarn = ConfigOf(Llama()
                                 .String("llama.rope.scaling.type", "yarn")
                                 .F32("llama.rope.scaling.factor", 8.0f)
                                 .U32("llama.rope.scaling.original_context_length", 32)
                                 .F32("llama.rope.scaling.attn_factor", 2.0f)
                                 .F32("llama.rope.scaling.yarn_beta_fast", 16.0f));
  ASSERT_TRUE(yarn.ok()) << yarn.status();
  EXPECT_EQ(yarn->rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn->rope.original_context_length, 32);
  EXPECT_EQ(yarn->rope.beta_fast, 16.0);
  EXPECT_EQ(yarn->rope.beta_slow, 1.0);
  EXPECT_DOUBLE_EQ(yarn->rope.attention_factor, 2.0 * (0.1 * std::log(8.0) + 1.0));
}

TEST(GgufConfig, ReadsFrequencyFactors) {
  const float factors[] = {1, 1, 1, 2, 4, 8, 8, 8};
  GgufSpec spec = Llama();
  spec.Tensor({"rope_freqs.weight", {8}, 0, FloatBytes(factors), {}});
  const auto config = ConfigOf(spec);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->rope.freq_factors, ElementsAre(1, 1, 1, 2, 4, 8, 8, 8));
  spec.Find("rope_freqs.weight") = {"rope_freqs.weight", {7}, 0, FloatBytes(factors).substr(4), {}};
  EXPECT_THAT(Refusal(spec), HasSubstr("rope_freqs.weight"));
}

TEST(GgufConfig, ReadsIdsTemplateAndVocabulary) {
  GgufSpec spec = Llama();
  spec.U32("tokenizer.ggml.eot_token_id", 9).U32("tokenizer.ggml.unknown_token_id", 0);
  const TemporaryFolder folder;
  const auto source = OpenModel(folder.Write("x.gguf", spec.Build()));
  ASSERT_TRUE(source.ok()) << source.status();
  const ModelConfig& config = (*source)->config();
  EXPECT_THAT(config.eos_token_ids, ElementsAre(TokenId{2}, TokenId{9}));
  EXPECT_EQ(config.bos_token_id, TokenId{1});
  EXPECT_EQ(config.chat_template, "{{ 1 }}");
  const VocabularyData& vocabulary = (*source)->vocabulary();
  EXPECT_EQ(vocabulary.model, "gpt2");
  EXPECT_EQ(vocabulary.pre_tokenizer, "gpt-2");
  ASSERT_EQ(vocabulary.tokens.size(), 256u);
  EXPECT_EQ(vocabulary.tokens[255], "<255>");
  EXPECT_EQ(vocabulary.eos_id, 2);
  EXPECT_EQ(vocabulary.unknown_id, 0);
  EXPECT_FALSE(vocabulary.add_bos || vocabulary.add_eos);
}

TEST(GgufConfig, LlamaBpeAddsItsFirstTokenUnlessToldOtherwise) {
  const auto adds_bos = [](const GgufSpec& spec) {
    const TemporaryFolder folder;
    return (*OpenModel(folder.Write("x.gguf", spec.Build())))->vocabulary().add_bos;
  };
  GgufSpec spec = Llama();
  spec.Set("tokenizer.ggml.pre", kString, GgufString("llama-bpe"));
  EXPECT_FALSE(adds_bos(spec));  // the key says so
  spec.Remove("tokenizer.ggml.add_bos_token");
  EXPECT_TRUE(adds_bos(spec));
}

TEST(GgufConfig, BiasesFollowTheTensors) {
  GgufSpec spec = Llama();
  const auto add = [&](const std::string& name, uint64_t rows) {
    spec.Tensor({name, {rows}, 0, std::string(4 * rows, '\0'), {}});
  };
  for (const char* layer : {"blk.0.", "blk.1."}) {
    add(std::string(layer) + "attn_q.bias", 96);
    add(std::string(layer) + "attn_k.bias", 32);
    add(std::string(layer) + "attn_v.bias", 32);
  }
  const auto config = ConfigOf(spec);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->qkv_bias && !config->o_bias);
  spec.Remove("blk.1.attn_k.bias");
  EXPECT_THAT(Refusal(spec), HasSubstr("blk.1.attn_k.bias is missing"));
}

TEST(GgufConfig, RefusesOptionsThatChangeArithmeticByName) {
  const std::string keys[] = {"llama.attention.scale", "llama.attention.max_alibi_bias",
                              "llama.logit_scale", "llama.expert_count",
                              "llama.attn_logit_softcapping"};
  for (const std::string& key : keys) {
    EXPECT_THAT(Refusal(Llama().F32(key, 8.0f)), HasSubstr(key));
  }
  EXPECT_THAT(Refusal(Llama()
                          .String("llama.rope.scaling.type", "yarn")
                          .F32("llama.rope.scaling.yarn_ext_factor", 0.5f)),
              HasSubstr("yarn_ext_factor is 0.5, wanted 1"));
  EXPECT_THAT(Refusal(Llama().Bool("llama.attention.causal", false)), HasSubstr("causal"));
  EXPECT_THAT(Refusal(Llama().String("llama.rope.scaling.type", "longrope")),
              HasSubstr("longrope"));
  EXPECT_THAT(Refusal(Llama().U32("split.count", 2)), HasSubstr("split.count is 2"));
  EXPECT_EQ(Refusal(Llama().U32("llama.expert_count", 0).U32("llama.unheard_of", 1)), "");
}

TEST(GgufConfig, Case_040_HeadsThatDoNotDivideAreRefused) {
  GgufSpec spec = Llama();
  spec.Set("llama.attention.head_count", kU32, Bytes(uint32_t{10}));
  spec.Set("llama.attention.head_count_kv", kU32, Bytes(uint32_t{4}));
  EXPECT_THAT(Refusal(spec), HasSubstr("10 query heads cannot be shared by 4 KV heads"));
}

}  // namespace
}  // namespace longspan
