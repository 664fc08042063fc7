// From tokenizer.ggml.* values to a tokenizer: token types, BOS and EOS, and what is refused by
// name.
#include "tokenizer/gguf_vocabulary.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace longspan {
namespace {

GgufVocabulary Tiny() {
  GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "smollm";
  vocabulary.tokens = {"<s>", "a", "b", "ab", "<user>", "[PAD5]"};
  vocabulary.token_types = {3, 1, 1, 1, 4, 5};
  vocabulary.merges = {"a b"};
  vocabulary.bos_id = 0;
  vocabulary.eos_id = 0;
  return vocabulary;
}

std::vector<TokenId> Ids(std::initializer_list<int32_t> ids) {
  std::vector<TokenId> list;
  for (int32_t id : ids) list.push_back(TokenId{id});
  return list;
}

TEST(GgufVocabulary, ControlTokensAreParsedOnRequestAndUserDefinedOnesAlways) {
  const auto tokenizer = MakeGgufTokenizer(Tiny());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = "<s>ab<user>";
  EXPECT_EQ(*(*tokenizer)->Encode(text, {.parse_special_tokens = true}), Ids({0, 3, 4}));
  EXPECT_EQ(*(*tokenizer)->Encode(text, {.parse_special_tokens = false}), Ids({3, 4}))
      << "the characters of <s> have no token here";
  EXPECT_TRUE((*tokenizer)->is_special(TokenId{0}));
  EXPECT_FALSE((*tokenizer)->is_special(TokenId{4}));
  EXPECT_EQ((*tokenizer)->kind(), "byte_level_bpe");
}

TEST(GgufVocabulary, PaddingTokensCountButStandForNothing) {
  const auto tokenizer = MakeGgufTokenizer(Tiny());
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ((*tokenizer)->vocab_size(), 6);
  EXPECT_EQ((*tokenizer)->Decode(Ids({1, 5, 2}), false), "ab");
  EXPECT_EQ(*(*tokenizer)->Encode("[PAD5]", {.parse_special_tokens = true}), Ids({}));
}

TEST(GgufVocabulary, BosAndEosAreAddedAsTheFileSays) {
  GgufVocabulary vocabulary = Tiny();
  vocabulary.add_bos = true;
  vocabulary.add_eos = true;
  const auto tokenizer = MakeGgufTokenizer(vocabulary);
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ(*(*tokenizer)->Encode("", {}), Ids({0, 0}));
  EXPECT_EQ(*(*tokenizer)->Encode("", {.add_special_tokens = false}), Ids({}));
}

TEST(GgufVocabulary, TheLlamaFamilyAddsBosUnlessTheFileSaysNo) {
  GgufVocabulary vocabulary = Tiny();
  vocabulary.pre = "llama-bpe";
  EXPECT_EQ(*(*MakeGgufTokenizer(vocabulary))->Encode("a", {}), Ids({0, 1}));
  vocabulary.add_bos = false;
  EXPECT_EQ(*(*MakeGgufTokenizer(vocabulary))->Encode("a", {}), Ids({1}));
}

TEST(GgufVocabulary, FaultsAreRefusedByName) {
  const std::vector<std::pair<std::string, std::function<void(GgufVocabulary&)>>> faults = {
      {"tokenizer.ggml.model \"llama\" is not supported", [](auto& v) { v.model = "llama"; }},
      {"tokenizer.ggml.pre \"new\\npre\" is not supported", [](auto& v) { v.pre = "new\npre"; }},
      {"tokenizer.ggml.pre \"\" is not supported", [](auto& v) { v.pre = ""; }},
      {"0 tokens", [](auto& v) { v.tokens.clear(); }},
      {"5 entries for 6 tokens", [](auto& v) { v.token_types.pop_back(); }},
      {"tokens[1]: empty", [](auto& v) { v.tokens[1] = ""; }},
      {"tokens[0]: empty", [](auto& v) { v.tokens[0] = ""; }},
      {"tokens[1]: not UTF-8", [](auto& v) { v.tokens[1] = "\xFF"; }},
      {"tokens[2]: \"a\" appears twice", [](auto& v) { v.tokens[2] = "a"; }},
      {"token_type[1]: type 6", [](auto& v) { v.token_types[1] = 6; }},
      {"token_type[1]: type 0", [](auto& v) { v.token_types[1] = 0; }},
      {"token_type[1]: type -1", [](auto& v) { v.token_types[1] = -1; }},
      {"tokens[4]: added token of 300 bytes", [](auto& v) { v.tokens[4] = std::string(300, 'x'); }},
      {"merge \"ab\" is not", [](auto& v) { v.merges = {"ab"}; }},
      {"merge \"a b \" is not", [](auto& v) { v.merges = {"a b "}; }},
      {"token \"ba\" is not in the vocabulary", [](auto& v) { v.merges = {"b a"}; }},
      {"token \"c\" is not in the vocabulary", [](auto& v) { v.merges = {"a c"}; }},
      {"token \"<s>\" is not in the vocabulary", [](auto& v) { v.merges = {"<s> a"}; }},
      {"bos_token_id: id 6 is not in the vocabulary", [](auto& v) { v.bos_id = 6; }},
      {"eos_token_id: id -1 is not in the vocabulary", [](auto& v) { v.eos_id = -1; }},
      {"unknown_token_id: id 4294967296", [](auto& v) { v.unk_id = int64_t{1} << 32; }},
      {"add_bos_token is set without",
       [](auto& v) {
         v.add_bos = true;
         v.bos_id.reset();
       }},
      {"add_eos_token is set without",
       [](auto& v) {
         v.add_eos = true;
         v.eos_id.reset();
       }},
  };
  for (const auto& [name, make] : faults) {
    GgufVocabulary vocabulary = Tiny();
    make(vocabulary);
    const auto tokenizer = MakeGgufTokenizer(std::move(vocabulary));
    ASSERT_FALSE(tokenizer.ok()) << name;
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(StatusMessage(tokenizer.status()).find(name), std::string::npos)
        << tokenizer.status();
  }
}

}  // namespace
}  // namespace longspan
