// Who holds blocks, by value: the block table of one sequence, and a promise of blocks to come.
// Destruction gives everything back; there is nothing to remember to free.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/ids.h"
#include "kvcache/block_allocator.h"
#include "kvcache/prefix_cache.h"

namespace longspan {

// Blocks held by one sequence, in token order. Move-only. Filled by KvCacheManager only.
// Engine thread only; the allocator is not owned and outlives every table.
class BlockTable {
 public:
  explicit BlockTable(BlockAllocator& allocator) : allocator_(&allocator) {}
  BlockTable(BlockTable&& other) noexcept
      : allocator_(other.allocator_),
        blocks_(std::exchange(other.blocks_, {})),
        chain_(std::exchange(other.chain_, {})) {}
  BlockTable& operator=(BlockTable&& other) noexcept;
  ~BlockTable() { Clear(); }

  // Gives all blocks back, the last first, so that the cache loses ends of prefixes before starts.
  void Clear();

  std::span<const BlockId> blocks() const { return blocks_; }
  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  // How far its full blocks were offered to the prefix cache.
  const PrefixChain& chain() const { return chain_; }

 private:
  friend class KvCacheManager;

  BlockAllocator* allocator_;
  std::vector<BlockId> blocks_;
  PrefixChain chain_;
};

// A number of blocks promised to one holder, still to be taken. Move-only.
class BlockReservation {
 public:
  BlockReservation() = default;
  BlockReservation(BlockReservation&& other) noexcept
      : allocator_(other.allocator_), count_(std::exchange(other.count_, 0)) {}
  BlockReservation& operator=(BlockReservation&& other) noexcept;
  ~BlockReservation() { Release(); }

  void Release();
  // Splits count blocks off into a reservation of their own.
  BlockReservation Split(int32_t count);
  int32_t count() const { return count_; }

 private:
  friend class KvCacheManager;
  BlockReservation(BlockAllocator* allocator, int32_t count)
      : allocator_(allocator), count_(count) {}

  BlockAllocator* allocator_ = nullptr;  // not owned
  int32_t count_ = 0;
};

}  // namespace longspan
