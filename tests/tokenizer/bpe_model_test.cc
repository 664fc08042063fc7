// Merging one piece: order of ranks, bytes without a token, token limits, cancellation. Hand-made
// vocabularies of a few letters.
#include "tokenizer/bpe_model.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

namespace longspan {
namespace {

// Bytes are their own ids; "ab" is 256, "abc" is 257 (from "ab" + "c", or from "a" + "bc"), "bc" is
// 258.
BpeModelConfig Letters() {
  BpeModelConfig config;
  for (int32_t byte = 0; byte < 128; ++byte)
    config.byte_ids[static_cast<size_t>(byte)] = TokenId{byte};
  config.merges = {{TokenId{'a'}, TokenId{'b'}, TokenId{256}},
                   {TokenId{256}, TokenId{'c'}, TokenId{257}},
                   {TokenId{'b'}, TokenId{'c'}, TokenId{258}},
                   {TokenId{'a'}, TokenId{258}, TokenId{257}}};
  return config;
}

std::vector<TokenId> Encode(const BpeModelConfig& config, const std::string& piece) {
  BpeModel::Scratch scratch;
  std::vector<TokenId> ids;
  EXPECT_TRUE(BpeModel(config).Encode(piece, 1 << 20, CancelFlag(nullptr), scratch, ids).ok());
  return ids;
}

std::vector<TokenId> Ids(std::initializer_list<int32_t> ids) {
  std::vector<TokenId> list;
  for (int32_t id : ids) list.push_back(TokenId{id});
  return list;
}

TEST(BpeModel, MergesTheBestRankFirstAndThenTheLeftmost) {
  EXPECT_EQ(Encode(Letters(), "abc"), Ids({257}));
  EXPECT_EQ(Encode(Letters(), "xbcab"), Ids({'x', 258, 256}));
  EXPECT_EQ(Encode(Letters(), "abab"), Ids({256, 256}));
  EXPECT_EQ(Encode(Letters(), ""), Ids({}));
}

TEST(BpeModel, AByteWithoutATokenIsDroppedAndItsNeighboursMeet) {
  EXPECT_EQ(Encode(Letters(),
                   "a\xFF"
                   "b"),
            Ids({256}));
}

TEST(BpeModel, AnUnknownTokenStandsForEachMissingByteOrForARunOfThem) {
  BpeModelConfig config = Letters();
  config.unknown = TokenId{300};
  EXPECT_EQ(Encode(config,
                   "a\xFF\xFE"
                   "b"),
            Ids({'a', 300, 300, 'b'}));
  config.fuse_unknown = true;
  EXPECT_EQ(Encode(config,
                   "a\xFF\xFE"
                   "b"),
            Ids({'a', 300, 'b'}));
}

TEST(BpeModel, APairThatIsListedTwiceHasItsLastRank) {
  BpeModelConfig config = Letters();
  config.merges.push_back(config.merges[0]);  // "ab" now comes after "bc"
  EXPECT_EQ(Encode(config, "xabcx"), Ids({'x', 257, 'x'}));
  config.merges.erase(config.merges.begin() + 3);  // "a" + "bc" leads nowhere
  EXPECT_EQ(Encode(config, "xabcx"), Ids({'x', 'a', 258, 'x'}));
}

TEST(BpeModel, AtMostMaxTokensAreMade) {
  const auto encode = [](const std::string& piece, int64_t max_tokens) {
    BpeModel::Scratch scratch;
    std::vector<TokenId> ids;
    return BpeModel(Letters()).Encode(piece, max_tokens, CancelFlag(nullptr), scratch, ids);
  };
  EXPECT_TRUE(encode("abcabcx", 3).ok());
  EXPECT_TRUE(encode("", 0).ok());
  for (const auto& [piece, max_tokens] : {std::pair{"abcabcx", 2}, {"xxx", 2}, {"x", 0}}) {
    EXPECT_EQ(encode(piece, max_tokens).code(), absl::StatusCode::kOutOfRange) << piece;
  }
}

// A token has at most three of these symbols, so ten tokens are known to be too few after thirty.
TEST(BpeModel, AHopelessPieceIsGivenUpBeforeItIsMerged) {
  BpeModel::Scratch scratch;
  std::vector<TokenId> ids;
  const std::string piece(64 << 20, 'a');
  const Status status = BpeModel(Letters()).Encode(piece, 10, CancelFlag(nullptr), scratch, ids);
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_LE(scratch.symbols.size(), 31u);
  EXPECT_TRUE(ids.empty());
}

// "a" + "b" is "a": a token may stand for any number of symbols, so nothing is given up early.
TEST(BpeModel, RulesInACircleStillEncode) {
  BpeModelConfig config = Letters();
  config.merges = {{TokenId{'a'}, TokenId{'b'}, TokenId{'a'}}};
  BpeModel::Scratch scratch;
  std::vector<TokenId> ids;
  const std::string piece = "a" + std::string(5000, 'b');
  EXPECT_TRUE(BpeModel(config).Encode(piece, 1, CancelFlag(nullptr), scratch, ids).ok());
  EXPECT_EQ(ids, Ids({'a'}));
}

// Bytes that are dropped make no symbols; the flag is seen all the same.
TEST(BpeModel, TheFirstLoopSeesTheCancelFlag) {
  const std::atomic<bool> cancelled = true;
  BpeModel::Scratch scratch;
  std::vector<TokenId> ids;
  for (const char byte : {'a', '\xFF'}) {
    scratch.symbols.clear();
    const Status status = BpeModel(Letters()).Encode(std::string(100000, byte), 1 << 20,
                                                     CancelFlag(&cancelled), scratch, ids);
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
    EXPECT_LE(scratch.symbols.size(), 4096u);
  }
}

TEST(BpeModel, TheMergeLoopSeesTheCancelFlag) {
  const std::atomic<bool> cancelled = true;
  BpeModel::Scratch scratch;
  std::vector<TokenId> ids;
  for (size_t num_bytes : {size_t{2}, size_t{100000}}) {
    const Status status = BpeModel(Letters()).Encode(std::string(num_bytes, 'a'), 1 << 20,
                                                     CancelFlag(&cancelled), scratch, ids);
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  }
}

}  // namespace
}  // namespace longspan
