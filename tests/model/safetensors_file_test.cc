// The safetensors header: what the format allows is accepted, what it forbids is refused by name.
#include "model/safetensors_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/model_files.h"
#include "tests/support/temporary_folder.h"

namespace longspan {
namespace {

using ::longspan::testing::BuildSafetensors;
using ::longspan::testing::SafetensorsSpec;
using ::longspan::testing::TemporaryFolder;
using ::testing::HasSubstr;

std::string Refusal(const std::string& header, int64_t data_bytes) {
  const auto parsed = ParseSafetensorsHeader(header, data_bytes, "x");
  return parsed.ok() ? "" : StatusMessage(parsed.status());
}

std::string Tensor(const std::string& dtype, const std::string& shape, const std::string& range) {
  return R"({"t": {"dtype": ")" + dtype + R"(", "shape": )" + shape + R"(, "data_offsets": )" +
         range + "}}";
}

TEST(SafetensorsFile, FindsEachTensorsBytes) {
  const std::vector<SafetensorsSpec> specs = {{"b", "F32", {2, 1}, "12345678"},
                                              {"a", "BF16", {3}, "abcdef"},
                                              {"scalar", "U8", {}, "s"},
                                              {"empty", "F32", {2, 0}, ""}};
  const TemporaryFolder folder;
  auto file = SafetensorsFile::Open(folder.Write("x.safetensors", BuildSafetensors(specs)));
  ASSERT_TRUE(file.ok()) << file.status();
  const std::vector<SafetensorsEntry> entries = file->entries();
  ASSERT_EQ(entries.size(), specs.size());
  const InputFile input = (*std::move(file)).TakeFile();
  for (const SafetensorsEntry& entry : entries) {
    const auto spec = std::ranges::find(specs, entry.name, &SafetensorsSpec::name);
    std::string bytes(static_cast<size_t>(entry.size_bytes), '\0');
    ASSERT_TRUE(input.Read(entry.offset, std::as_writable_bytes(std::span(bytes))).ok());
    EXPECT_EQ(bytes, spec->data);
    EXPECT_EQ(entry.shape, spec->shape);
    EXPECT_EQ(entry.dtype, spec->dtype);
  }
}

TEST(SafetensorsFile, AcceptsWhatTheFormatAllows) {
  EXPECT_EQ(Refusal(Tensor("F32", "[2, 0]", "[0, 0]"), 0), "");
  EXPECT_EQ(Refusal(Tensor("F32", "[]", "[0, 4]"), 4), "");
  EXPECT_EQ(Refusal("\t\n {}   ", 0), "");
  EXPECT_EQ(Refusal(Tensor("F4", "[2]", "[0, 1]"), 1), "");
  EXPECT_EQ(Refusal(R"({"__metadata__": {"a": "b"}})", 0), "");
  EXPECT_EQ(Refusal(R"({"a": {"dtype": "U8", "shape": [0], "data_offsets": [2, 2]},
                       "b": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
                       "c": {"dtype": "U8", "shape": [1], "data_offsets": [2, 3]}})",
                    3),
            "");
}

TEST(SafetensorsFile, RefusesShapesThatOverflowOrDisagreeWithTheBytes) {
  for (const char* shape :
       {"[2, 18446744073709551614]", "[2, 9223372036854775807]", "[4294967296, 4294967296]", "[-1]",
        "[1e0]", "[\"1\"]", "[1,1,1,1,1,1,1,1,1]", "4", "[3]"}) {
    EXPECT_THAT(Refusal(Tensor("F32", shape, "[0, 16]"), 16), HasSubstr("x: tensor t ")) << shape;
  }
  EXPECT_THAT(Refusal(Tensor("I32", "[2, 2]", "[0, 4]"), 4),
              HasSubstr("has 4 bytes of data, wanted 16"));
}

TEST(SafetensorsFile, RefusesUnknownTypesAndHalfBytes) {
  for (const char* dtype : {"I33", "f32", ""}) {
    EXPECT_THAT(Refusal(Tensor(dtype, "[4]", "[0, 16]"), 16), HasSubstr("unknown dtype"));
  }
  EXPECT_THAT(Refusal(Tensor("F4", "[3]", "[0, 2]"), 2), HasSubstr("whole bytes"));
}

TEST(SafetensorsFile, RefusesRangesOutsideReversedOrOfOtherTypes) {
  for (const char* range : {"[0, 20]", "[16, 0]", "[4, 0]", "[0, 18446744073709551615]", "[-4, 12]",
                            "[0, 1.6e1]", "[\"0\", \"16\"]", "[0]", "[0, 8, 16]"}) {
    EXPECT_THAT(Refusal(Tensor("F32", "[4]", range), 16), HasSubstr("data_offsets")) << range;
  }
}

TEST(SafetensorsFile, RefusesHolesOverlapsAndSurplusData) {
  const auto two = [](const char* second) {
    return R"({"a": {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]},
               "b": {"dtype": "U8", "shape": [16], "data_offsets": )" +
           std::string(second) + "}}";
  };
  EXPECT_EQ(Refusal(two("[16, 32]"), 32), "");
  EXPECT_THAT(Refusal(two("[0, 16]"), 16), HasSubstr("overlaps"));
  EXPECT_THAT(Refusal(two("[15, 31]"), 31), HasSubstr("overlaps"));
  EXPECT_THAT(Refusal(two("[17, 33]"), 33), HasSubstr("a hole"));
  EXPECT_THAT(Refusal(two("[16, 32]"), 33), HasSubstr("33 bytes of data, wanted 32"));
}

TEST(SafetensorsFile, RefusesHeadersThatAreNotObjectsOfTensors) {
  for (const char* header :
       {"{", "[]", "null", "\xff", "\xEF\xBB\xBF{}", R"({"t": 1})", R"({"t": {}})",
        R"({"__metadata__": 1})", R"({"__metadata__": {"a": 1}})", R"({"t": {}, "t": {}})"}) {
    EXPECT_NE(Refusal(header, 0), "") << header;
  }
}

}  // namespace
}  // namespace longspan
