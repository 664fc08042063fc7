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
  EXPECT_TRUE(BpeModel(config).Encode(piece, CancelFlag(nullptr), scratch, ids).ok());
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

TEST(BpeModel, TheMergeLoopSeesTheCancelFlag) {
  const std::atomic<bool> cancelled = true;
  BpeModel::Scratch scratch;
  std::vector<TokenId> ids;
  for (size_t num_bytes : {size_t{2}, size_t{100000}}) {
    const Status status = BpeModel(Letters()).Encode(std::string(num_bytes, 'a'),
                                                     CancelFlag(&cancelled), scratch, ids);
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  }
}

}  // namespace
}  // namespace longspan
