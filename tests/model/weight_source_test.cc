// OpenModel and its relatives over whole models: the right bytes by role, shards, tied matrices,
// changes on disk, hashed models. One broken file after the other: broken_files_test.cc.
#include "model/weight_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "model/dummy_model.h"
#include "model/weight_names.h"
#include "tests/support/tiny_models.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using ::longspan::testing::BuildSafetensors;
using ::longspan::testing::FloatBytes;
using ::longspan::testing::SafetensorsSpec;
using ::longspan::testing::TemporaryFolder;
using ::longspan::testing::TinyConfig;
using ::longspan::testing::TinyConfigJson;
using ::longspan::testing::TinyGguf;
using ::longspan::testing::TinyTensors;
using ::longspan::testing::WriteModelFolder;
using ::longspan::testing::WriteTinyModel;
using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string ReadBytes(WeightSource& source, const WeightTensor& tensor) {
  std::string bytes(static_cast<size_t>(tensor.size_bytes), '\0');
  const Status status = source.Read(tensor, std::as_writable_bytes(std::span(bytes)));
  EXPECT_TRUE(status.ok()) << status;
  return bytes;
}

std::string Refusal(const std::string& path) {
  const auto source = OpenModel(path);
  return source.ok() ? "" : StatusMessage(source.status());
}

// Every tensor of the config is found by role and holds the bytes that were written under its name.
void ExpectSameWeights(WeightSource& source, const std::vector<SafetensorsSpec>& tensors) {
  const auto wanted = WantedWeights(source.config(), WeightNaming::kHuggingFace);
  ASSERT_EQ(wanted.size(), tensors.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const WeightTensor* tensor = source.Find(wanted[i].role, wanted[i].layer);
    ASSERT_NE(tensor, nullptr) << wanted[i].name;
    EXPECT_EQ(tensor->shape, tensors[i].shape);
    EXPECT_EQ(ReadBytes(source, *tensor), tensors[i].data) << wanted[i].name;
  }
}

TEST(OpenModel, FindsEveryTensorOfAFolderByRole) {
  for (const char* name :
       {"toy_t", "llama_untied", "llama_tied", "mistral_window", "qwen2", "qwen3"}) {
    const TemporaryFolder folder;
    WriteTinyModel(folder, name);
    const auto source = OpenModel(folder.path());
    ASSERT_TRUE(source.ok()) << source.status();
    ExpectSameWeights(**source, TinyTensors(TinyConfig(name)));
    EXPECT_EQ((*source)->Find(WeightRole::kOutput, -1) == nullptr,
              (*source)->config().tied_embeddings);
    EXPECT_TRUE((*source)->vocabulary().empty());
  }
}

TEST(OpenModel, FindsEveryTensorOfAGgufFileByRole) {
  for (const char* name : {"qwen2", "qwen3"}) {
    const TemporaryFolder folder;
    const auto source = OpenModel(folder.Write("x.gguf", TinyGguf(TinyConfig(name)).Build()));
    ASSERT_TRUE(source.ok()) << source.status();
    ExpectSameWeights(**source, TinyTensors(TinyConfig(name)));
  }
}

TEST(OpenModel, ShardsGiveTheSameModel) {
  for (const int shards : {2, 3, 7}) {
    const TemporaryFolder folder;
    WriteTinyModel(folder, "toy_t", shards);
    const auto source = OpenModel(folder.path());
    ASSERT_TRUE(source.ok()) << source.status();
    ExpectSameWeights(**source, TinyTensors(TinyConfig("toy_t")));
  }
}

TEST(OpenModel, ReadsCompanionFilesOfAFolder) {
  const TemporaryFolder folder;
  WriteTinyModel(folder, "toy_t");
  folder.Write("generation_config.json", R"({"eos_token_id": [3, 4]})");
  folder.Write("tokenizer_config.json", R"({"chat_template": "old"})");
  folder.Write("chat_template.jinja", "new");
  folder.Write("tokenizer.json", "{}");
  const auto source = OpenModel(folder.path());
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT((*source)->config().eos_token_ids, ::testing::ElementsAre(TokenId{3}, TokenId{4}));
  EXPECT_EQ((*source)->config().chat_template, "new");
  EXPECT_EQ((*source)->vocabulary().tokenizer_json, "{}");
}

