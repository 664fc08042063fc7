// JSON of model files: the limits hold and are reported, everything else parses.
#include "core/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace longspan {
namespace {

using ::testing::HasSubstr;

std::string Refusal(const std::string& text) {
  const auto parsed = ParseJson(text, "x.json");
  return parsed.ok() ? "" : StatusMessage(parsed.status());
}

std::string Nested(int depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(Json, KeepsEveryKindOfValueInPlace) {
  const auto parsed =
      ParseJson("\t\n {\"a\": [1, -2, 2.5, \"x\", true, null, {\"b\": {}}], \"c\": 3} ", "x.json");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed,
            nlohmann::json::parse(R"({"a": [1, -2, 2.5, "x", true, null, {"b": {}}], "c": 3})"));
}

TEST(Json, RefusesDepthAboveItsLimitOnly) {
  EXPECT_EQ(Refusal(Nested(kMaxJsonDepth)), "");
  EXPECT_THAT(Refusal(Nested(kMaxJsonDepth + 1)), HasSubstr("nested deeper than 64"));
  EXPECT_THAT(Refusal(std::string(1000000, '[')), HasSubstr("nested deeper than 64"));
}

TEST(Json, RefusesAKeyThatStandsTwiceInOneObjectOnly) {
  EXPECT_EQ(Refusal(R"({"a": {"a": 1}, "b": {"a": 1}})"), "");
  EXPECT_THAT(Refusal(R"({"a": 1, "a": 1})"), HasSubstr("\"a\" stands twice"));
  EXPECT_THAT(Refusal(R"({"x": [{"a": 1, "\u0061": 2}]})"), HasSubstr("\"a\" stands twice"));
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text : {"", "{", "[1,]", "{\"a\" 1}", "nul", "1 2", "\"\xff\"", "[1e999]",
                           "\xEF\xBB\xBF{}", "{\"a\": NaN}"}) {
    EXPECT_THAT(Refusal(text), HasSubstr("x.json: ")) << text;
  }
}

TEST(Json, ShowsForeignTextAsPrintableAndShort) {
  EXPECT_EQ(JsonShown(nlohmann::json("a\nb")), "\"a\\nb\"");
  EXPECT_EQ(JsonShown(nlohmann::json::array({1, 2})), "a list of 2");
  EXPECT_LT(JsonShown(nlohmann::json(std::string(5000, 'x'))).size(), 64u);
}

}  // namespace
}  // namespace longspan
