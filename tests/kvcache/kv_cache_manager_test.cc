// Tables, growth, forks, publication and eviction, as the scheduler uses them.
#include "kvcache/kv_cache_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace longspan {
namespace {

std::vector<TokenId> Tokens(int count, int first = 1) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(TokenId{first + i});
  return tokens;
}

class KvCacheManagerTest : public testing::Test {
 protected:
  static KvCacheConfig Config() {
    KvCacheConfig config;
    config.num_blocks = 10;
    config.block_size = 4;
    config.identity = "model";
    return config;
  }

  // A table with these tokens, all computed and published.
  BlockTable Computed(const std::vector<TokenId>& tokens, const PrefixChain& root) {
    BlockTable table = kv_.NewTable();
    const auto size = static_cast<int64_t>(tokens.size());
    EXPECT_TRUE(kv_.Allocate(table, kv_.FindPrefix(root, {tokens, {}}, size - 1), size));
    kv_.Publish(table, {tokens, {}}, size);
    return table;
  }

  KvCacheManager kv_{Config()};
  const PrefixChain root_ = kv_.Root(AdapterId{}, "");
};

TEST_F(KvCacheManagerTest, ATableGivesItsBlocksBackWhenDestroyed) {
  {
    BlockTable table = kv_.NewTable();
    ASSERT_TRUE(kv_.Grow(table, 13));
    EXPECT_EQ(table.num_blocks(), 4);
    EXPECT_EQ(kv_.num_available(), 6);
  }
  EXPECT_EQ(kv_.num_available(), 10);
  kv_.CheckInvariants();
}

TEST_F(KvCacheManagerTest, AMovedTableGivesThemBackOnce) {
  BlockTable table = kv_.NewTable();
  ASSERT_TRUE(kv_.Grow(table, 8));
  BlockTable moved = std::move(table);
  EXPECT_EQ(moved.num_blocks(), 2);
  moved = kv_.NewTable();
  EXPECT_EQ(kv_.num_available(), 10);
  kv_.CheckInvariants();
}

TEST_F(KvCacheManagerTest, GrowthIsAllOrNothing) {
  BlockTable table = kv_.NewTable();
  ASSERT_TRUE(kv_.Grow(table, 4));
  EXPECT_FALSE(kv_.Grow(table, 41));
  EXPECT_EQ(table.num_blocks(), 1);
  EXPECT_EQ(kv_.num_available(), 9);
  EXPECT_TRUE(kv_.Grow(table, 40));
  EXPECT_EQ(kv_.num_available(), 0);
  EXPECT_TRUE(kv_.Grow(table, 40));  // nothing to add
}

TEST_F(KvCacheManagerTest, AFailedAllocationTakesNoMatchedBlock) {
  const auto prompt = Tokens(9);
  { BlockTable first = Computed(prompt, root_); }
  const PrefixMatch match = kv_.FindPrefix(root_, {prompt, {}}, 8);
  EXPECT_EQ(match.num_evictable, 2);
  BlockTable other = kv_.NewTable();
  ASSERT_TRUE(kv_.Grow(other, 4 * 7));
  BlockTable table = kv_.NewTable();
  EXPECT_FALSE(kv_.Allocate(table, match, 4 * 4));  // two matched and two new, three are left
  EXPECT_EQ(table.num_blocks(), 0);
  EXPECT_EQ(kv_.stats().num_evictable, 2);
  EXPECT_TRUE(kv_.Allocate(table, match, 4 * 3));
  EXPECT_EQ(kv_.num_available(), 0);
}

TEST_F(KvCacheManagerTest, FindsFullBlocksOnly) {
  const auto prompt = Tokens(11);
  BlockTable table = Computed(prompt, root_);
  EXPECT_EQ(kv_.FindPrefix(root_, {prompt, {}}, 10).blocks.size(), 2u);
  EXPECT_EQ(kv_.FindPrefix(root_, {prompt, {}}, 7).blocks.size(), 1u);
  EXPECT_EQ(kv_.FindPrefix(root_, {prompt, {}}, 0).blocks.size(), 0u);
  const auto other = Tokens(11, 2);
  EXPECT_EQ(kv_.FindPrefix(root_, {other, {}}, 10).blocks.size(), 0u);
}

