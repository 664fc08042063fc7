// Stop strings against a slow search of the whole text, in random pieces, and the cases where naive
// matchers cut wrong.
#include "tokenizer/stop_string_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tokenizer/utf8.h"

namespace longspan {
namespace {

struct Result {
  std::string text;
  std::optional<size_t> matched;
  size_t num_pieces = 0;  // that were taken until the match
};

Result Match(const std::vector<std::string>& stops, bool include,
             const std::vector<std::string>& pieces) {
  auto matcher = StopStringMatcher::Create(stops, include);
  EXPECT_TRUE(matcher.ok()) << matcher.status();
  Result result;
  for (const std::string& piece : pieces) {
    const StopStringMatcher::Output output = matcher->Append(piece);
    result.text += output.text;
    if (!result.matched) ++result.num_pieces;
    if (output.matched) {
      EXPECT_FALSE(result.matched) << "a second match";
      result.matched = output.matched;
    }
  }
  result.text += matcher->Finish();
  return result;
}

// What the class promises, the slow way: the first byte at which a stop string is complete; of
// several, the longest.
Result Oracle(const std::vector<std::string>& stops, bool include, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t i = 0; i < stops.size(); ++i) {
      const bool is_complete = text.substr(0, end).ends_with(stops[i]);
      if (is_complete && (!best || stops[*best].size() < stops[i].size())) best = i;
    }
    if (best) return {text.substr(0, include ? end : end - stops[*best].size()), best, 0};
  }
  return {text, std::nullopt, 0};
}

struct Case021 {
  std::vector<std::string> stops;
  std::string text;
  std::string text_with_stop;
  std::string matched;
  size_t num_tokens;
};

TEST(StopStringMatcher, Case_021_StopStringsAcrossTokens) {
  const std::vector<std::string> tokens = {"foo ", "ba", "rba", "z qux"};
  const std::vector<Case021> cases = {
      {{"barb"}, "foo ", "foo barb", "barb", 3},
      {{"rb"}, "foo ba", "foo barb", "rb", 3},
      {{"az"}, "foo barb", "foo barbaz", "az", 4},
      {{"oo b", "o"}, "f", "fo", "o", 1},
  };
  const std::string all = "foo barbaz qux";
  for (const Case021& item : cases) {
    const Result one_by_one = Match(item.stops, false, tokens);
    EXPECT_EQ(one_by_one.text, item.text);
    ASSERT_TRUE(one_by_one.matched);
    EXPECT_EQ(item.stops[*one_by_one.matched], item.matched);
    EXPECT_EQ(one_by_one.num_pieces, item.num_tokens);
    EXPECT_EQ(Match(item.stops, false, {all}).text, item.text) << "in one burst";
    EXPECT_EQ(Match(item.stops, true, tokens).text, item.text_with_stop);
    EXPECT_EQ(Match(item.stops, true, {all}).text, item.text_with_stop) << "in one burst";
  }
}

TEST(StopStringMatcher, Case_021_NothingPastTheCutIsEverReleased) {
  auto matcher = StopStringMatcher::Create({"barb"}, false);
  ASSERT_TRUE(matcher.ok());
  EXPECT_EQ(matcher->Append("foo ").text, "foo ");
  EXPECT_EQ(matcher->Append("ba").text, "");
  const StopStringMatcher::Output end = matcher->Append("rba");
  EXPECT_EQ(end.text, "");
  EXPECT_EQ(end.matched, 0u);
  EXPECT_EQ(matcher->Append("z qux").text, "");
  EXPECT_EQ(matcher->Finish(), "");
}

TEST(StopStringMatcher, TheShorterStringThatIsCompleteFirstWins) {
  EXPECT_EQ(Match({"abcd", "bc"}, false, {"xabcd"}).text, "xa");
  EXPECT_EQ(Match({"abcd", "bc"}, false, {"xab", "cd"}).text, "xa");
}

TEST(StopStringMatcher, OfTwoThatEndTogetherTheOneThatStartsFirstWins) {
  const Result result = Match({"rb", "barb"}, false, {"foo barb"});
  EXPECT_EQ(result.text, "foo ");
  EXPECT_EQ(result.matched, 1u);
}

