// The GGUF parser on right files: types, versions, alignment, placement. Wrong ones:
// broken_files_test.cc.
#include "model/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/model_files.h"
#include "tests/support/temporary_folder.h"

namespace longspan {
namespace {

using ::longspan::testing::Bytes;
using ::longspan::testing::GgufSpec;
using ::longspan::testing::GgufString;
using ::longspan::testing::TemporaryFolder;
using ::testing::ElementsAre;

GgufFile Opened(const GgufSpec& spec) {
  const TemporaryFolder folder;
  auto file = GgufFile::Open(folder.Write("x.gguf", spec.Build()));
  CHECK(file.ok(), "{}", StatusMessage(file.status()));
  return *std::move(file);
}

std::string Array(uint32_t type, uint64_t count, const std::string& elements) {
  return Bytes(type) + Bytes(count) + elements;
}

TEST(GgufFile, ReadsEveryScalarType) {
  GgufSpec spec;
  spec.Raw("u8", 0, Bytes<uint8_t>(200)).Raw("i8", 1, Bytes<int8_t>(-100));
  spec.Raw("u16", 2, Bytes<uint16_t>(60000)).Raw("i16", 3, Bytes<int16_t>(-30000));
  spec.Raw("u32", 4, Bytes<uint32_t>(4000000000)).Raw("i32", 5, Bytes<int32_t>(-2000000000));
  spec.Raw("f32", 6, Bytes(0.5f)).Raw("bool", 7, Bytes<uint8_t>(1)).String("string", "text");
  spec.Raw("u64", 10, Bytes<uint64_t>(UINT64_MAX)).Raw("i64", 11, Bytes<int64_t>(INT64_MIN));
  spec.Raw("f64", 12, Bytes(1e300));
  const GgufFile file = Opened(spec);
  const auto integer = [&](const char* key) { return std::get<int64_t>(file.Find(key)->data); };
  EXPECT_EQ(integer("u8"), 200);
  EXPECT_EQ(integer("i8"), -100);
  EXPECT_EQ(integer("u16"), 60000);
  EXPECT_EQ(integer("i16"), -30000);
  EXPECT_EQ(integer("u32"), 4000000000);
  EXPECT_EQ(integer("i32"), -2000000000);
  EXPECT_EQ(integer("i64"), INT64_MIN);
  EXPECT_EQ(std::get<uint64_t>(file.Find("u64")->data), UINT64_MAX);
  EXPECT_EQ(std::get<double>(file.Find("f32")->data), 0.5);
  EXPECT_EQ(std::get<double>(file.Find("f64")->data), 1e300);
  EXPECT_TRUE(std::get<bool>(file.Find("bool")->data));
  EXPECT_EQ(std::get<std::string>(file.Find("string")->data), "text");
  EXPECT_EQ(file.Find("none"), nullptr);
}

TEST(GgufFile, ReadsArraysOfEveryKindAndSkipsNestedOnes) {
  GgufSpec spec;
  const std::string inner = Array(0, 2, "ab");
  spec.Raw("ints", 9, Array(5, 2, Bytes<int32_t>(-1) + Bytes<int32_t>(7)));
  spec.Raw("floats", 9, Array(6, 2, Bytes(1.5f) + Bytes(-2.0f)));
  spec.Raw("strings", 9, Array(8, 2, GgufString("a") + GgufString("")));
  spec.Raw("bools", 9, Array(7, 2, std::string("\0\1", 2)));
  spec.Raw("nested", 9, Array(9, 2, inner + inner)).U32("after", 5);
  const GgufFile file = Opened(spec);
  const auto array = [&](const char* key) { return std::get<GgufArray>(file.Find(key)->data); };
  EXPECT_THAT(array("ints").integers, ElementsAre(-1, 7));
  EXPECT_THAT(array("floats").floats, ElementsAre(1.5, -2.0));
  EXPECT_THAT(array("strings").strings, ElementsAre("a", ""));
  EXPECT_THAT(array("bools").integers, ElementsAre(0, 1));
  EXPECT_EQ(array("nested").count, 2);
  EXPECT_EQ(std::get<int64_t>(file.Find("after")->data), 5);
}

TEST(GgufFile, ReadsVersions2And3Alike) {
  for (const uint32_t version : {2u, 3u}) {
    GgufSpec spec;
    spec.version = version;
    spec.U32("key", 1).Tensor({"t", {4}, 0, std::string(16, 'x'), {}});
    EXPECT_EQ(Opened(spec).tensors().size(), 1u) << version;
  }
}

TEST(GgufFile, PlacesTensorsByAlignmentWithShapesOutermostFirst) {
  for (const uint32_t alignment : {8u, 32u, 4096u}) {
    GgufSpec spec;
    spec.alignment = alignment;
    spec.U32("general.alignment", alignment);
    spec.Tensor({"a", {3}, 0, std::string(12, 'a'), {}});
    spec.Tensor({"b", {32, 2}, 8, std::string(68, 'b'), {}});
    const TemporaryFolder folder;
    const auto file = GgufFile::Open(folder.Write("x.gguf", spec.Build()));
    ASSERT_TRUE(file.ok()) << file.status();
    const GgufTensor* b = file->FindTensor("b");
    ASSERT_NE(b, nullptr);
    EXPECT_THAT(b->shape, ElementsAre(2, 32));
    EXPECT_EQ(b->format, WeightFormat::kQ8_0);
    EXPECT_EQ(b->size_bytes, 68);
    EXPECT_EQ(b->offset % alignment, 0);
    std::string bytes(68, '\0');
    ASSERT_TRUE(file->file().Read(b->offset, std::as_writable_bytes(std::span(bytes))).ok());
    EXPECT_EQ(bytes, std::string(68, 'b'));
  }
}

TEST(GgufFile, MetadataLongerThanItsReadBufferIsWhole) {
  std::vector<std::string> texts;
  for (int i = 0; i < 30000; ++i) texts.push_back(std::to_string(i));
  GgufSpec spec;
  spec.Strings("texts", texts).String("long", std::string(200000, 'y')).U32("after", 9);
  const GgufFile file = Opened(spec);
  EXPECT_EQ(std::get<GgufArray>(file.Find("texts")->data).strings, texts);
  EXPECT_EQ(std::get<std::string>(file.Find("long")->data), std::string(200000, 'y'));
  EXPECT_EQ(std::get<int64_t>(file.Find("after")->data), 9);
}

}  // namespace
}  // namespace longspan
