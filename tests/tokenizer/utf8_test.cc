// Strict decoding and repair of broken text, with the Unicode standard's own examples.
#include "tokenizer/utf8.h"

#include <gtest/gtest.h>

namespace longspan {
namespace {

// The text as a whole document: an incomplete end is one U+FFFD as well.
std::string Repaired(std::string_view text) {
  std::string out;
  if (AppendWholeCharacters(text, out) < text.size()) out += kReplacementCharacter;
  return out;
}

TEST(Utf8, EveryCodePointSurvivesEncodingAndDecoding) {
  for (char32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(code, text);
    const Utf8Character character = DecodeUtf8(text);
    ASSERT_EQ(character.state, Utf8State::kValid);
    ASSERT_EQ(character.code, code);
    ASSERT_EQ(character.num_bytes, text.size());
  }
}

TEST(Utf8, EachMaximalSubpartIsOneReplacementCharacter) {
  const std::string bad(kReplacementCharacter);
  // The example of the Unicode standard, chapter 3, table 3-8 and following.
  EXPECT_EQ(Repaired("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            bad + bad + bad + bad + bad + bad + bad + bad + "A");
  EXPECT_EQ(Repaired("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            bad + bad + bad + bad + bad + bad + bad + bad + "A");
  EXPECT_EQ(Repaired("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            bad + bad + bad + bad + bad + "A" + bad + bad + "B");
  EXPECT_EQ(Repaired("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), bad + bad + bad + bad + "A");
  EXPECT_EQ(Repaired("\xF0\x9F\x98"), bad);
}

TEST(Utf8, AnIncompleteEndIsLeftForLater) {
  std::string out;
  EXPECT_EQ(AppendWholeCharacters("a\xE2\x82", out), 1u);
  EXPECT_EQ(out, "a");
}

TEST(Utf8, StretchesAlternateBetweenValidAndInvalid) {
  const std::string_view text = "ab\xFF\xC0\x80\xC3\xA9";
  EXPECT_EQ(FirstUtf8Stretch(text).num_bytes, 2u);
  EXPECT_TRUE(FirstUtf8Stretch(text).is_valid);
  EXPECT_EQ(FirstUtf8Stretch(text.substr(2)).num_bytes, 3u);
  EXPECT_FALSE(FirstUtf8Stretch(text.substr(2)).is_valid);
  EXPECT_EQ(FirstUtf8Stretch(text.substr(5)).num_bytes, 2u);
}

}  // namespace
}  // namespace longspan