TEST(StopStringMatcher, HeldBackTextLeavesWhenItCannotBeAStopStringAnyMore) {
  auto matcher = StopStringMatcher::Create({"aab"}, false);
  ASSERT_TRUE(matcher.ok());
  EXPECT_EQ(matcher->Append("aa").text, "");
  EXPECT_EQ(matcher->Append("a").text, "a");
  EXPECT_EQ(matcher->Append("c").text, "aac");
}

TEST(StopStringMatcher, WhatIsHeldBackComesOutAtTheEnd) {
  const Result result = Match({"stop"}, false, {"do not sto"});
  EXPECT_EQ(result.text, "do not sto");
  EXPECT_FALSE(result.matched);
}

TEST(StopStringMatcher, WithoutStopStringsEverythingPassesAtOnce) {
  auto matcher = StopStringMatcher::Create({}, false);
  ASSERT_TRUE(matcher.ok());
  EXPECT_EQ(matcher->Append("anything").text, "anything");
}

TEST(StopStringMatcher, HoldsBackLessThanTheLongestStopString) {
  const std::string stop(1024, 'a');
  auto matcher = StopStringMatcher::Create({stop + "b", "a"}, false);
  EXPECT_FALSE(matcher.ok()) << "1,025 bytes are over the limit";
  matcher = StopStringMatcher::Create({stop}, false);
  ASSERT_TRUE(matcher.ok());
  size_t num_released = 0;
  for (int i = 0; i < 1023; ++i) num_released += matcher->Append("a").text.size();
  EXPECT_EQ(num_released, 0u);
  EXPECT_EQ(matcher->Append("b").text.size(), 1024u);
}

TEST(StopStringMatcher, RandomTextsInRandomPiecesEqualTheSlowSearch) {
  std::mt19937 random(7);
  const std::vector<std::string> alphabet = {"a", "b", "é", "€"};
  const auto random_text = [&](size_t max_characters) {
    std::string text;
    const size_t num_characters = 1 + random() % max_characters;
    for (size_t i = 0; i < num_characters; ++i) text += alphabet[random() % alphabet.size()];
    return text;
  };
  int num_matched = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (size_t i = random() % 4 + 1; i > 0; --i) stops.push_back(random_text(5));
    std::vector<std::string> pieces;
    std::string text;
    for (size_t i = random() % 8; i > 0; --i) {
      pieces.push_back(random_text(4));
      text += pieces.back();
    }
    const bool include = random() % 2 == 0;
    const Result want = Oracle(stops, include, text);
    const Result got = Match(stops, include, pieces);
    ASSERT_EQ(got.text, want.text) << text;
    ASSERT_EQ(got.matched.has_value(), want.matched.has_value());
    if (want.matched) {
      ASSERT_EQ(stops[*got.matched], stops[*want.matched]);
    }
    ASSERT_TRUE(IsValidUtf8(got.text));
    num_matched += want.matched.has_value();
  }
  EXPECT_GT(num_matched, 5000);
}

TEST(StopStringMatcher, ReleasesWholeCharactersOnly) {
  auto matcher = StopStringMatcher::Create({"é!"}, false);
  ASSERT_TRUE(matcher.ok());
  EXPECT_EQ(matcher->Append("caf").text, "caf");
  EXPECT_EQ(matcher->Append("é").text, "");
  EXPECT_EQ(matcher->Append("ê").text, "éê") << "the two share their first byte";
}

TEST(StopStringMatcher, LimitsAreNamed) {
  const auto message = [](std::vector<std::string> stops) {
    return StatusMessage(StopStringMatcher::Create(std::move(stops), false).status());
  };
  EXPECT_EQ(message(std::vector<std::string>(17, "x")), "stop.strings: 17 strings (limit 16)");
  EXPECT_EQ(message({"a", ""}), "stop.strings[1]: 0 bytes (limit 1 to 1024)");
  EXPECT_EQ(message({std::string(1025, 'x')}), "stop.strings[0]: 1025 bytes (limit 1 to 1024)");
  EXPECT_EQ(message({"\xC3"}), "stop.strings[0]: not valid UTF-8");
  EXPECT_TRUE(StopStringMatcher::Create(std::vector<std::string>(16, "x"), false).ok());
}

}  // namespace
}  // namespace longspan