TEST_F(KvCacheManagerTest, PublishesABlockOnlyWhenAllOfItIsComputed) {
  const auto prompt = Tokens(8);
  BlockTable table = kv_.NewTable();
  ASSERT_TRUE(kv_.Allocate(table, kv_.FindPrefix(root_, {prompt, {}}, 7), 8));
  kv_.Publish(table, {prompt, {}}, 3);
  EXPECT_EQ(kv_.FindPrefix(root_, {prompt, {}}, 8).blocks.size(), 0u);
  kv_.Publish(table, {prompt, {}}, 7);
  EXPECT_EQ(kv_.FindPrefix(root_, {prompt, {}}, 8).blocks.size(), 1u);
  kv_.Publish(table, {prompt, {}}, 8);
  EXPECT_EQ(kv_.FindPrefix(root_, {prompt, {}}, 8).blocks.size(), 2u);
}

TEST_F(KvCacheManagerTest, FindsBlocksAcrossPromptAndGeneratedTokens) {
  const auto all = Tokens(12);
  const std::vector<TokenId> prompt(all.begin(), all.begin() + 6);
  const std::vector<TokenId> generated(all.begin() + 6, all.end());
  BlockTable table = kv_.NewTable();
  const TokenView view{prompt, generated};
  ASSERT_TRUE(kv_.Allocate(table, kv_.FindPrefix(root_, view, 11), 12));
  kv_.Publish(table, view, 12);
  EXPECT_EQ(kv_.FindPrefix(root_, {all, {}}, 12).blocks.size(), 3u);
}

TEST_F(KvCacheManagerTest, DoesNotPublishTheSameBlockTwice) {
  const auto prompt = Tokens(8);
  BlockTable first = kv_.NewTable();
  BlockTable second = kv_.NewTable();
  for (BlockTable* table : {&first, &second}) {  // both start before either has computed
    ASSERT_TRUE(kv_.Allocate(*table, kv_.FindPrefix(root_, {prompt, {}}, 7), 8));
  }
  kv_.Publish(first, {prompt, {}}, 8);
  kv_.Publish(second, {prompt, {}}, 8);
  for (const BlockId block : second.blocks()) EXPECT_FALSE(kv_.published(block));
  EXPECT_EQ(second.chain().num_blocks, 2);
  second.Clear();
  EXPECT_EQ(kv_.stats().num_evictable, 0);
  EXPECT_EQ(kv_.stats().num_free, 8);
  const auto match = kv_.FindPrefix(root_, {prompt, {}}, 8);
  EXPECT_THAT(match.blocks, testing::ElementsAreArray(first.blocks()));
}

TEST_F(KvCacheManagerTest, EvictsEndsOfPrefixesBeforeStarts) {
  const auto prompt = Tokens(16);
  { BlockTable table = Computed(prompt, root_); }
  EXPECT_EQ(kv_.stats().num_evictable, 4);
  BlockTable other = kv_.NewTable();
  ASSERT_TRUE(kv_.Grow(other, 4 * 8));  // six free ones and two of the cached
  EXPECT_EQ(kv_.stats().evicted_blocks, 2);
  EXPECT_EQ(kv_.FindPrefix(root_, {prompt, {}}, 16).blocks.size(), 2u);
  kv_.CheckInvariants();
}

TEST_F(KvCacheManagerTest, AForkSharesFullBlocksAndOwnsThePartialOne) {
  const auto prompt = Tokens(11);
  BlockTable source = Computed(prompt, root_);
  BlockTable fork = kv_.NewTable();
  PartialBlockCopy copy;
  ASSERT_TRUE(kv_.Fork(source, 10, fork, copy));
  ASSERT_EQ(fork.num_blocks(), 3);
  EXPECT_EQ(fork.blocks()[0], source.blocks()[0]);
  EXPECT_EQ(fork.blocks()[1], source.blocks()[1]);
  EXPECT_NE(fork.blocks()[2], source.blocks()[2]);
  EXPECT_EQ(copy.src, source.blocks()[2]);
  EXPECT_EQ(copy.dst, fork.blocks()[2]);
  EXPECT_EQ(copy.num_tokens, 2);
  EXPECT_EQ(kv_.num_available(), 10 - 4);
  source.Clear();
  EXPECT_EQ(kv_.num_available(), 10 - 3);
}

