// The decoder against a naive double-precision model and against transformers' logits, for every
// architecture; and the promise that a sequence's bits depend on nothing but its own tokens.
#include "model/decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/model/decoder_harness.h"
#include "tests/support/reference_model.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_models.h"

namespace longspan::testing {
namespace {

std::vector<TokenId> RandomTokens(int32_t count, int32_t vocab_size, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < count; ++i) {
    tokens.push_back(TokenId{static_cast<int32_t>(engine() % static_cast<uint32_t>(vocab_size))});
  }
  return tokens;
}

std::unique_ptr<WeightSource> OpenFolder(const TemporaryFolder& folder) {
  auto source = OpenModel(folder.path());
  CHECK(source.ok(), "{}", StatusMessage(source.status()));
  return *std::move(source);
}

// The largest difference to the oracle over every logit of a prompt.
double WorstDifference(WeightSource& source, int32_t num_tokens, const HarnessOptions& options,
                       int32_t chunk) {
  const std::vector<TokenId> tokens = RandomTokens(num_tokens, source.config().vocab_size, 11);
  const auto expected = ReferenceModel(source).Logits(tokens);
  DecoderHarness harness(source, options);
  const auto got = harness.Prompt(3, tokens, chunk);
  double worst = 0;
  for (size_t t = 0; t < tokens.size(); ++t) {
    for (size_t i = 0; i < expected[t].size(); ++i) {
      const double difference = std::abs(expected[t][i] - got[t][i]);
      worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
    }
  }
  return worst;
}

class EveryTinyModel : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryTinyModel, AgreesWithTheNaiveModel) {
  TemporaryFolder folder;
  WriteTinyModel(folder, GetParam());
  const auto source = OpenFolder(folder);
  EXPECT_LT(WorstDifference(*source, 131, {}, 16), 1e-4);
}