TEST(OpenModel, AcceptsHalfPrecisionAndNamesIt) {
  const std::pair<const char*, DType> types[] = {{"F16", DType::kFloat16},
                                                 {"BF16", DType::kBFloat16}};
  for (const auto& [name, dtype] : types) {
    std::vector<SafetensorsSpec> tensors = TinyTensors(TinyConfig("toy_t"));
    for (SafetensorsSpec& tensor : tensors) {
      tensor.dtype = name;
      tensor.data.resize(tensor.data.size() / 2);
    }
    const TemporaryFolder folder;
    WriteModelFolder(folder, TinyConfigJson("toy_t"), tensors);
    const auto source = OpenModel(folder.path());
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ((*source)->config().weight_format, name);
    EXPECT_EQ((*source)->config().weight_dtype, dtype);
  }
}

// A tied model may carry lm_head all the same; an untied one needs it.
TEST(OpenModel, OutputMatrixFollowsTheConfig) {
  std::vector<SafetensorsSpec> tensors = TinyTensors(TinyConfig("toy_t"));
  Json tied = TinyConfigJson("toy_t");
  tied["tie_word_embeddings"] = true;
  const TemporaryFolder with;
  WriteModelFolder(with, tied, tensors);
  const auto source = OpenModel(with.path());
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->Find(WeightRole::kOutput, -1), nullptr);

  tensors.pop_back();
  const TemporaryFolder without;
  WriteModelFolder(without, TinyConfigJson("toy_t"), tensors);
  EXPECT_THAT(Refusal(without.path()), HasSubstr("tensor lm_head.weight is missing"));
}

TEST(OpenModel, IgnoresFrequencyTablesOfOldFiles) {
  std::vector<SafetensorsSpec> tensors = TinyTensors(TinyConfig("toy_t"));
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1}, "0000"});
  const TemporaryFolder folder;
  WriteModelFolder(folder, TinyConfigJson("toy_t"), tensors);
  EXPECT_EQ(Refusal(folder.path()), "");
}

class ShardedFolder : public ::testing::Test {
 protected:
  void SetUp() override { WriteTinyModel(folder_, "toy_t", 3); }
  std::string Shard(int number) const {
    return folder_.Path("model-0000" + std::to_string(number) + "-of-00003.safetensors");
  }
  TemporaryFolder folder_;
};

TEST_F(ShardedFolder, Case_050_MissingOrRenamedShardIsNamed) {
  fs::rename(Shard(2), folder_.Path("other.safetensors"));
  EXPECT_THAT(Refusal(folder_.path()),
              HasSubstr("model-00002-of-00003.safetensors: cannot be opened"));
  fs::remove(folder_.Path("other.safetensors"));
  EXPECT_THAT(Refusal(folder_.path()),
              HasSubstr("model-00002-of-00003.safetensors: cannot be opened"));
}

TEST_F(ShardedFolder, Case_050_CutShardIsNamed) {
  const auto size = fs::file_size(Shard(3));
  for (const uintmax_t cut : {uintmax_t{1}, uintmax_t{4096}, size - 4096, size}) {
    fs::resize_file(Shard(3), size - cut);
    EXPECT_THAT(Refusal(folder_.path()), HasSubstr("model-00003-of-00003.safetensors: ")) << cut;
    fs::resize_file(Shard(3), size);
  }
}

TEST_F(ShardedFolder, Case_050_SwappedShardsAreRefused) {
  fs::rename(Shard(1), folder_.Path("x"));
  fs::rename(Shard(2), Shard(1));
  fs::rename(folder_.Path("x"), Shard(2));
  EXPECT_THAT(Refusal(folder_.path()), HasSubstr("model.safetensors.index.json puts in"));
}

TEST_F(ShardedFolder, Case_050_UnlistedShardIsIgnored) {
  folder_.Write("extra.safetensors", "not even a header");
  EXPECT_EQ(Refusal(folder_.path()), "");
}

TEST_F(ShardedFolder, Case_050_ListedTensorThatIsNowhereIsNamed) {
  std::ifstream in(folder_.Path("model.safetensors.index.json"));
  Json index = Json::parse(in);
  index["weight_map"]["model.ghost.weight"] = fs::path(Shard(2)).filename().string();
  folder_.Write("model.safetensors.index.json", index.dump());
  EXPECT_THAT(Refusal(folder_.path()), HasSubstr("does not hold tensor model.ghost.weight"));
}

