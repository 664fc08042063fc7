// Translated patterns match what Oniguruma's would; what cannot be translated is refused by name.
#include "tokenizer/oniguruma_pattern.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tokenizer/regex.h"
#include "tokenizer/regex_matches.h"

namespace longspan {
namespace {

// All matches of a pattern in Oniguruma's syntax.
std::vector<std::string> Matches(const std::string& pattern, const std::string& text) {
  const auto translated = TranslateOnigurumaPattern(pattern);
  EXPECT_TRUE(translated.ok()) << pattern << ": " << translated.status();
  if (!translated.ok()) return {};
  const auto regex = Regex::Compile(*translated);
  EXPECT_TRUE(regex.ok()) << *translated << ": " << regex.status();
  if (!regex.ok()) return {};
  RegexScratch scratch;
  std::vector<std::string> matches;
  EXPECT_TRUE(ForEachMatch(*regex, text, scratch, [&](size_t begin, size_t end, bool is_match) {
                if (is_match) matches.push_back(text.substr(begin, end - begin));
                return absl::OkStatus();
              }).ok());
  return matches;
}

using Strings = std::vector<std::string>;

TEST(OnigurumaPattern, WhiteSpaceIsTheUnicodePropertyNotPerls) {
  EXPECT_EQ(Matches("\\s", "a\u180E\u3000\u0085b"), (Strings{"\u3000", "\u0085"}));
  EXPECT_EQ(Matches("[^\\s]", "\u2003\u180E"), (Strings{"\u180E"}));
  EXPECT_EQ(Matches("[\\S]+", "a\u180E b"), (Strings{"a\u180E", "b"}));
}

TEST(OnigurumaPattern, DigitsAreUnicodeDecimalDigits) {
  EXPECT_EQ(Matches("\\d", "1½٣"), (Strings{"1", "٣"}));
  EXPECT_EQ(Matches("\\D", "1x"), (Strings{"x"}));
}

TEST(OnigurumaPattern, LettersAndNumbersKnowUnicode16) {
  EXPECT_EQ(Matches("\\p{L}", "\u1C89"), (Strings{"\u1C89"}));
  EXPECT_EQ(Matches("\\P{L}", "\u1C89-"), (Strings{"-"}));
  EXPECT_EQ(Matches("\\p{^N}", "\U00010D40-"), (Strings{"-"}));
}

TEST(OnigurumaPattern, ScriptsAreScriptsNotScriptExtensions) {
  EXPECT_EQ(Matches("\\p{Han}", "漢、"), (Strings{"漢"}));
}

TEST(OnigurumaPattern, CaretAndDollarMeanLines) {
  EXPECT_EQ(Matches("^.", "ab\ncd"), (Strings{"a", "c"}));
  EXPECT_EQ(Matches(".$", "ab\ncd"), (Strings{"b", "d"}));
  EXPECT_EQ(Matches("\\A.", "ab\ncd"), (Strings{"a"}));
}

TEST(OnigurumaPattern, EscapesThatDifferAreRewritten) {
  EXPECT_EQ(Matches("\\v", "\n\v"), (Strings{"\v"}));
  EXPECT_EQ(Matches("\\u00e9|\\x{20AC}|\\x41", "Aé€"), (Strings{"A", "é", "€"}));
  EXPECT_EQ(Matches("a{,2}b", "aaab"), (Strings{"aab"}));
  EXPECT_EQ(Matches("[\\]\\-\\\\]", "]-\\"), (Strings{"]", "-", "\\"}));
  EXPECT_EQ(Matches("[+--]", "+,-."), (Strings{"+", ",", "-"}));
}

TEST(OnigurumaPattern, CaseIsFoldedAsUnicodeDoes) {
  EXPECT_EQ(Matches("(?i:'s|'k)", "'S'\u017F'\u212A"), (Strings{"'S", "'\u017F", "'\u212A"}));
}

TEST(OnigurumaPattern, WhatMeansSomethingElseIsRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\\w+", "\\w"},
      {"\\bx", "\\b"},
      {"\\h", "\\h"},
      {"\\R", "\\R"},
      {"(a)\\1", "\\1"},
      {"x\\K", "\\K"},
      {"(?i)x", "group"},
      {"(?m:x)", "group"},
      {"(?<n>x)", "group"},
      {"(*ACCEPT)", "group"},
      {"[a[b]]", "class"},
      {"[a&&b]", "intersection"},
      {"[[:alpha:]]", "class"},
      {"[]", "empty class"},
      {"[a", "not closed"},
      {"a{2}+", "repeat"},
      {"a{2}?", "repeat"},
      {"a**", "repeat"},
      {"{x", "repeat count"},
      {"(?i:ss)", "ligature"},
      {"(?i:é)", "ASCII"},
      {"(?i:[^a])", "negated"},
      {"(?i:\\p{Lu})", "property"},
      {"(a", "not closed"},
      {"a)", "unmatched"},
      {"\\p{L", "\\p"},
      {"\\xff", "escape"},
      {"\\x{110000}", "escape"},
      {"\\", "backslash"},
      {"\\\n", "control character 10"},
      {"[\\s-z]", "range"},
      {"[z-a]", "backwards"},
      {"[\\P{L}]", "complement"},
  };
  for (const auto& [pattern, name] : cases) {
    const auto translated = TranslateOnigurumaPattern(pattern);
    ASSERT_FALSE(translated.ok()) << pattern << " became " << *translated;
    EXPECT_NE(StatusMessage(translated.status()).find(name), std::string::npos)
        << pattern << ": " << translated.status();
    EXPECT_EQ(StatusMessage(translated.status()).find('\n'), std::string::npos) << "one line";
  }
}

TEST(OnigurumaPattern, AnUnknownScriptIsRefusedByPcre2) {
  const auto translated = TranslateOnigurumaPattern("\\p{Klingon}");
  ASSERT_TRUE(translated.ok());
  EXPECT_FALSE(Regex::Compile(*translated).ok());
}

TEST(Regex, APatternThatBacktracksForEverGivesUp) {
  RegexScratch scratch;
  const std::string text = std::string(5000, 'a') + "!";
  for (const char* pattern : {"^(a+)+$", "^(a|aa)+$", "^(a|a)*$"}) {
    const auto regex = Regex::Compile(pattern);
    ASSERT_TRUE(regex.ok());
    const auto match = regex->Find(text, 0, scratch);
    ASSERT_FALSE(match.ok()) << pattern;
    EXPECT_EQ(match.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(Regex, APatternOverTheLimitIsRefused) {
  EXPECT_FALSE(Regex::Compile(std::string(70000, 'a')).ok());
  EXPECT_FALSE(Regex::Compile(std::string(1000, '(') + std::string(1000, ')')).ok());
}

}  // namespace
}  // namespace longspan
