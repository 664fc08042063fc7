// Which blocks of the pool are free, held or evictable: reference counts and two lists. It does not
// know what is in a block (prefix_cache.h) nor who holds it (block_table.h).
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/ids.h"

namespace longspan {

// A block is in exactly one state:
//   free       no holder, content worthless; on the free list
//   held       by n >= 1 holders; on no list
//   evictable  no holder, but its content is in the prefix cache; on the list in order of release
// Engine thread only. All operations are O(1): the lists run through the metadata array.
class BlockAllocator {
 public:
  enum class State : uint8_t { kFree, kHeld, kEvictable };
  // Told of every block whose content became worthless (no holder, not cached). For poisoning.
  using FreedListener = std::function<void(BlockId)>;

  explicit BlockAllocator(int32_t num_blocks);
  BlockAllocator(const BlockAllocator&) = delete;
  BlockAllocator& operator=(const BlockAllocator&) = delete;

  // A block with one holder; kInvalidBlock when the list is empty. An evicted block is still marked
  // as cached: the caller takes it out of the prefix cache.
  BlockId TakeFree();
  BlockId TakeLeastRecentlyUsed();

  // One holder more: of a held or an evictable block.
  void AddHolder(BlockId block);
  // One holder less. The last one makes the block evictable if it is cached, else free.
  void RemoveHolder(BlockId block);

  // Whether the prefix cache knows the block. Taking the mark off an evictable block frees it.
  void SetCached(BlockId block, bool cached);

  // Promises count blocks to somebody, who takes them later; false when so many are not available.
  bool Reserve(int32_t count);
  void Unreserve(int32_t count);

  State state(BlockId block) const { return At(block).state; }
  bool cached(BlockId block) const { return At(block).cached; }
  int32_t num_holders(BlockId block) const { return At(block).num_holders; }

  int32_t num_blocks() const { return num_blocks_; }
  int32_t num_free() const { return free_.size; }
  int32_t num_evictable() const { return evictable_.size; }
  int32_t num_held() const { return num_held_; }
  int32_t num_reserved() const { return num_reserved_; }
  // What somebody without a reservation can take.
  int32_t num_available() const { return num_free() + num_evictable() - num_reserved_; }

  void set_freed_listener(FreedListener listener) { freed_listener_ = std::move(listener); }

  // CHECKs lists and counts against the states. O(num_blocks).
  void CheckInvariants() const;

 private:
  struct Block {
    int32_t num_holders = 0;
    int32_t previous = -1;  // on its list
    int32_t next = -1;
    State state = State::kFree;
    bool cached = false;
  };
  struct List {
    int32_t first = -1;
    int32_t last = -1;
    int32_t size = 0;
  };

  Block& At(BlockId block) { return blocks_[static_cast<size_t>(ToInt(block))]; }
  const Block& At(BlockId block) const { return blocks_[static_cast<size_t>(ToInt(block))]; }
  void PushBack(List& list, BlockId block);
  void Unlink(List& list, BlockId block);
  BlockId TakeFirst(List& list);
  void CheckList(const List& list, State state) const;

  const int32_t num_blocks_;
  std::vector<Block> blocks_;
  List free_;
  List evictable_;  // first: released longest ago
  int32_t num_held_ = 0;
  int32_t num_reserved_ = 0;
  FreedListener freed_listener_;
};

}  // namespace longspan
