// Hostile and odd texts: size, cancellation, bytes that are not UTF-8, special tokens in plain
// text.
#include "tokenizer/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/tokenizer/reference.h"
#include "tokenizer/tokenizer_json.h"

namespace longspan {
namespace {

using nlohmann::json;

constexpr size_t kFourMegabytes = 4 << 20;

std::unique_ptr<Tokenizer> Load(const json& document) {
  auto tokenizer = LoadTokenizerJson(document.dump());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

json Base(const std::string& file) { return ReadReference(file)["tokenizer"]; }

std::unique_ptr<Tokenizer> LoadVariant(const std::string& file, const std::string& name) {
  const json reference = ReadReference(file);
  for (const json& variant : reference["variants"]) {
    if (variant["name"] == name) return Load(VariantDocument(reference, variant));
  }
  ADD_FAILURE() << "no variant " << name;
  return nullptr;
}

std::string Repeated(const std::string& unit, size_t num_bytes) {
  std::string text;
  while (text.size() < num_bytes) text += unit;
  return text;
}

std::string BytesOf(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::string bytes;
  for (TokenId id : ids) tokenizer.AppendBytes(id, false, bytes);
  return bytes;
}

class FourMegabytes : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Of, FourMegabytes,
                         testing::Values("a", " ", "\u200d", "\u0301", "\n", "1", "="));

// The test's time limit is generous; a quadratic step anywhere would take hours.
TEST_P(FourMegabytes, AreNoBurden) {
  const std::string text = Repeated(GetParam(), kFourMegabytes);
  const auto byte_level = LoadVariant("byte_level", "smollm");
  auto ids = byte_level->Encode(text, {});
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_TRUE(BytesOf(*byte_level, *ids) == text);
  const auto one_piece = LoadVariant("sentencepiece", "llama-2");
  ids = one_piece->Encode(text, {.add_special_tokens = false});
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_TRUE(one_piece->Decode(*ids, false) == text);
}

TEST(Tokenizer, CombiningMarksInTheWrongOrderAreSortedInLinearithmicTime) {
  const auto tokenizer = LoadVariant("byte_level", "nfkc lowercase");
  const auto ids = tokenizer->Encode("a" + Repeated("\u0301\u0323", kFourMegabytes), {});
  ASSERT_TRUE(ids.ok()) << ids.status();
  // "ạ", the other dots below, then every acute accent.
  const std::string bytes = BytesOf(*tokenizer, *ids);
  const std::string dots = Repeated("\u0323", kFourMegabytes / 2 - 2);
  EXPECT_TRUE(bytes == "\u1EA1" + dots + Repeated("\u0301", kFourMegabytes / 2));
}

TEST(Tokenizer, EncodingStopsWhenItIsCancelled) {
  const std::atomic<bool> cancelled = true;
  for (const char* name : {"smollm", "llama-bpe"}) {
    const auto ids =
        LoadVariant("byte_level", name)->Encode(Repeated("a 1", kFourMegabytes), {}, &cancelled);
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kCancelled);
  }
  const std::atomic<bool> not_cancelled = false;
  EXPECT_TRUE(LoadVariant("byte_level", "smollm")->Encode("a 1", {}, &not_cancelled).ok());
}

TEST(Tokenizer, ATextOfMoreTokensThanAskedForIsRefusedEarlyAndOthersAreNot) {
  for (const char* family : {"byte_level", "sentencepiece"}) {
    const auto tokenizer = Load(Base(family));
    const std::string text = "the dog <s> 12345 <|end|> caf\u00E9";
    for (const bool special : {false, true}) {
      EncodeOptions options{.add_special_tokens = special, .parse_special_tokens = special};
      const auto all = tokenizer->Encode(text, options);
      ASSERT_TRUE(all.ok()) << all.status();
      options.max_tokens = static_cast<int64_t>(all->size());
      EXPECT_EQ(tokenizer->Encode(text, options).value(), *all);
      for (const int64_t max_tokens :
           {options.max_tokens - 1, options.max_tokens / 2, int64_t{0}}) {
        options.max_tokens = max_tokens;
        const Status status = tokenizer->Encode(text, options).status();
        EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << max_tokens;
        EXPECT_NE(StatusMessage(status).find(fmt::format("(limit {})", max_tokens)),
                  std::string::npos)
            << status;
      }
    }
  }
}

TEST(Tokenizer, BytesThatAreNotUtf8SurviveTheRoundTrip) {
  json byte_level = Base("byte_level");
  json& vocabulary = byte_level["model"]["vocab"];
  int32_t next = 7000;
  for (const char* text : {"Ą", "Ć", "À", "õ"}) vocabulary[text] = next++;  // now all 256 bytes
  const auto with_bytes = Load(byte_level);
  const auto with_fallback = Load(Base("sentencepiece"));
  const std::vector<std::string> texts = {"\xED\xA0\x80",
                                          "\xC0\x80",
                                          "\xF4\x8F\xBF\xBF",
                                          std::string("\0", 1),
                                          std::string("a\0b", 3),
                                          "\xFF\xFE\xFD",
                                          "caf\xC3",
                                          "\xE2\x82 \xAC",
                                          "the\x80\x80 dog\xF0\x9F\x98",
                                          "12\xFF"
                                          "34"};
  for (const std::string& text : texts) {
    const auto ids = with_bytes->Encode(text, {});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(BytesOf(*with_bytes, *ids), text);
    const auto fallback_ids = with_fallback->Encode(text, {.add_special_tokens = false});
    ASSERT_TRUE(fallback_ids.ok()) << fallback_ids.status();
    EXPECT_EQ(BytesOf(*with_fallback, *fallback_ids), " " + text) << "one space, in front only";
  }
}

TEST(Tokenizer, SpecialTokensInATextAreTextUnlessAskedFor) {
  const auto tokenizer = LoadVariant("byte_level", "smollm");
  const std::string text = "a<|end|>b<|end|>>c<s>";
  const auto plain = tokenizer->Encode(text, {});
  ASSERT_TRUE(plain.ok());
  for (TokenId id : *plain) EXPECT_FALSE(tokenizer->is_special(id));
  EXPECT_EQ(tokenizer->Decode(*plain, true), text);
  const auto parsed = tokenizer->Encode(text, {.parse_special_tokens = true});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(tokenizer->Decode(*parsed, false), text);
  EXPECT_EQ(tokenizer->Decode(*parsed, true), "abc");
}

TEST(Tokenizer, AWholePieceThatSpellsASpecialTokenIsText) {
  json document = Base("sentencepiece");
  document["normalizer"] = nullptr;
  document["model"]["ignore_merges"] = true;
  const auto tokenizer = Load(document);
  const auto ids = tokenizer->Encode("<s>", {.add_special_tokens = false});
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(BytesOf(*tokenizer, *ids), "<s>");
  for (TokenId id : *ids) EXPECT_FALSE(tokenizer->is_special(id));
}

TEST(Tokenizer, APatternThatBacktracksForEverFailsTheTextNotTheServer) {
  json document = Base("byte_level");
  document["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "(?:a+)+$"}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  const auto tokenizer = Load(document);
  EXPECT_TRUE(tokenizer->Encode("aaa", {}).ok());
  const auto ids = tokenizer->Encode(std::string(5000, 'a') + "!", {});
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Tokenizer, ThreadsShareOneTokenizer) {
  const auto tokenizer = LoadVariant("byte_level", "llama-bpe");
  const std::string text = Repeated("We'll see 12345 dogs, won't we?\n", 4096);
  const auto want = tokenizer->Encode(text, {});
  ASSERT_TRUE(want.ok());
  std::vector<std::thread> threads;
  std::atomic<int> num_equal = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const auto ids = tokenizer->Encode(text, {});
      if (ids.ok() && *ids == *want) ++num_equal;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_equal, 4);
}

}  // namespace
}  // namespace longspan
