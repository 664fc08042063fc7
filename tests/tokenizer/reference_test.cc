// Ids and text equal those of the `tokenizers` library: on the real SmolLM2 vocabulary (when its
// file is there) and on tiny committed tokenizers of every supported kind.
#include "tests/tokenizer/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/tokenizer/gguf_metadata.h"
#include "tokenizer/gguf_vocabulary.h"
#include "tokenizer/tokenizer_json.h"

namespace longspan {
namespace {

using nlohmann::json;

std::unique_ptr<Tokenizer> Load(const json& document) {
  auto tokenizer = LoadTokenizerJson(document.dump());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

// The tokenizer.json that says the same as a GGUF vocabulary with pre-tokenizer "smollm".
json ToTokenizerJson(const GgufVocabulary& vocabulary) {
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  json document = {{"version", "1.0"}, {"decoder", byte_level}, {"added_tokens", json::array()}};
  document["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, byte_level}}};
  json tokens = json::object();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    tokens[vocabulary.tokens[id]] = id;
    if (vocabulary.token_types[id] != 3) continue;
    document["added_tokens"].push_back(
        {{"id", id}, {"content", vocabulary.tokens[id]}, {"special", true}, {"normalized", false}});
  }
  document["model"] = {{"type", "BPE"}, {"vocab", tokens}, {"merges", vocabulary.merges}};
  return document;
}

class SmolLm2 : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto vocabulary = ReadTestModelVocabulary();
    if (!vocabulary)
      GTEST_SKIP() << "no model file: run scripts/fetch-model or set LONGSPAN_TEST_MODEL";
    if (std::string(GetParam()) == "gguf") {
      auto tokenizer = MakeGgufTokenizer(*std::move(vocabulary));
      ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
      tokenizer_ = *std::move(tokenizer);
    } else {
      tokenizer_ = Load(ToTokenizerJson(*vocabulary));
      ASSERT_NE(tokenizer_, nullptr);
    }
    reference_ = ReadReference("smollm");
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  json reference_;
};
INSTANTIATE_TEST_SUITE_P(From, SmolLm2, testing::Values("gguf", "json"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(SmolLm2, FiveHundredTextsHaveTheReferencesIdsAndText) {
  ASSERT_EQ(reference_["cases"].size(), 500u);
  ExpectCasesHold(*tokenizer_, reference_["cases"]);
}

TEST_P(SmolLm2, EverySingleIdReadsBackAsTheReferences) {
  ASSERT_EQ(tokenizer_->vocab_size(), reference_["vocab_size"]);
  const int32_t block = reference_["single_block"];
  for (int32_t begin = 0; begin < tokenizer_->vocab_size(); begin += block) {
    std::vector<std::string> texts;
    for (int32_t id = begin; id < std::min(begin + block, tokenizer_->vocab_size()); ++id) {
      texts.push_back(DecodeBothWays(*tokenizer_, {TokenId{id}}, false));
    }
    EXPECT_EQ(Digest(texts), reference_["single_digests"][begin / block]) << "from id " << begin;
  }
}

TEST_P(SmolLm2, TwentyThousandPairsReadBackAsTheReferences) {
  Lcg numbers(reference_["pair_seed"]);
  const size_t block = reference_["pair_block"];
  ASSERT_EQ(reference_["pair_digests"].size() * block, 20000u);
  for (size_t i = 0; i < reference_["pair_digests"].size(); ++i) {
    std::vector<std::string> texts;
    while (texts.size() < block) {
      const TokenId first{numbers.Next(tokenizer_->vocab_size())};
      const TokenId second{numbers.Next(tokenizer_->vocab_size())};
      texts.push_back(DecodeBothWays(*tokenizer_, {first, second}, false));
    }
    EXPECT_EQ(Digest(texts), reference_["pair_digests"][i]) << "block " << i;
  }
}

TEST_P(SmolLm2, ItsSpecialTokensAreTheFirstSeventeen) {
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    EXPECT_EQ(tokenizer_->is_special(TokenId{id}), id < 17) << id;
  }
}

TEST_P(SmolLm2, TwentyOneBytesHaveNoTokenAndAreDropped) {
  int num_dropped = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const auto ids = tokenizer_->Encode(std::string(1, static_cast<char>(byte)), {});
    ASSERT_TRUE(ids.ok());
    if (ids->empty()) {
      ++num_dropped;
      continue;
    }
    std::string back;
    for (TokenId id : *ids) tokenizer_->AppendBytes(id, false, back);
    EXPECT_EQ(back, std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(num_dropped, 21);
}

struct TinyVariant {
  std::string file;
  size_t index;
};

// All variants of the tiny tokenizers, or those that are families of GGUF files.
std::vector<TinyVariant> TinyVariants(bool only_gguf_families) {
  const std::vector<std::string> families = {"smollm", "gpt-2", "llama-bpe", "qwen2"};
  std::vector<TinyVariant> variants;
  for (const char* file : {"byte_level", "sentencepiece"}) {
    const json reference = ReadReference(file);
    for (size_t i = 0; i < reference["variants"].size(); ++i) {
      const std::string name = reference["variants"][i]["name"];
      const bool is_family = std::find(families.begin(), families.end(), name) != families.end();
      if (is_family || !only_gguf_families) variants.push_back({file, i});
    }
  }
  return variants;
}

class TinyTokenizer : public testing::TestWithParam<TinyVariant> {
 protected:
  void SetUp() override {
    reference_ = ReadReference(GetParam().file);
    variant_ = reference_["variants"][GetParam().index];
  }
  json reference_;
  json variant_;
};
std::string VariantName(const testing::TestParamInfo<TinyVariant>& test) {
  return test.param.file + "_" + std::to_string(test.param.index);
}
using TinyGgufTokenizer = TinyTokenizer;
INSTANTIATE_TEST_SUITE_P(Variants, TinyTokenizer, testing::ValuesIn(TinyVariants(false)),
                         VariantName);
INSTANTIATE_TEST_SUITE_P(Variants, TinyGgufTokenizer, testing::ValuesIn(TinyVariants(true)),
                         VariantName);

TEST_P(TinyTokenizer, HasTheReferencesIdsAndText) {
  SCOPED_TRACE(variant_["name"]);
  const auto tokenizer = Load(VariantDocument(reference_, variant_));
  ASSERT_NE(tokenizer, nullptr);
  ExpectCasesHold(*tokenizer, variant_["cases"]);
  const auto with_template =
      tokenizer->Encode("the 1 <s>", {.add_special_tokens = true, .parse_special_tokens = true});
  ASSERT_TRUE(with_template.ok());
  EXPECT_EQ(json(*with_template), variant_["with_template"]);
}

// The vocabulary and merges of a tokenizer.json as GGUF values. `peculiar`: added tokens whose
// flags a GGUF file cannot express.
GgufVocabulary ToGgufVocabulary(const json& document, std::vector<std::string>& peculiar) {
  GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.add_bos = false;
  const json& tokens = document["model"]["vocab"];
  vocabulary.tokens.resize(tokens.size() + document["added_tokens"].size());
  vocabulary.token_types.assign(vocabulary.tokens.size(), 1);
  for (const auto& [text, id] : tokens.items()) vocabulary.tokens[id.get<size_t>()] = text;
  for (const json& added : document["added_tokens"]) {
    const size_t id = added["id"];
    const bool is_special = added["special"];
    vocabulary.tokens[id] = added["content"];
    vocabulary.token_types[id] = is_special ? 3 : 4;
    if (!is_special) peculiar.push_back(added["content"]);
  }
  for (const json& merge : document["model"]["merges"]) {
    vocabulary.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  return vocabulary;
}

TEST_P(TinyGgufTokenizer, HasTheReferencesIdsAndText) {
  std::vector<std::string> peculiar;
  GgufVocabulary vocabulary = ToGgufVocabulary(reference_["tokenizer"], peculiar);
  vocabulary.pre = variant_["name"];
  const auto tokenizer = MakeGgufTokenizer(std::move(vocabulary));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  json cases = json::array();
  for (const json& item : variant_["cases"]) {
    const auto text = item["text"].get<std::string>();
    const bool is_peculiar = std::any_of(
        peculiar.begin(), peculiar.end(),
        [&](const std::string& content) { return text.find(content) != std::string::npos; });
    if (!is_peculiar) cases.push_back(item);
  }
  EXPECT_GT(cases.size(), 150u);
  ExpectCasesHold(**tokenizer, cases);
}

TEST(TinyTokenizers, EveryPairOfIdsReadsBackAsTheReferences) {
  for (const char* file : {"byte_level", "sentencepiece"}) {
    const json reference = ReadReference(file);
    const auto tokenizer = Load(reference["tokenizer"]);
    ASSERT_NE(tokenizer, nullptr);
    ASSERT_EQ(tokenizer->vocab_size(), reference["vocab_size"]);
    for (int32_t first = 0; first < tokenizer->vocab_size(); ++first) {
      std::vector<std::string> texts;
      for (int32_t second = 0; second < tokenizer->vocab_size(); ++second) {
        texts.push_back(DecodeBothWays(*tokenizer, {TokenId{first}, TokenId{second}}, false));
      }
      EXPECT_EQ(Digest(texts), reference["pair_digests"][first]) << file << " first id " << first;
    }
  }
}

}  // namespace
}  // namespace longspan
