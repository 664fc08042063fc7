// The option table: sources and their order, ranges, names, and that docs/flags.md says the same.
#include "server/options.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/support/temporary_folder.h"

namespace longspan {
namespace {

using Environment = std::map<std::string, std::string>;

StatusOr<ParsedCommandLine> Parse(std::vector<std::string> args,
                                  const Environment& environment = {}) {
  return ParseCommandLine(args, [&](const std::string& name) -> std::optional<std::string> {
    const auto it = environment.find(name);
    return it == environment.end() ? std::nullopt : std::optional(it->second);
  });
}

std::string Error(std::vector<std::string> args, const Environment& environment = {}) {
  const auto parsed = Parse(std::move(args), environment);
  return parsed.ok() ? "" : StatusMessage(parsed.status());
}

class OptionsTest : public ::testing::Test {
 protected:
  void WriteConfig(const std::string& text) { std::ofstream(path_) << text; }
  // Of this process alone: ctest runs the tests of this file side by side.
  testing::TemporaryFolder folder_;
  const std::string path_ = folder_.Path("longspan.toml");
};

TEST_F(OptionsTest, FlagWinsOverEnvironmentOverFileOverDefault) {
  WriteConfig("block-size = 8\nmax-num-seqs = 8\nthreads = 8\nmodel = \"m\"\n");
  const Environment environment = {{"LONGSPAN_MAX_NUM_SEQS", "9"}, {"LONGSPAN_THREADS", "9"}};
  const auto parsed = Parse({"--config", path_, "--threads", "10"}, environment);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->options.block_size, 8);
  EXPECT_EQ(parsed->options.max_num_seqs, 9);
  EXPECT_EQ(parsed->options.threads, 10);
  EXPECT_EQ(parsed->options.max_queued_requests, 1024);
}

TEST_F(OptionsTest, UnknownNamesAreRefusedEverywhere) {
  EXPECT_NE(Error({"--model", "m", "--blok-size", "4"}).find("--blok-size"), std::string::npos);
  WriteConfig("blok-size = 4\n");
  EXPECT_NE(Error({"--model", "m", "--config", path_}).find("blok-size"), std::string::npos);
  EXPECT_NE(Error({"--model", "m", "--config", path_ + ".absent"}).find("cannot be read"),
            std::string::npos);
}

TEST_F(OptionsTest, EveryErrorNamesSourceProblemAndLimit) {
  EXPECT_EQ(Error({"--model", "m", "--block-size", "0"}),
            "--block-size: 0 is out of range (1..256)");
  EXPECT_EQ(Error({"--model", "m", "--block-size", "4x"}),
            "--block-size: \"4x\" is not a number of tokens");
  EXPECT_EQ(Error({"--model", "m"}, {{"LONGSPAN_BLOCK_SIZE", "257"}}),
            "LONGSPAN_BLOCK_SIZE: 257 is out of range (1..256)");
  EXPECT_EQ(Error({"--model", "m", "--device", "tpu"}),
            "--device: \"tpu\" is not one of auto|cpu|cuda|hip");
  EXPECT_EQ(Error({"--model", "m", "--drain-timeout", "nan"}),
            "--drain-timeout: \"nan\" is not a finite number");
  EXPECT_NE(Error({}).find("--model"), std::string::npos);
  EXPECT_NE(Error({"--model", "m", "--kv-blocks", "4", "--kv-cache-memory-bytes", "1MiB"})
                .find("one of the two"),
            std::string::npos);
}

TEST_F(OptionsTest, SwitchesHaveANegativeForm) {
  EXPECT_TRUE(Parse({"--model", "m"})->options.enable_prefix_caching);
  EXPECT_FALSE(
      Parse({"--model", "m", "--no-enable-prefix-caching"})->options.enable_prefix_caching);
  EXPECT_TRUE(Parse({"--model", "m", "--check-weights"})->options.check_weights);
  EXPECT_FALSE(Parse({"--model", "m"}, {{"LONGSPAN_ENABLE_PREFIX_CACHING", "off"}})
                   ->options.enable_prefix_caching);
}

TEST_F(OptionsTest, BytesTakeUnits) {
  EXPECT_EQ(ParseBytes("512MiB"), int64_t{512} << 20);
  EXPECT_EQ(ParseBytes("2GB"), 2000000000);
  EXPECT_EQ(ParseBytes("77"), 77);
  for (const char* bad :
       {"", "MiB", "-1", "1.5GiB", "1 MiB", "9999999TiB", "9223372036854775808"}) {
    EXPECT_FALSE(ParseBytes(bad).has_value()) << bad;
  }
}

TEST_F(OptionsTest, DefaultsAreInRange) {
  const ServerOptions defaults;
  for (const OptionSpec& spec : OptionTable()) {
    ServerOptions options;
    const std::string value = spec.get(defaults);
    if (!value.empty()) {
      EXPECT_TRUE(spec.set(options, value).ok()) << spec.name << " " << value;
    }
  }
}

TEST_F(OptionsTest, HelpHidesTestOptionsAndShowsAllOthers) {
  const std::string help = HelpText();
  for (const OptionSpec& spec : OptionTable()) {
    EXPECT_EQ(help.find(std::string("]") + spec.name) != std::string::npos ||
                  help.find(std::string("--") + spec.name + " ") != std::string::npos,
              !spec.test_only)
        << spec.name;
  }
}

TEST_F(OptionsTest, TheFlagsPageIsCurrent) {
  std::ifstream file(LONGSPAN_SOURCE_DIR "/docs/flags.md");
  std::ostringstream page;
  page << file.rdbuf();
  EXPECT_EQ(page.str(), FlagsMarkdown()) << "run scripts/update-docs";
}

}  // namespace
}  // namespace longspan
