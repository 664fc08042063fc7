// States of a block and the order in which blocks are taken.
#include "kvcache/block_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace longspan {
namespace {

using State = BlockAllocator::State;

TEST(BlockAllocator, HandsOutEveryBlockOnce) {
  BlockAllocator allocator(5);
  std::vector<BlockId> taken;
  for (int i = 0; i < 5; ++i) taken.push_back(allocator.TakeFree());
  EXPECT_THAT(taken, testing::UnorderedElementsAre(BlockId{0}, BlockId{1}, BlockId{2}, BlockId{3},
                                                   BlockId{4}));
  EXPECT_EQ(allocator.TakeFree(), kInvalidBlock);
  EXPECT_EQ(allocator.num_held(), 5);
  allocator.CheckInvariants();
}

TEST(BlockAllocator, FreesABlockWithItsLastHolder) {
  BlockAllocator allocator(2);
  const BlockId block = allocator.TakeFree();
  allocator.AddHolder(block);
  allocator.RemoveHolder(block);
  EXPECT_EQ(allocator.state(block), State::kHeld);
  allocator.RemoveHolder(block);
  EXPECT_EQ(allocator.state(block), State::kFree);
  EXPECT_EQ(allocator.num_free(), 2);
  allocator.CheckInvariants();
}

TEST(BlockAllocator, KeepsACachedBlockWithoutHolderEvictable) {
  BlockAllocator allocator(2);
  const BlockId block = allocator.TakeFree();
  allocator.SetCached(block, true);
  allocator.RemoveHolder(block);
  EXPECT_EQ(allocator.state(block), State::kEvictable);
  EXPECT_EQ(allocator.num_free(), 1);
  EXPECT_EQ(allocator.num_available(), 2);
  allocator.AddHolder(block);  // found again
  EXPECT_EQ(allocator.state(block), State::kHeld);
  EXPECT_EQ(allocator.num_evictable(), 0);
  allocator.CheckInvariants();
}

TEST(BlockAllocator, EvictsWhatWasReleasedLongestAgo) {
  BlockAllocator allocator(3);
  std::vector<BlockId> blocks;
  for (int i = 0; i < 3; ++i) {
    blocks.push_back(allocator.TakeFree());
    allocator.SetCached(blocks.back(), true);
  }
  for (const int i : {1, 0, 2}) allocator.RemoveHolder(blocks[static_cast<size_t>(i)]);
  allocator.AddHolder(blocks[1]);  // used once more: now it is the newest
  allocator.RemoveHolder(blocks[1]);
  EXPECT_EQ(allocator.TakeLeastRecentlyUsed(), blocks[0]);
  EXPECT_EQ(allocator.TakeLeastRecentlyUsed(), blocks[2]);
  EXPECT_EQ(allocator.TakeLeastRecentlyUsed(), blocks[1]);
  EXPECT_EQ(allocator.TakeLeastRecentlyUsed(), kInvalidBlock);
}

TEST(BlockAllocator, ReservesOnlyWhatIsAvailable) {
  BlockAllocator allocator(4);
  const BlockId held = allocator.TakeFree();
  EXPECT_FALSE(allocator.Reserve(4));
  EXPECT_EQ(allocator.num_reserved(), 0);
  EXPECT_TRUE(allocator.Reserve(3));
  EXPECT_EQ(allocator.num_available(), 0);
  EXPECT_FALSE(allocator.Reserve(1));
  allocator.Unreserve(2);
  EXPECT_EQ(allocator.num_available(), 2);
  allocator.RemoveHolder(held);
  allocator.CheckInvariants();
}

TEST(BlockAllocator, TellsOfBlocksWhoseContentIsWorthless) {
  BlockAllocator allocator(3);
  std::vector<BlockId> freed;
  allocator.set_freed_listener([&](BlockId block) { freed.push_back(block); });
  const BlockId plain = allocator.TakeFree();
  const BlockId cached = allocator.TakeFree();
  allocator.SetCached(cached, true);
  allocator.RemoveHolder(plain);
  allocator.RemoveHolder(cached);
  EXPECT_THAT(freed, testing::ElementsAre(plain));
  allocator.SetCached(cached, false);
  EXPECT_THAT(freed, testing::ElementsAre(plain, cached));
}

TEST(BlockAllocatorDeathTest, ChecksDoubleRelease) {
  BlockAllocator allocator(1);
  const BlockId block = allocator.TakeFree();
  allocator.RemoveHolder(block);
  EXPECT_DEATH(allocator.RemoveHolder(block), "CHECK failed");
  EXPECT_DEATH(allocator.AddHolder(block), "CHECK failed");
}

}  // namespace
}  // namespace longspan
