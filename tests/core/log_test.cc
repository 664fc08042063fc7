// Escaping of text from outside, and the names of levels.
#include "core/log.h"

#include <gtest/gtest.h>

namespace longspan {
namespace {

TEST(Log, Fault_T9_OutsideTextCannotForgeALine) {
  EXPECT_EQ(Escaped("id\n2026 info forged\x1b[31m\"\\"), R"(id\n2026 info forged\x1b[31m\"\\)");
  EXPECT_EQ(Escaped("\xff\xc3\xa9"), R"(\xff\xc3\xa9)");
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
