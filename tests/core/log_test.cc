// Escaping of text from outside, the names of levels, and a log that nobody reads.
#include "core/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace longspan {
namespace {

TEST(Log, Fault_T9_OutsideTextCannotForgeALine) {
  EXPECT_EQ(Escaped("id\n2026 info forged\x1b[31m\"\\"), R"(id\n2026 info forged\x1b[31m\"\\)");
  EXPECT_EQ(Escaped("\xff\xc3\xa9"), R"(\xff\xc3\xa9)");
}

// A log collector that stands still: lines are dropped and counted, nobody waits.
TEST(Log, Fault_D9_APipeThatNobodyReadsHoldsNobody) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int before = ::dup(STDERR_FILENO);
  ::dup2(ends[1], STDERR_FILENO);
  SetUpLogging(LogFormat::kText, spdlog::level::info);
  constexpr int kLines = 5000;  // more than a pipe holds
  for (int i = 0; i < kLines; ++i) spdlog::info("line {} {}", i, std::string(100, 'x'));
  std::string text(1 << 20, '\0');
  text.resize(static_cast<size_t>(::read(ends[0], text.data(), text.size())));
  spdlog::info("after");
  std::string rest(1 << 20, '\0');
  rest.resize(static_cast<size_t>(::read(ends[0], rest.data(), rest.size())));
  ::dup2(before, STDERR_FILENO);
  for (const int fd : {before, ends[0], ends[1]}) ::close(fd);
  SetUpLogging(LogFormat::kText, spdlog::level::info);
  EXPECT_NE(text.find("line 0 "), std::string::npos);
  EXPECT_NE(rest.find("log lines were dropped"), std::string::npos) << rest;
  EXPECT_TRUE(rest.ends_with("after\n")) << rest;
}

TEST(Log, EscapedTextIsBounded) { EXPECT_EQ(Escaped("abcdef", 3), "abc..."); }

TEST(Log, LevelNamesAreExact) {
  spdlog::level::level_enum level = spdlog::level::off;
  EXPECT_TRUE(ParseLogLevel("warn", level));
  EXPECT_EQ(level, spdlog::level::warn);
  EXPECT_FALSE(ParseLogLevel("WARN", level));
  EXPECT_FALSE(ParseLogLevel("", level));
}

}  // namespace
}  // namespace longspan