// Biases and per-head norms are the architecture's or the config's, never a guess.
TEST(OpenModel, Case_052_BiasAndNormTensorsMustMatchTheConfig) {
  const std::vector<SafetensorsSpec> plain = TinyTensors(TinyConfig("toy_t"));
  Json biased = TinyConfigJson("toy_t");
  biased["attention_bias"] = true;
  const TemporaryFolder absent;
  WriteModelFolder(absent, biased, plain);
  EXPECT_THAT(Refusal(absent.path()), HasSubstr("self_attn.q_proj.bias is missing"));

  std::vector<SafetensorsSpec> surplus = plain;
  surplus.push_back({"model.layers.0.self_attn.q_proj.bias", "F32", {64}, std::string(256, 'x')});
  const TemporaryFolder silent;
  WriteModelFolder(silent, TinyConfigJson("toy_t"), surplus);
  EXPECT_THAT(Refusal(silent.path()),
              HasSubstr("q_proj.bias is not part of a model of this config"));

  const TemporaryFolder both;  // Qwen3 with attention_bias: four biases and two norms a layer
  Json qwen3 = TinyConfigJson("qwen3");
  qwen3["attention_bias"] = true;
  ModelConfig config = TinyConfig("qwen3");
  config.qkv_bias = config.o_bias = true;
  WriteModelFolder(both, qwen3, TinyTensors(config));
  const auto source = OpenModel(both.path());
  ASSERT_TRUE(source.ok()) << source.status();
  for (const WeightRole role : {WeightRole::kQueryBias, WeightRole::kAttentionOutputBias,
                                WeightRole::kQueryNorm, WeightRole::kKeyNorm}) {
    EXPECT_NE((*source)->Find(role, 1), nullptr);
  }
}

TEST(OpenModel, Fault_U4_PathsInConfigAreNotFollowed) {
  const TemporaryFolder folder;
  Json config = TinyConfigJson("toy_t");
  config.update({{"auto_map", {{"AutoConfig", "../../x.py"}}},
                 {"custom_code", "/etc/passwd"},
                 {"_name_or_path", "../../../etc"}});
  WriteModelFolder(folder, config, TinyTensors(TinyConfig("toy_t")));
  EXPECT_EQ(Refusal(folder.path()), "");
}

TEST(OpenModel, TheWeightFileMayBeALink) {
  const TemporaryFolder outside;
  WriteTinyModel(outside, "toy_t");
  const TemporaryFolder folder;
  WriteTinyModel(folder, "toy_t");
  fs::remove(folder.Path("model.safetensors"));
  fs::create_symlink(outside.Path("model.safetensors"), folder.Path("model.safetensors"));
  EXPECT_EQ(Refusal(folder.path()), "");
  fs::remove(outside.Path("model.safetensors"));
  EXPECT_THAT(Refusal(folder.path()), HasSubstr("model.safetensors"));
}

// Moves a file of the snapshot among the blobs and leaves a link, as the cache does.
void MoveToBlob(const TemporaryFolder& cache, const std::string& snapshot,
                const std::string& name) {
  fs::create_directories(cache.Path("blobs"));
  fs::rename(snapshot + "/" + name, cache.Path("blobs/" + name + "-hash"));
  fs::create_symlink("../../blobs/" + name + "-hash", snapshot + "/" + name);
}

TEST(OpenModel, FoldersOfTheHuggingFaceCacheAreRead) {
  for (const int num_shards : {1, 3}) {
    const TemporaryFolder written;
    WriteTinyModel(written, "toy_t", num_shards);
    const TemporaryFolder cache;
    const std::string snapshot = cache.Path("snapshots/0123abcd");
    fs::create_directories(cache.Path("snapshots"));
    fs::copy(written.path(), snapshot);
    for (const auto& item : fs::directory_iterator(written.path())) {
      MoveToBlob(cache, snapshot, item.path().filename().string());
    }
    EXPECT_EQ(Refusal(snapshot), "") << num_shards;
  }
}

TEST(OpenModel, Fault_U4_LinkedShardsLeadNowhereElse) {
  const TemporaryFolder outside;
  WriteTinyModel(outside, "toy_t", 3);
  const TemporaryFolder cache;
  const std::string snapshot = cache.Path("snapshots/0123abcd");
  fs::create_directories(cache.Path("snapshots"));
  fs::create_directories(cache.Path("blobs"));
  fs::copy(outside.path(), snapshot);
  const std::string shard = snapshot + "/model-00002-of-00003.safetensors";
  fs::remove(shard);
  fs::create_symlink(outside.Path("model-00002-of-00003.safetensors"), shard);
  EXPECT_THAT(Refusal(snapshot), HasSubstr("is a link out of the folder"));
}

