// What counts as the same prefix.
#include "kvcache/prefix_cache.h"

#include <gtest/gtest.h>

namespace longspan {
namespace {

std::vector<TokenId> Tokens(std::initializer_list<int> ids) {
  std::vector<TokenId> tokens;
  for (const int id : ids) tokens.push_back(TokenId{id});
  return tokens;
}

BlockHash SameHash(const BlockHash&, std::span<const TokenId>) { return {1, 1}; }

// Inserts and moves on.
PrefixChain Extend(PrefixCache& cache, PrefixChain chain, BlockId block,
                   const std::vector<TokenId>& tokens) {
  cache.Insert(block, chain, cache.HashBlock(chain, tokens), tokens);
  cache.Advance(chain, block);
  return chain;
}

BlockId Find(const PrefixCache& cache, const PrefixChain& chain,
             const std::vector<TokenId>& tokens) {
  return cache.Find(chain, cache.HashBlock(chain, tokens), tokens);
}

class PrefixCacheTest : public testing::TestWithParam<PrefixCache::HashFunction> {
 protected:
  PrefixCache cache_{8, 2, GetParam()};
  const PrefixChain root_ = PrefixCache::Root("model", AdapterId{}, "", 0);
};

TEST_P(PrefixCacheTest, FindsABlockAtItsPlaceOnly) {
  const PrefixChain first = Extend(cache_, root_, BlockId{3}, Tokens({1, 2}));
  Extend(cache_, first, BlockId{5}, Tokens({3, 4}));
  EXPECT_EQ(Find(cache_, root_, Tokens({1, 2})), BlockId{3});
  EXPECT_EQ(Find(cache_, first, Tokens({3, 4})), BlockId{5});
  EXPECT_EQ(Find(cache_, root_, Tokens({3, 4})), kInvalidBlock);
  EXPECT_EQ(Find(cache_, first, Tokens({1, 2})), kInvalidBlock);
  EXPECT_EQ(Find(cache_, root_, Tokens({1, 3})), kInvalidBlock);
  cache_.CheckInvariants();
}

TEST_P(PrefixCacheTest, EqualTokensBehindDifferentStartsAreDifferent) {
  const PrefixChain a = Extend(cache_, root_, BlockId{0}, Tokens({1, 1}));
  const PrefixChain b = Extend(cache_, root_, BlockId{1}, Tokens({2, 2}));
  Extend(cache_, a, BlockId{2}, Tokens({9, 9}));
  EXPECT_EQ(Find(cache_, b, Tokens({9, 9})), kInvalidBlock);
  EXPECT_EQ(Find(cache_, a, Tokens({9, 9})), BlockId{2});
}

// A client that knows the hash function still does not know which blocks meet in a bucket.
TEST(PrefixCache, TheSeedChangesEveryHashAndNothingElse) {
  PrefixCache cache(8, 2, &PrefixCache::DefaultHash);
  const PrefixChain one = PrefixCache::Root("model", AdapterId{}, "", 1);
  const PrefixChain two = PrefixCache::Root("model", AdapterId{}, "", 2);
  EXPECT_NE(cache.HashBlock(one, Tokens({1, 2})), cache.HashBlock(two, Tokens({1, 2})));
  EXPECT_EQ(one.hash, PrefixCache::Root("model", AdapterId{}, "", 1).hash);
  Extend(cache, two, BlockId{3}, Tokens({1, 2}));
  EXPECT_EQ(Find(cache, two, Tokens({1, 2})), BlockId{3});
}

TEST_P(PrefixCacheTest, SaltModelAndAdapterSeparate) {
  Extend(cache_, root_, BlockId{0}, Tokens({1, 2}));
  for (const PrefixChain& other : {PrefixCache::Root("model", AdapterId{}, "salt", 0),
                                   PrefixCache::Root("other", AdapterId{}, "", 0),
                                   PrefixCache::Root("model", AdapterId{1}, "", 0)}) {
    EXPECT_EQ(Find(cache_, other, Tokens({1, 2})), kInvalidBlock);
  }
}

TEST_P(PrefixCacheTest, ARemovedParentHidesItsChildren) {
  const PrefixChain first = Extend(cache_, root_, BlockId{0}, Tokens({1, 2}));
  Extend(cache_, first, BlockId{1}, Tokens({3, 4}));
  cache_.Remove(BlockId{0});
  EXPECT_EQ(Find(cache_, root_, Tokens({1, 2})), kInvalidBlock);
  // Computed anew, the parent is another entry: the old child is not behind it.
  const PrefixChain again = Extend(cache_, root_, BlockId{2}, Tokens({1, 2}));
  EXPECT_EQ(Find(cache_, again, Tokens({3, 4})), kInvalidBlock);
  cache_.Remove(BlockId{1});
  cache_.CheckInvariants();
  EXPECT_EQ(cache_.size(), 1);
}

INSTANTIATE_TEST_SUITE_P(Hashes, PrefixCacheTest,
                         testing::Values(&PrefixCache::DefaultHash, &SameHash));

TEST(PrefixCache, HashesDependOnParentAndTokens) {
  const auto tokens = Tokens({1, 2});
  EXPECT_EQ(PrefixCache::DefaultHash({1, 2}, tokens), PrefixCache::DefaultHash({1, 2}, tokens));
  EXPECT_NE(PrefixCache::DefaultHash({1, 2}, tokens), PrefixCache::DefaultHash({1, 3}, tokens));
  EXPECT_NE(PrefixCache::DefaultHash({1, 2}, tokens),
            PrefixCache::DefaultHash({1, 2}, Tokens({2, 1})));
}

}  // namespace
}  // namespace longspan
