// Lists and counts of blocks. Every state change happens in one of the five functions that CHECK
// it.
#include "kvcache/block_allocator.h"

#include "core/check.h"

namespace longspan {

BlockAllocator::BlockAllocator(int32_t num_blocks)
    : num_blocks_(num_blocks), blocks_(static_cast<size_t>(num_blocks)) {
  CHECK(num_blocks > 0, "num_blocks {}", num_blocks);
  for (int32_t i = 0; i < num_blocks; ++i) PushBack(free_, BlockId{i});
}

void BlockAllocator::PushBack(List& list, BlockId block) {
  Block& entry = At(block);
  entry.previous = list.last;
  entry.next = -1;
  if (list.last >= 0) {
    At(BlockId{list.last}).next = ToInt(block);
  } else {
    list.first = ToInt(block);
  }
  list.last = ToInt(block);
  ++list.size;
}

void BlockAllocator::Unlink(List& list, BlockId block) {
  Block& entry = At(block);
  (entry.previous >= 0 ? At(BlockId{entry.previous}).next : list.first) = entry.next;
  (entry.next >= 0 ? At(BlockId{entry.next}).previous : list.last) = entry.previous;
  entry.previous = entry.next = -1;
  --list.size;
}

BlockId BlockAllocator::TakeFirst(List& list) {
  if (list.size == 0) return kInvalidBlock;
  const BlockId block{list.first};
  Unlink(list, block);
  At(block).state = State::kHeld;
  At(block).num_holders = 1;
  ++num_held_;
  return block;
}

BlockId BlockAllocator::TakeFree() { return TakeFirst(free_); }

BlockId BlockAllocator::TakeLeastRecentlyUsed() { return TakeFirst(evictable_); }

void BlockAllocator::AddHolder(BlockId block) {
  Block& entry = At(block);
  CHECK(entry.state != State::kFree, "block {}", ToInt(block));
  if (entry.state == State::kEvictable) {
    Unlink(evictable_, block);
    entry.state = State::kHeld;
    ++num_held_;
  }
  ++entry.num_holders;
}

void BlockAllocator::RemoveHolder(BlockId block) {
  Block& entry = At(block);
  CHECK(entry.state == State::kHeld && entry.num_holders > 0, "block {} holders {}", ToInt(block),
        entry.num_holders);
  if (--entry.num_holders > 0) return;
  --num_held_;
  if (entry.cached) {
    entry.state = State::kEvictable;
    PushBack(evictable_, block);
  } else {
    entry.state = State::kFree;
    PushBack(free_, block);
    if (freed_listener_) freed_listener_(block);
  }
}

void BlockAllocator::SetCached(BlockId block, bool cached) {
  Block& entry = At(block);
  CHECK(entry.state != State::kFree, "block {}", ToInt(block));
  entry.cached = cached;
  if (cached || entry.state == State::kHeld) return;
  Unlink(evictable_, block);
  entry.state = State::kFree;
  PushBack(free_, block);
  if (freed_listener_) freed_listener_(block);
}

bool BlockAllocator::Reserve(int32_t count) {
  CHECK(count >= 0, "count {}", count);
  if (count > num_available()) return false;
  num_reserved_ += count;
  return true;
}

void BlockAllocator::Unreserve(int32_t count) {
  CHECK(count >= 0 && count <= num_reserved_, "count {} reserved {}", count, num_reserved_);
  num_reserved_ -= count;
}

void BlockAllocator::CheckList(const List& list, State state) const {
  int32_t size = 0;
  int32_t previous = -1;
  for (int32_t i = list.first; i >= 0; i = At(BlockId{i}).next) {
    const Block& entry = At(BlockId{i});
    CHECK(entry.state == state && entry.previous == previous && entry.num_holders == 0, "block {}",
          i);
    CHECK(entry.cached == (state == State::kEvictable), "block {}", i);
    previous = i;
    CHECK(++size <= list.size, "list longer than {}", list.size);
  }
  CHECK(size == list.size && previous == list.last, "size {} of {}", size, list.size);
}

void BlockAllocator::CheckInvariants() const {
  CheckList(free_, State::kFree);
  CheckList(evictable_, State::kEvictable);
  int32_t num_held = 0;
  for (const Block& entry : blocks_) {
    CHECK((entry.state == State::kHeld) == (entry.num_holders > 0), "holders {}",
          entry.num_holders);
    num_held += entry.state == State::kHeld;
  }
  CHECK(num_held == num_held_, "held {} counted {}", num_held, num_held_);
  CHECK(free_.size + evictable_.size + num_held_ == num_blocks_, "{} + {} + {} of {}", free_.size,
        evictable_.size, num_held_, num_blocks_);
  CHECK(num_reserved_ >= 0 && num_available() >= 0, "reserved {} available {}", num_reserved_,
        num_available());
}

}  // namespace longspan