TEST_P(EveryTinyModel, AgreesWithTransformers) {
  std::ifstream file(std::string(LONGSPAN_REFERENCE_DIR "/tiny_") + GetParam() + ".json");
  ASSERT_TRUE(file.good());
  const nlohmann::json reference = nlohmann::json::parse(file);
  TemporaryFolder folder;
  WriteTinyModel(folder, GetParam(), reference["num_shards"], reference["seed"]);
  const auto source = OpenFolder(folder);
  for (const nlohmann::json& prompt : reference["prompts"]) {
    std::vector<TokenId> tokens;
    for (const int32_t id : prompt["token_ids"]) tokens.push_back(TokenId{id});
    DecoderHarness harness(*source, {.block_size = 16});
    auto rows = harness.Prompt(0, tokens, 16);
    for (size_t p = 0; p < prompt["positions"].size(); ++p) {
      const std::vector<float>& row = rows[prompt["positions"][p].get<size_t>()];
      const nlohmann::json& expected = prompt["logits"][p];
      ASSERT_EQ(expected.size(), row.size());
      for (size_t i = 0; i < row.size(); ++i) ASSERT_NEAR(row[i], expected[i].get<double>(), 1e-4);
    }
    std::vector<float> last = rows.back();
    for (const int32_t id : prompt["greedy_ids"]) {
      const auto best = std::max_element(last.begin(), last.end()) - last.begin();
      ASSERT_EQ(best, id);
      last = harness.Step({{0, {TokenId{id}}}})[0][0];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Decoder, EveryTinyModel,
                         ::testing::Values("toy_t", "llama_untied", "llama_tied",
                                           "llama_rope_llama3", "llama_rope_linear",
                                           "llama_rope_yarn", "mistral_window", "qwen2", "qwen3"),
                         [](const auto& model) { return std::string(model.param); });

// GGUF files keep rotation pairs adjacent for llama: the other rotary style, the same answer.
class EveryGgufModel : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryGgufModel, AgreesWithTheNaiveModel) {
  TemporaryFolder folder;
  const std::string path = folder.Write("model.gguf", TinyGguf(TinyConfig(GetParam())).Build());
  auto source = OpenModel(path);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_LT(WorstDifference(**source, 70, {}, 33), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Decoder, EveryGgufModel,
                         ::testing::Values("toy_t", "llama_untied", "llama_tied", "mistral_window",
                                           "qwen2", "qwen3"),
                         [](const auto& model) { return std::string(model.param); });

// Sixteen-bit caches and bfloat16 products are less exact, by about what their formats cost.
TEST(Decoder, SixteenBitCachesAndProductsStayNearTheNaiveModel) {
  TemporaryFolder folder;
  WriteTinyModel(folder, "toy_t");
  const auto source = OpenFolder(folder);
  EXPECT_LT(WorstDifference(*source, 100, {.kv_dtype = DType::kFloat16}, 16), 0.02);
  EXPECT_LT(WorstDifference(*source, 100, {.kv_dtype = DType::kBFloat16}, 16), 0.1);
}

// Head ratios and sizes beyond the tiny models; head_dim is not hidden / heads.
TEST(Decoder, Case_040_Case_042_AnyHeadRatioAndHeadSize) {
  struct Heads {
    int q, kv, dim;
  };
  for (const Heads& h : {Heads{9, 3, 64},
                         {14, 2, 16},
                         {28, 4, 16},
                         {40, 8, 16},
                         {24, 4, 16},
                         {64, 4, 16},
                         {8, 8, 40},
                         {8, 1, 72},
                         {15, 5, 80},
                         {2, 1, 96},
                         {2, 2, 112},
                         {3, 1, 128},
                         {2, 1, 192},
                         {2, 1, 256},
                         {4, 4, 32}}) {
    nlohmann::json config = TinyConfigJson("toy_t");
    config["num_attention_heads"] = h.q;
    config["num_key_value_heads"] = h.kv;
    config["head_dim"] = h.dim;
    TemporaryFolder folder;
    folder.Write("config.json", config.dump());
    const auto parsed = OpenDummyModel(folder.path());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_LT(WorstDifference(**parsed, 37, {.block_size = 16}, 20), 1e-4)
        << h.q << '/' << h.kv << ' ' << h.dim;
  }
}

// q/k/v bias, norms of q and k, both, neither: Qwen2 and Qwen3 in one decoder.
TEST(Decoder, Case_052_BiasesAndHeadNormsFollowTheConfig) {
  for (const char* name : {"qwen2", "qwen3", "llama_untied"}) {
    TemporaryFolder folder;
    const ModelConfig config = TinyConfig(name);
    std::vector<SafetensorsSpec> tensors = TinyTensors(config);
    for (SafetensorsSpec& tensor : tensors) {
      const bool bias = tensor.name.ends_with(".bias");
      const bool norm = tensor.name.find("q_norm") != std::string::npos ||
                        tensor.name.find("k_norm") != std::string::npos;
      if (!bias && !norm) continue;
      const std::vector<float> values(static_cast<size_t>(tensor.shape[0]), bias ? 0.5f : 2.0f);
      tensor.data = FloatBytes(values);
    }
    WriteModelFolder(folder, TinyConfigJson(name), tensors);
    const auto source = OpenFolder(folder);
    EXPECT_LT(WorstDifference(*source, 40, {}, 7), 1e-4) << name;
  }
}

// Both at once: the norms of q and k come after their biases and before the rotation.
TEST(Decoder, Case_052_BiasesAndHeadNormsTogether) {
  nlohmann::json json = TinyConfigJson("qwen3");
  json["attention_bias"] = true;
  json["rms_norm_eps"] = 1e-2;  // large enough that another eps would show
  TemporaryFolder config_folder;
  config_folder.Write("config.json", json.dump());
  const ModelConfig config = (*OpenDummyModel(config_folder.path()))->config();
  ASSERT_TRUE(config.qkv_bias && config.qk_norm);
  std::vector<SafetensorsSpec> tensors = TinyTensors(config);
  int changed = 0;
  for (SafetensorsSpec& tensor : tensors) {
    const bool bias = tensor.name.ends_with(".bias");
    const bool norm = tensor.name.find("q_norm") != std::string::npos ||
                      tensor.name.find("k_norm") != std::string::npos;
    if (!bias && !norm) continue;
    ++changed;
    tensor.data =
        FloatBytes(std::vector<float>(static_cast<size_t>(tensor.shape[0]), bias ? 0.5f : 2.0f));
  }
  EXPECT_EQ(changed, config.num_layers * (config.o_bias ? 6 : 5));
  TemporaryFolder folder;
  WriteModelFolder(folder, json, tensors);
  const auto source = OpenFolder(folder);
  EXPECT_LT(WorstDifference(*source, 40, {}, 7), 1e-4);
}

// Llama with attention_bias: q, k, v and the output projection all have one.
TEST(Decoder, Case_052_LlamaMayHaveBiasesEverywhereInAttention) {
  nlohmann::json config = TinyConfigJson("toy_t");
  config["attention_bias"] = true;
  TemporaryFolder folder;
  folder.Write("config.json", config.dump());
  const auto source = OpenDummyModel(folder.path());
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_NE((*source)->Find(WeightRole::kAttentionOutputBias, 1), nullptr);
  EXPECT_LT(WorstDifference(**source, 40, {}, 7), 1e-4);
}

// Files of mixed formats: gate and up cannot share one product then.
TEST(Decoder, GateAndUpOfDifferentFormatsGiveTheSameAnswer) {
  constexpr uint32_t kGgufFloat16 = 1;
  GgufSpec rounded = TinyGguf(TinyConfig("toy_t"));
  GgufSpec mixed = rounded;
  for (const char* name : {"blk.0.ffn_gate.weight", "blk.1.ffn_up.weight"}) {
    std::string& floats = rounded.Find(name).data;
    std::string halves;
    for (size_t at = 0; at < floats.size(); at += sizeof(float)) {
      float value;
      std::memcpy(&value, floats.data() + at, sizeof(value));
      const uint16_t half = FloatToFloat16(value);
      value = Float16ToFloat(half);
      std::memcpy(floats.data() + at, &value, sizeof(value));
      halves += Bytes(half);
    }
    mixed.Find(name).data = halves;
    mixed.Find(name).type = kGgufFloat16;
  }
  TemporaryFolder folder;
  const auto rounded_source = *OpenModel(folder.Write("rounded.gguf", rounded.Build()));
  const auto mixed_source = OpenModel(folder.Write("mixed.gguf", mixed.Build()));
  ASSERT_TRUE(mixed_source.ok()) << mixed_source.status();
  const std::vector<TokenId> tokens = RandomTokens(50, 512, 2);
  const auto expected = ReferenceModel(*rounded_source).Logits(tokens);
  const auto got = DecoderHarness(**mixed_source, {}).Prompt(0, tokens, 16);
  for (size_t t = 0; t < tokens.size(); ++t) {
    for (size_t i = 0; i < got[t].size(); ++i) ASSERT_NEAR(got[t][i], expected[t][i], 1e-4);
  }
}

TEST(Decoder, SameBitsForEveryChunkBlockSizeSplitAndThreadCount) {
  const std::vector<TokenId> tokens = RandomTokens(200, 256, 5);
  for (const char* name : {"llama_untied", "mistral_window", "qwen3"}) {
    TemporaryFolder folder;
    WriteTinyModel(folder, name);
    const auto source = OpenFolder(folder);
    for (const MatmulPrecision precision :
         {MatmulPrecision::kFloat32, MatmulPrecision::kBFloat16}) {
      if (precision == MatmulPrecision::kBFloat16 && !CpuHasBFloat16()) continue;
      HarnessOptions options{.threads = 1, .precision = precision, .kv_dtype = DType::kFloat16};
      const auto expected = DecoderHarness(*source, options).Prompt(0, tokens, 200);
      for (const int32_t chunk : {1, 16, 64, 512}) {
        EXPECT_EQ(DecoderHarness(*source, options).Prompt(0, tokens, chunk), expected) << chunk;
      }
      for (const int32_t block_size : {1, 16, 64}) {
        options.block_size = block_size;
        EXPECT_EQ(DecoderHarness(*source, options).Prompt(0, tokens, 64), expected) << block_size;
      }
      for (const int threads : {2, 3, 4}) {
        options.threads = threads;
        EXPECT_EQ(DecoderHarness(*source, options).Prompt(0, tokens, 64), expected) << threads;
      }
      for (int splits = 1; splits <= 16; ++splits) {
        options.num_splits = splits;
        EXPECT_EQ(DecoderHarness(*source, options).Prompt(0, tokens, 50), expected) << splits;
      }
    }
  }
}

TEST(Decoder, SameBitsBesideNeighbours) {
  const std::vector<TokenId> tokens = RandomTokens(60, 512, 5);
  TemporaryFolder folder;
  WriteTinyModel(folder, "toy_t");
  const auto source = OpenFolder(folder);
  const HarnessOptions options{.kv_dtype = DType::kFloat16};
  const auto expected = DecoderHarness(*source, options).Prompt(0, tokens, 60);
  for (const int32_t neighbours : {1, 3, 8, 32}) {
    DecoderHarness harness(*source, options);
    std::vector<std::vector<float>> rows;
    const int32_t slot = neighbours / 2;
    std::mt19937 engine(static_cast<uint32_t>(neighbours));
    for (size_t next = 0; next < tokens.size();) {
      // A chunk of 1 to 9 tokens beside chunks of other lengths.
      const size_t end = std::min(tokens.size(), next + 1 + engine() % 9);
      std::vector<std::pair<int32_t, std::vector<TokenId>>> work;
      for (int32_t other = 0; other <= neighbours; ++other) {
        if (other != slot && engine() % 4 != 0) {
          work.push_back(
              {other, RandomTokens(1 + static_cast<int32_t>(engine() % 3), 512, engine())});
        }
      }
      work.push_back({slot,
                      {tokens.begin() + static_cast<ptrdiff_t>(next),
                       tokens.begin() + static_cast<ptrdiff_t>(end)}});
      const auto part = harness.Step(work).back();
      rows.insert(rows.end(), part.begin(), part.end());
      next = end;
    }
    EXPECT_EQ(rows, expected) << neighbours;
  }
}

}  // namespace
}  // namespace longspan::testing
