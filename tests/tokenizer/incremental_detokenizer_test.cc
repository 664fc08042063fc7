// Streams of ids become whole characters, joined equal to decoding them at once.
#include "tokenizer/incremental_detokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/tokenizer/reference.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/gguf_vocabulary.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/utf8.h"

namespace longspan {
namespace {

using nlohmann::json;

// Ids 0..255 are the bytes, 256 is the control token "<end>".
std::unique_ptr<Tokenizer> BytesTokenizer() {
  GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    AppendUtf8(ByteLevelCharacter(static_cast<unsigned char>(byte)), text);
    vocabulary.tokens.push_back(text);
  }
  vocabulary.tokens.push_back("<end>");
  vocabulary.token_types.assign(256, 1);
  vocabulary.token_types.push_back(3);
  auto tokenizer = MakeGgufTokenizer(std::move(vocabulary));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

TokenId ByteId(char byte) { return TokenId{static_cast<uint8_t>(byte)}; }

TEST(IncrementalDetokenizer, Case_019_TheLengthLimitMayFallInsideACharacter) {
  const auto tokenizer = BytesTokenizer();
  for (const std::string character : {"\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
    for (size_t max_tokens = 1; max_tokens <= 4; ++max_tokens) {
      const std::string text = character + character;  // more than the limit
      IncrementalDetokenizer stream(*tokenizer, true);
      std::string streamed;
      std::vector<TokenId> ids;
      for (size_t i = 0; i < max_tokens; ++i) {
        ids.push_back(ByteId(text[i]));
        const std::string delta = stream.Append(ids.back());
        EXPECT_TRUE(IsValidUtf8(delta));
        EXPECT_EQ(delta.find(kReplacementCharacter), std::string::npos) << "too early";
        streamed += delta;
      }
      const size_t num_whole = max_tokens / character.size();
      std::string want;
      for (size_t i = 0; i < num_whole; ++i) want += character;
      EXPECT_EQ(streamed, want);
      if (max_tokens % character.size() != 0) want += kReplacementCharacter;
      streamed += stream.Finish();
      EXPECT_EQ(streamed, want);
      EXPECT_EQ(streamed, tokenizer->Decode(ids, true));
    }
  }
}

TEST(IncrementalDetokenizer, RandomBytesStreamAsTheyDecode) {
  const auto tokenizer = BytesTokenizer();
  std::mt19937 random(3);
  const std::string favourites = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xED\xA0\xFF\xC0";
  for (int round = 0; round < 5000; ++round) {
    std::vector<TokenId> ids;
    for (size_t i = random() % 12; i > 0; --i) {
      ids.push_back(ByteId(favourites[random() % favourites.size()]));
    }
    DecodeBothWays(*tokenizer, ids, false);
  }
}

TEST(IncrementalDetokenizer, BrokenBytesLeaveAsSoonAsTheyCannotBecomeACharacter) {
  const auto tokenizer = BytesTokenizer();
  IncrementalDetokenizer stream(*tokenizer, true);
  EXPECT_EQ(stream.Append(ByteId('\xE2')), "");
  EXPECT_EQ(stream.Append(ByteId('a')), std::string(kReplacementCharacter) + "a");
  EXPECT_EQ(stream.Append(ByteId('\xFF')), kReplacementCharacter);
  EXPECT_EQ(stream.Finish(), "");
}

TEST(IncrementalDetokenizer, SpecialTokensAreLeftOutOnRequestEvenInsideACharacter) {
  const auto tokenizer = BytesTokenizer();
  const std::vector<TokenId> ids = {ByteId('\xC3'), TokenId{256}, ByteId('\xA9')};
  EXPECT_EQ(DecodeBothWays(*tokenizer, ids, true), "é");
  const std::string bad(kReplacementCharacter);
  EXPECT_EQ(DecodeBothWays(*tokenizer, ids, false), bad + "<end>" + bad);
}

TEST(IncrementalDetokenizer, IdsWithoutATokenGiveNothing) {
  const auto tokenizer = BytesTokenizer();
  for (int32_t id : {-1, 257, 1 << 30, INT32_MIN, INT32_MAX}) {
    EXPECT_EQ(DecodeBothWays(*tokenizer, {ByteId('a'), TokenId{id}, ByteId('b')}, false), "ab");
    EXPECT_FALSE(tokenizer->is_special(TokenId{id}));
  }
}

// Only a document loses the space that its tokenizer put in front; the continuation of a prompt
// keeps the space before its first word.
TEST(IncrementalDetokenizer, AContinuationKeepsItsFirstSpace) {
  const json document = ReadReference("sentencepiece")["tokenizer"];
  const auto tokenizer = LoadTokenizerJson(document.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto ids = (*tokenizer)->Encode("the dog", {.add_special_tokens = false});
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ((*tokenizer)->Decode(*ids, true), "the dog");
  IncrementalDetokenizer continuation(**tokenizer, true);
  std::string text;
  for (TokenId id : *ids) text += continuation.Append(id);
  EXPECT_EQ(text + continuation.Finish(), " the dog");
}

}  // namespace
}  // namespace longspan
