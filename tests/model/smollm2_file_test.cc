// The real model file: opens, says what it is known to be, and its blocks decode as the gguf
// package says. Skipped where the file is absent; scripts/fetch-model fetches it,
// LONGSPAN_TEST_MODEL names another place.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/weight_check.h"
#include "model/weight_names.h"
#include "model/weight_source.h"
#include "tests/support/test_model.h"

namespace longspan {
namespace {

using Json = nlohmann::json;

class SmolLM2File : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = testing::TestModelPath();
    if (!std::filesystem::exists(path)) {
      GTEST_SKIP() << path << " is absent: run scripts/fetch-model or set LONGSPAN_TEST_MODEL";
    }
    auto source = OpenModel(path);
    ASSERT_TRUE(source.ok()) << source.status();
    source_ = *std::move(source);
  }

  std::vector<std::byte> Read(const WeightTensor& tensor) {
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.size_bytes));
    const Status status = source_->Read(tensor, bytes);
    EXPECT_TRUE(status.ok()) << status;
    return bytes;
  }

  const WeightTensor* FindByName(const std::string& name) {
    for (const WantedWeight& wanted : WantedWeights(source_->config(), WeightNaming::kGguf)) {
      if (wanted.name == name) return source_->Find(wanted.role, wanted.layer);
    }
    return nullptr;
  }

  std::unique_ptr<WeightSource> source_;
};

TEST_F(SmolLM2File, IsWhatItIsKnownToBe) {
  const ModelConfig& c = source_->config();
  EXPECT_EQ(c.architecture, Architecture::kLlama);
  EXPECT_EQ(c.num_layers, 30);
  EXPECT_EQ(c.num_q_heads, 9);
  EXPECT_EQ(c.num_kv_heads, 3);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.hidden_size, 576);
  EXPECT_EQ(c.intermediate_size, 1536);
  EXPECT_EQ(c.context_length, 8192);
  EXPECT_EQ(c.vocab_size, 49152);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_FALSE(c.qkv_bias || c.o_bias || c.qk_norm);
  EXPECT_EQ(c.sliding_window, 0);
  EXPECT_EQ(c.rope.style, RopeStyle::kInterleaved);
  EXPECT_EQ(c.rope.theta, 100000.0);
  EXPECT_EQ(c.rope.rotary_dim, 64);
  EXPECT_EQ(c.rope.scaling, RopeScaling::kNone);
  EXPECT_FLOAT_EQ(c.rms_norm_eps, 1e-5f);
  EXPECT_EQ(c.eos_token_ids, std::vector<TokenId>{TokenId{2}});
  EXPECT_EQ(c.weight_format, "Q4_1");
  EXPECT_NE(c.chat_template.find("<|im_start|>"), std::string::npos);
}

TEST_F(SmolLM2File, CarriesItsVocabulary) {
  const VocabularyData& v = source_->vocabulary();
  EXPECT_EQ(v.model, "gpt2");
  EXPECT_EQ(v.pre_tokenizer, "smollm");
  ASSERT_EQ(v.tokens.size(), 49152u);
  EXPECT_EQ(v.token_types.size(), 49152u);
  EXPECT_EQ(v.merges.size(), 48900u);
  EXPECT_EQ(v.tokens[2], "<|im_end|>");
  EXPECT_EQ(v.eos_id, 2);
  EXPECT_EQ(v.bos_id, 1);
  EXPECT_FALSE(v.add_bos || v.add_eos);
}

TEST_F(SmolLM2File, HoldsEveryTensorInFiniteWeights) {
  const auto wanted = WantedWeights(source_->config(), WeightNaming::kGguf);
  EXPECT_EQ(wanted.size(), 272u);
  for (const WantedWeight& weight : wanted) {
    const WeightTensor* tensor = source_->Find(weight.role, weight.layer);
    ASSERT_NE(tensor, nullptr) << weight.name;
    const Status finite = CheckFinite(*tensor, Read(*tensor));
    EXPECT_TRUE(finite.ok()) << finite;
  }
}

TEST_F(SmolLM2File, BlocksDecodeAsTheGgufPackageSays) {
  std::ifstream file(LONGSPAN_REFERENCE_DIR "/gguf_blocks_smollm2.json");
  const Json data = Json::parse(file, nullptr, false);
  ASSERT_TRUE(data.is_object());
  for (const Json& expected : data["blocks"]) {
    const auto name = expected["tensor"].get<std::string>();
    const WeightTensor* tensor = FindByName(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(WeightFormatName(tensor->format), expected["format"].get<std::string>());
    EXPECT_EQ(tensor->shape, expected["shape"].get<std::vector<int64_t>>());
    const std::vector<std::byte> bytes = Read(*tensor);
    const int64_t cols = tensor->shape.back();
    const int64_t row_bytes =
        cols / WeightBlockElements(tensor->format) * WeightBlockBytes(tensor->format);
    std::vector<float> row(static_cast<size_t>(cols));
    DequantizeRow(tensor->format, bytes.data() + expected["row"].get<int64_t>() * row_bytes, cols,
                  row.data());
    const auto first = expected["first"].get<size_t>();
    const auto values = expected["values"].get<std::vector<float>>();
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(row[first + i], values[i]) << name << i;
  }
}

}  // namespace
}  // namespace longspan