TEST_F(KvCacheManagerTest, AForkAtABlockBorderCopiesNothing) {
  BlockTable source = Computed(Tokens(9), root_);
  BlockTable fork = kv_.NewTable();
  PartialBlockCopy copy;
  ASSERT_TRUE(kv_.Fork(source, 8, fork, copy));
  EXPECT_EQ(copy.num_tokens, 0);
  EXPECT_EQ(fork.num_blocks(), 3);
  EXPECT_EQ(fork.chain().num_blocks, 2);
  EXPECT_FALSE(fork.chain().closed);
}

TEST_F(KvCacheManagerTest, AForkContinuesTheChainBehindItsSharedBlocks) {
  const auto prompt = Tokens(8);  // the last block is full: the fork owns a twin of it
  BlockTable source = Computed(prompt, root_);
  BlockTable fork = kv_.NewTable();
  PartialBlockCopy copy;
  ASSERT_TRUE(kv_.Fork(source, 7, fork, copy));
  EXPECT_EQ(copy.num_tokens, 3);
  ASSERT_TRUE(kv_.Grow(fork, 12));
  const auto generated = Tokens(4, 100);
  kv_.Publish(fork, {prompt, generated}, 12);
  EXPECT_FALSE(kv_.published(fork.blocks()[1]));  // the twin
  EXPECT_TRUE(kv_.published(fork.blocks()[2]));
  std::vector<TokenId> all = prompt;
  all.insert(all.end(), generated.begin(), generated.end());
  EXPECT_EQ(kv_.FindPrefix(root_, {all, {}}, 12).blocks.size(), 3u);
}

TEST_F(KvCacheManagerTest, AReservationCoversHitsAndNewBlocks) {
  const auto prompt = Tokens(9);
  { BlockTable first = Computed(prompt, root_); }
  std::optional<BlockReservation> reservation = kv_.Reserve(10);
  ASSERT_TRUE(reservation);
  EXPECT_EQ(kv_.num_available(), 0);
  BlockTable stranger = kv_.NewTable();
  EXPECT_FALSE(kv_.Grow(stranger, 1));
  BlockTable table = kv_.NewTable();
  ASSERT_TRUE(kv_.Allocate(table, kv_.FindPrefix(root_, {prompt, {}}, 8), 9, &*reservation));
  EXPECT_EQ(reservation->count(), 7);
  BlockReservation part = reservation->Split(5);
  reservation.reset();
  EXPECT_EQ(kv_.num_available(), 2);
  part.Release();
  EXPECT_EQ(kv_.num_available(), 7);
  EXPECT_FALSE(kv_.Reserve(8));
  kv_.CheckInvariants();
}

TEST_F(KvCacheManagerTest, CountsWhatManyTablesWouldFreeTogether) {
  const auto prompt = Tokens(9);
  BlockTable a = Computed(prompt, root_);
  BlockTable b = Computed(prompt, root_);  // shares two blocks
  const BlockTable* both[] = {&a, &b};
  EXPECT_EQ(kv_.NumFreedBy(std::span(both).first(1)), 1);
  EXPECT_EQ(kv_.NumFreedBy(both), 4);
  EXPECT_EQ(kv_.NumFreedBy({}), 0);
}

TEST_F(KvCacheManagerTest, TruncationKeepsThePublishedStart) {
  const auto prompt = Tokens(8);
  BlockTable table = Computed(prompt, root_);
  ASSERT_TRUE(kv_.Grow(table, 17));
  kv_.Truncate(table, 6);
  EXPECT_EQ(table.num_blocks(), 2);
  EXPECT_EQ(table.chain().num_blocks, 1);
  EXPECT_EQ(kv_.num_available(), 8);
}