TEST(OpenModel, Fault_D7_FilesChangedWhileLoadingAreRefused) {
  const TemporaryFolder folder;
  WriteTinyModel(folder, "toy_t");
  const auto source = OpenModel(folder.path());
  ASSERT_TRUE(source.ok());
  const WeightTensor& last = *(*source)->Find(WeightRole::kOutput, -1);
  std::vector<std::byte> bytes(static_cast<size_t>(last.size_bytes));
  ASSERT_TRUE((*source)->Read(last, bytes).ok());
  fs::resize_file(folder.Path("model.safetensors"), 4096);
  EXPECT_THAT(StatusMessage((*source)->Read(last, bytes)),
              HasSubstr("changed while it was being read"));
}

// A loaded model holds copies: rewriting, cutting and deleting the file leave them alone.
TEST(OpenModel, Fault_D7_ReadWeightsSurviveWhateverHappensToTheFile) {
  const TemporaryFolder folder;
  WriteTinyModel(folder, "toy_t");
  auto source = OpenModel(folder.path());
  ASSERT_TRUE(source.ok());
  const std::string before = ReadBytes(**source, *(*source)->Find(WeightRole::kQuery, 1));
  folder.Write("model.safetensors", std::string(1000, '\xff'));
  fs::resize_file(folder.Path("model.safetensors"), 0);
  fs::remove(folder.Path("model.safetensors"));
  source->reset();
  float expected[8];
  FillHashedWeights("model.layers.1.self_attn.q_proj.weight", 1, 0, expected);
  EXPECT_EQ(before.substr(0, sizeof(expected)), FloatBytes(expected));
}

TEST(OpenModel, RefusesPathsThatAreNoModel) {
  const TemporaryFolder folder;
  EXPECT_EQ(OpenModel(folder.Path("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Refusal(folder.path()), HasSubstr("config.json: cannot be opened"));
  EXPECT_THAT(Refusal("/dev/null"), HasSubstr("is not a regular file"));
  ASSERT_EQ(::mkfifo(folder.Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(Refusal(folder.Path("pipe")), HasSubstr("is not a regular file"));
  folder.Write("config.json", TinyConfigJson("toy_t").dump());
  EXPECT_THAT(Refusal(folder.path()), HasSubstr("has neither model.safetensors nor"));
}

TEST(DummyModel, EqualsTheTinyModelOfTheSameConfig) {
  for (const char* name : {"toy_t", "qwen2", "qwen3"}) {
    const auto source = MakeDummyModel(TinyConfig(name), {}, 1);
    ExpectSameWeights(*source, TinyTensors(TinyConfig(name)));
  }
}

// Literals from tests/reference/write_tiny_model.py: hashed_weights(name, 3, seed).
TEST(DummyModel, ValuesAreThoseOfTheReferenceScript) {
  const auto values = [](const char* name, uint64_t seed) {
    std::vector<float> out(3);
    FillHashedWeights(name, seed, 0, out);
    return out;
  };
  EXPECT_EQ(
      values("model.embed_tokens.weight", 1),
      (std::vector<float>{-0.171362042427063f, -0.16064757108688354f, -0.011526495218276978f}));
  EXPECT_EQ(
      values("model.layers.1.self_attn.k_proj.weight", 1),
      (std::vector<float>{0.3322327136993408f, -0.014469712972640991f, -0.034335583448410034f}));
  EXPECT_EQ(
      values("model.layers.0.self_attn.q_proj.bias", 7),
      (std::vector<float>{0.09708410501480103f, 0.008014202117919922f, -0.00994199514389038f}));
  EXPECT_EQ(values("model.norm.weight", 1),
            (std::vector<float>{0.9583542346954346f, 0.9345862865447998f, 1.1728525161743164f}));
}

TEST(DummyModel, StoresTheDTypeOfTheConfig) {
  ModelConfig config = TinyConfig("toy_t");
  config.weight_dtype = DType::kBFloat16;
  const auto source = MakeDummyModel(config, {});
  EXPECT_EQ(source->config().weight_format, "BF16");
  const WeightTensor& tensor = *source->Find(WeightRole::kUp, 0);
  const std::string bytes = ReadBytes(*source, tensor);
  std::vector<float> values(bytes.size() / 2);
  FillHashedWeights(tensor.name, 1, 0, values);
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes.data() + 2 * i, sizeof(bits));
    ASSERT_EQ(bits, FloatToBFloat16(values[i]));
  }
}

TEST(DummyModel, OpensAFolderWithoutWeights) {
  const TemporaryFolder folder;
  folder.Write("config.json", TinyConfigJson("qwen3").dump());
  const auto source = OpenDummyModel(folder.path());
  ASSERT_TRUE(source.ok()) << source.status();
  ExpectSameWeights(**source, TinyTensors(TinyConfig("qwen3")));
}

}  // namespace
}  // namespace longspan
