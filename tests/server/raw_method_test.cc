// What handlers share and needs no connection.
#include "server/raw_method.h"

#include <gtest/gtest.h>

#include <string>

namespace longspan {
namespace {

TEST(RawMethod, Fault_T9_OnlyWellFormedTraceContextsCount) {
  const std::string good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  EXPECT_TRUE(IsTraceParent(good));
  EXPECT_FALSE(IsTraceParent(""));
  EXPECT_FALSE(IsTraceParent(good + "\nFORGED"));
  EXPECT_FALSE(IsTraceParent(good.substr(1)));
  for (size_t i = 0; i < good.size(); ++i) {
    for (const char bad : {'\n', '\x1b', 'G', 'F', '\0'}) {
      std::string text = good;
      text[i] = bad;
      EXPECT_FALSE(IsTraceParent(text)) << i;
    }
  }
  EXPECT_FALSE(IsTraceParent("ff" + good.substr(2)));
  EXPECT_FALSE(IsTraceParent("00-" + std::string(32, '0') + good.substr(35)));
  EXPECT_FALSE(IsTraceParent(good.substr(0, 36) + std::string(16, '0') + "-01"));
}

}  // namespace
}  // namespace longspan