TEST_F(KvCacheManagerTest, UnpublishedBlocksAreFoundNoMore) {
  const auto prompt = Tokens(9);
  BlockTable table = Computed(prompt, root_);
  kv_.Unpublish(table);
  EXPECT_EQ(kv_.FindPrefix(root_, {prompt, {}}, 8).blocks.size(), 0u);
  table.Clear();
  EXPECT_EQ(kv_.stats().num_free, 10);
  kv_.CheckInvariants();
}

TEST_F(KvCacheManagerTest, ResetForgetsAllPrefixesButTakesNoBlockAway) {
  const auto prompt = Tokens(9);
  BlockTable held = Computed(prompt, root_);
  { BlockTable gone = Computed(Tokens(9, 50), root_); }
  EXPECT_EQ(kv_.ResetPrefixCache(), 4);
  EXPECT_EQ(kv_.FindPrefix(root_, {prompt, {}}, 8).blocks.size(), 0u);
  EXPECT_EQ(kv_.stats().num_held, 3);
  EXPECT_EQ(kv_.stats().num_free, 7);
  held.Clear();
  EXPECT_EQ(kv_.stats().num_free, 10);
  kv_.CheckInvariants();
}

TEST_F(KvCacheManagerTest, TellsOfFreedAndOfEvictedBlocks) {
  std::vector<BlockId> freed;
  kv_.set_freed_listener([&](BlockId block) { freed.push_back(block); });
  BlockTable table = Computed(Tokens(9), root_);
  const std::vector<BlockId> blocks(table.blocks().begin(), table.blocks().end());
  table.Clear();
  EXPECT_THAT(freed, testing::ElementsAre(blocks[2]));  // the two full ones stay readable
  freed.clear();
  ASSERT_TRUE(kv_.Grow(table, 40));
  EXPECT_THAT(freed, testing::ElementsAre(blocks[1], blocks[0]));
}

TEST_F(KvCacheManagerTest, WithoutPrefixCacheNothingIsFoundOrKept) {
  KvCacheConfig config = Config();
  config.enable_prefix_cache = false;
  KvCacheManager kv(config);
  const auto prompt = Tokens(8);
  const PrefixChain root = kv.Root(AdapterId{}, "");
  BlockTable table = kv.NewTable();
  ASSERT_TRUE(kv.Allocate(table, kv.FindPrefix(root, {prompt, {}}, 7), 8));
  kv.Publish(table, {prompt, {}}, 8);
  EXPECT_EQ(kv.FindPrefix(root, {prompt, {}}, 8).blocks.size(), 0u);
  table.Clear();
  EXPECT_EQ(kv.stats().num_free, 10);
}

// A single block and a million: ids and sizes do not wrap.
TEST(KvCacheManager, WorksAtTheEdgesOfItsSizes) {
  for (const int32_t num_blocks : {1, 1 << 20}) {
    KvCacheConfig config;
    config.num_blocks = num_blocks;
    config.block_size = 1;
    KvCacheManager kv(config);
    BlockTable table = kv.NewTable();
    ASSERT_TRUE(kv.Grow(table, num_blocks));
    EXPECT_FALSE(kv.Grow(table, int64_t{num_blocks} + 1));
    EXPECT_FALSE(kv.Grow(table, (int64_t{1} << 31) - 1));
    EXPECT_EQ(kv.num_available(), 0);
  }
}

TEST(TokenView, CopiesAcrossTheBorder) {
  const auto prompt = Tokens(3);
  const auto generated = Tokens(4, 4);
  const TokenView view{prompt, generated};
  EXPECT_EQ(view.size(), 7);
  for (int begin = 0; begin <= 7; ++begin) {
    for (int count = 0; begin + count <= 7; ++count) {
      std::vector<TokenId> out;
      view.Copy(begin, count, std::back_inserter(out));
      EXPECT_EQ(out, Tokens(count, 1 + begin)) << begin << " " << count;
    }
  }
  EXPECT_EQ(view[2], TokenId{3});
  EXPECT_EQ(view[3], TokenId{4});
}

}  // namespace
}  // namespace longspan
