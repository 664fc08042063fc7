// The tuned table as text and as a file: it comes back as it was written, and whatever is not
// wholly a table of this device leaves the built-in numbers alone, with a reason.
#include "kernels/attention/dropin/attn_tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace longspan {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const AttnTuningKey kKey = {"NVIDIA H200", 13000};

AttnTuning Measured() {
  AttnTuning tuning;
  tuning.rows = {{{32, 0, 8}, {1024, 1024, 1}, {1, 24, 1024}}};
  return tuning;
}

// A folder of its own, removed at the end.
class AttnTuningFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "attn_tuning_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = folder_ + "/a/b/table.txt";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& text) { ASSERT_EQ(SaveAttnTuning(path_, text), ""); }

  std::string folder_, path_;
};

TEST(AttnTuning, ComesBackAsItWasWritten) {
  AttnTuning read;
  EXPECT_EQ(ParseAttnTuning(FormatAttnTuning(Measured(), kKey), kKey, &read), "");
  EXPECT_EQ(read, Measured());
  EXPECT_NE(read, AttnTuning());
}

TEST(AttnTuning, RowsServeHeadDimsUpToTheirs) {
  const AttnTuning tuning = Measured();
  for (const auto& [head_dim, row] :
       {std::pair{16, 0}, {64, 0}, {72, 1}, {128, 1}, {136, 2}, {256, 2}}) {
    EXPECT_EQ(tuning.For(head_dim), tuning.rows[row]) << head_dim;
  }
}

TEST(AttnTuning, TablesOfOthersAreRefusedByReason) {
  const std::string text = FormatAttnTuning(Measured(), kKey);
  AttnTuning tuning;
  EXPECT_EQ(ParseAttnTuning(text, {"NVIDIA H100", 13000}, &tuning), "of another device");
  EXPECT_EQ(ParseAttnTuning(text, {"NVIDIA H200", 13010}, &tuning), "of another driver");
  EXPECT_EQ(ParseAttnTuning("longspan-tune 2" + text.substr(15), kKey, &tuning),
            "not a table of this version");
  EXPECT_EQ(tuning, AttnTuning());
}

// Every prefix, every byte changed: a table or a reason, never half of one.
TEST(AttnTuning, DamagedTextChangesNothing) {
  const std::string text = FormatAttnTuning(Measured(), kKey);
  for (size_t i = 0; i < text.size(); ++i) {
    AttnTuning tuning;
    EXPECT_NE(ParseAttnTuning(text.substr(0, i), kKey, &tuning), "") << i;
    std::string changed = text;
    changed[i] = 'x';
    EXPECT_NE(ParseAttnTuning(changed, kKey, &tuning), "") << i;
    changed[i] = '\0';
    EXPECT_NE(ParseAttnTuning(changed, kKey, &tuning), "") << i;
    EXPECT_EQ(tuning, AttnTuning()) << i;
  }
  AttnTuning tuning;
  EXPECT_NE(ParseAttnTuning(text + "more\n", kKey, &tuning), "");
  EXPECT_NE(ParseAttnTuning(text + std::string(5000, '\n'), kKey, &tuning), "");
}

TEST(AttnTuning, NumbersOutsideTheirRangesAreRefused) {
  for (const AttnTuningRow& row : {AttnTuningRow{0, 0, 4},
                                   {-1, 0, 4},
                                   {1025, 0, 4},
                                   {64, -1, 4},
                                   {64, 1025, 4},
                                   {64, 0, 0},
                                   {64, 0, 1025}}) {
    AttnTuning tuning, wrong = Measured();
    wrong.rows[1] = row;
    EXPECT_EQ(ParseAttnTuning(FormatAttnTuning(wrong, kKey), kKey, &tuning),
              "damaged at head_dim 128");
    EXPECT_EQ(tuning, AttnTuning());
  }
  std::string huge = FormatAttnTuning(Measured(), kKey);
  huge.replace(huge.find("1024"), 4, "99999999999");
  AttnTuning tuning;
  EXPECT_EQ(ParseAttnTuning(huge, kKey, &tuning), "damaged at head_dim 128");
}

TEST(AttnTuning, TheFileStandsInTheCacheFolderUnderTheDevicesName) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const std::string before = cache == nullptr ? "" : cache;
  ::setenv("XDG_CACHE_HOME", "/c", 1);
  EXPECT_EQ(AttnTuningPath("NVIDIA H200"), "/c/longspan/tune/NVIDIA_H200.txt");
  EXPECT_EQ(AttnTuningPath("../../x"), "/c/longspan/tune/______x.txt");
  ::setenv("XDG_CACHE_HOME", "relative", 1);  // the rule of XDG: as if it were not set
  EXPECT_THAT(AttnTuningPath("a"),
              testing::AnyOf("", testing::EndsWith("/.cache/longspan/tune/a.txt")));
  cache == nullptr ? ::unsetenv("XDG_CACHE_HOME") : ::setenv("XDG_CACHE_HOME", before.c_str(), 1);
}

TEST_F(AttnTuningFile, IsWrittenAndRead) {
  AttnTuning tuning;
  EXPECT_EQ(LoadAttnTuning(path_, kKey, &tuning), "defaults: no table " + path_);
  Write("something else");
  Write(FormatAttnTuning(Measured(), kKey));
  EXPECT_EQ(LoadAttnTuning(path_, kKey, &tuning), "table " + path_);
  EXPECT_EQ(tuning, Measured());
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_ + "/a/b")) {
    ++files;
  }
  EXPECT_EQ(files, 1) << "a part was left behind";
}

TEST_F(AttnTuningFile, WhatIsNoTableLeavesTheDefaultsAndSaysSo) {
  AttnTuning tuning;
  EXPECT_EQ(LoadAttnTuning("", kKey, &tuning), "defaults: no cache folder");
  for (const std::string& text : {std::string(), std::string(100000, 'a'), std::string(9, '\0')}) {
    Write(text);
    EXPECT_THAT(LoadAttnTuning(path_, kKey, &tuning), StartsWith("defaults, refused table "));
  }
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(LoadAttnTuning(path_, kKey, &tuning), HasSubstr("not a file that can be read"));
  EXPECT_THAT(LoadAttnTuning(folder_, kKey, &tuning), HasSubstr("not a file that can be read"));
  EXPECT_THAT(LoadAttnTuning(path_ + "/below", kKey, &tuning), StartsWith("defaults"));
  EXPECT_EQ(tuning, AttnTuning());
}

TEST_F(AttnTuningFile, WhatCannotBeWrittenIsSaid) {
  Write("a file where a folder is wanted");
  EXPECT_NE(SaveAttnTuning(path_ + "/below/table.txt", "x"), "");
  EXPECT_NE(SaveAttnTuning(folder_ + "/a", "x"), "") << "a folder stands there";
  EXPECT_NE(SaveAttnTuning("", "x"), "");
}

}  // namespace
}  // namespace longspan
