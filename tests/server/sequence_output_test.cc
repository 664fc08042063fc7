// Ids to text of one sequence: cases 19, 21 and the text side of 23.
#include "server/sequence_output.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/successor_tokenizer.h"

namespace longspan {
namespace {

struct RunResult {
  std::string text;
  int32_t num_tokens = 0;
  std::string matched;  // empty: none
};

// Feeds ids first, first + 1, ... as the successor model would sample them.
RunResult RunOf(const std::vector<std::string>& tokens, const OutputOptions& options) {
  constexpr int kFirst = 100;
  const auto tokenizer = testing::SuccessorTokenizer(tokens, kFirst);
  auto matcher = StopStringMatcher::Create(options.stop_strings, options.include_stop_in_output);
  EXPECT_TRUE(matcher.ok());
  SequenceOutput output(options, tokenizer.get(), *std::move(matcher));
  RunResult run;
  for (size_t i = 0; i < tokens.size() && !output.is_over(); ++i) {
    run.text += output.Append(TokenId{kFirst + static_cast<int>(i)});
  }
  run.text += output.Finish();
  run.num_tokens = output.num_tokens();
  if (output.is_over()) run.matched = output.matched_string();
  return run;
}

TEST(SequenceOutput, Case_021_EarliestMatchWinsAcrossTokens) {
  const std::vector<std::string> tokens = {"foo ", "ba", "rba", "z qux"};
  struct Row {
    std::vector<std::string> stop;
    std::string text;
    std::string with_stop;
    int32_t num_tokens;
    std::string matched;
  };
  const std::vector<Row> table = {
      {{"barb"}, "foo ", "foo barb", 3, "barb"},
      {{"rb"}, "foo ba", "foo barb", 3, "rb"},
      {{"az"}, "foo barb", "foo barbaz", 4, "az"},
      {{"oo b", "o"}, "f", "fo", 1, "o"},
      {{"nowhere"}, "foo barbaz qux", "foo barbaz qux", 4, ""},
  };
  for (const Row& row : table) {
    OutputOptions options;
    options.stop_strings = row.stop;
    const RunResult cut = RunOf(tokens, options);
    EXPECT_EQ(cut.text, row.text);
    EXPECT_EQ(cut.num_tokens, row.num_tokens);
    EXPECT_EQ(cut.matched, row.matched);
    options.include_stop_in_output = true;
    EXPECT_EQ(RunOf(tokens, options).text, row.with_stop);
  }
}

TEST(SequenceOutput, Case_019_AnOpenCharacterAtTheEndIsOneReplacement) {
  for (const std::string& character : {std::string("é"), std::string("€"), std::string("😀")}) {
    std::vector<std::string> bytes;
    for (size_t size = 1; size <= character.size(); ++size) {
      bytes.emplace_back(1, character[size - 1]);
      const RunResult run = RunOf(bytes, OutputOptions());
      EXPECT_EQ(run.text, size == character.size() ? character : "\xef\xbf\xbd") << size;
      EXPECT_EQ(run.num_tokens, static_cast<int32_t>(size));
    }
  }
}

TEST(SequenceOutput, Case_023_StopIdsCountButAreNoText) {
  OutputOptions options;
  options.stop_token_ids = {TokenId{102}};
  const RunResult run = RunOf({"a", "b", "c"}, options);
  EXPECT_EQ(run.text, "ab");
  EXPECT_EQ(run.num_tokens, 3);
}

TEST(SequenceOutput, StopStringsAreNotLookedForBeforeMinTokens) {
  OutputOptions options;
  options.stop_strings = {"b"};
  options.min_tokens = 2;
  const RunResult run = RunOf({"a", "b", "c", "xb", "d"}, options);
  EXPECT_EQ(run.text, "abcx");
  EXPECT_EQ(run.num_tokens, 4);
}

TEST(SequenceOutput, WithoutATokenizerThereIsNoText) {
  auto matcher = StopStringMatcher::Create({}, false);
  const OutputOptions options;
  SequenceOutput output(options, nullptr, *std::move(matcher));
  EXPECT_EQ(output.Append(TokenId{5}), "");
  EXPECT_EQ(output.Finish(), "");
  EXPECT_EQ(output.num_tokens(), 1);
}

}  // namespace
}  // namespace longspan
