// The one cache interface that the scheduler sees: finds cached prefixes, grows and forks block
// tables, publishes full blocks. Host bookkeeping only: block memory is kv_pool.h.
//
//   +--------- num_blocks ---------+   available = free + evictable - reserved
//   | free | evictable |   held    |   Growth is all or nothing; free blocks go first, then the
//   +------------------------------+   evictable one that was released longest ago.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/checked_math.h"
#include "core/ids.h"
#include "kvcache/block_allocator.h"
#include "kvcache/block_table.h"
#include "kvcache/prefix_cache.h"
#include "kvcache/token_view.h"

namespace longspan {

struct KvCacheConfig {
  int32_t num_blocks = 0;
  int32_t block_size = 16;  // tokens per block, 1 .. 256
  bool enable_prefix_cache = true;
  std::string identity;  // everything that changes K/V besides tokens: model, KV dtype
  PrefixCache::HashFunction hash = &PrefixCache::DefaultHash;  // tests force collisions
  uint64_t hash_seed = 0;  // a server draws one; with a fixed one all is deterministic
};

struct KvCacheStats {
  int32_t num_blocks = 0;
  int32_t num_free = 0;
  int32_t num_held = 0;  // by at least one table; shared blocks count once
  int32_t num_evictable = 0;
  int32_t num_reserved = 0;  // of free and evictable ones, promised
  int32_t num_leaked = 0;    // in no state; the scheduler adds those held while it has no sequence
  int64_t query_tokens = 0;  // prompt tokens looked up, and found, at first admissions
  int64_t hit_tokens = 0;
  int64_t evicted_blocks = 0;
};

// Cached blocks at the start of a sequence. Valid until blocks are taken by somebody else.
struct PrefixMatch {
  std::vector<BlockId> blocks;
  PrefixChain chain;          // past these blocks
  int32_t num_evictable = 0;  // of them: taking those uses up available blocks
};

// The copy that makes a fork's partial block its own.
struct PartialBlockCopy {
  BlockId src = kInvalidBlock;
  BlockId dst = kInvalidBlock;
  int32_t num_tokens = 0;  // 0: nothing to copy
};

// Engine thread only. Outlives every table and reservation that it made.
class KvCacheManager {
 public:
  explicit KvCacheManager(const KvCacheConfig& config);
  KvCacheManager(const KvCacheManager&) = delete;
  KvCacheManager& operator=(const KvCacheManager&) = delete;

  int32_t block_size() const { return config_.block_size; }
  int32_t num_blocks() const { return config_.num_blocks; }
  int32_t num_available() const { return allocator_.num_available(); }
  int32_t BlocksFor(int64_t num_tokens) const {
    return static_cast<int32_t>(CeilDiv<int64_t>(num_tokens, config_.block_size));
  }

  BlockTable NewTable() { return BlockTable(allocator_); }
  // Where the chains of a salt start. closed when the prefix cache is off.
  PrefixChain Root(AdapterId adapter, std::string_view salt) const;

  // The longest run of cached full blocks within the first max_tokens tokens.
  PrefixMatch FindPrefix(const PrefixChain& root, const TokenView& tokens,
                         int64_t max_tokens) const;
  // Available blocks that Allocate will use up.
  int32_t BlocksNeeded(const PrefixMatch& match, int64_t num_tokens) const {
    return BlocksFor(num_tokens) - static_cast<int32_t>(match.blocks.size()) + match.num_evictable;
  }

  // Fills an empty table: the matched blocks, then new ones up to num_tokens. All or nothing.
  // A reservation, where given, is used up first (here and below).
  bool Allocate(BlockTable& table, const PrefixMatch& match, int64_t num_tokens,
                BlockReservation* reservation = nullptr);
  // Adds blocks until there is room for num_tokens. All or nothing.
  bool Grow(BlockTable& table, int64_t num_tokens, BlockReservation* reservation = nullptr);
  // Fills an empty table with room for num_tokens + 1 tokens, sharing the source's full blocks
  // among the first num_tokens; the last block is new, `copy` says what goes into it. Needs one
  // block; all or nothing.
  bool Fork(const BlockTable& source, int32_t num_tokens, BlockTable& table, PartialBlockCopy& copy,
            BlockReservation* reservation = nullptr);
  // A table that holds one block of another, e.g. while a copy reads it.
  BlockTable Hold(BlockId block);
  // Gives back what lies behind the first num_tokens.
  void Truncate(BlockTable& table, int64_t num_tokens);

  std::optional<BlockReservation> Reserve(int32_t num_blocks);

  // Offers the blocks that became full to the prefix cache: [0, num_computed_tokens) is computed.
  // A block equal to a cached one is not published again; it stays private to its holder.
  void Publish(BlockTable& table, const TokenView& tokens, int64_t num_computed_tokens);
  // Takes those blocks out of the cache that this table alone holds: their content is suspect.
  void Unpublish(BlockTable& table);
  // Forgets all prefixes; returns how many blocks they were. Held blocks stay held.
  int32_t ResetPrefixCache();

  // How many blocks would become available if all these tables were cleared.
  int32_t NumFreedBy(std::span<const BlockTable* const> tables);
  bool held_by_one(BlockId block) const { return allocator_.num_holders(block) == 1; }
  bool published(BlockId block) const { return prefix_cache_.Contains(block); }

  void RecordQuery(int64_t query_tokens, int64_t hit_tokens);
  // Called with each block whose content became worthless, before anybody else gets it.
  void set_freed_listener(BlockAllocator::FreedListener listener);

  KvCacheStats stats() const;
  // CHECKs the conservation law free + held + evictable = total, and the lists. O(num_blocks).
  void CheckInvariants() const;
  // CHECKs that these tables and reservations are all there are.
  void CheckHolders(std::span<const BlockTable* const> tables, int32_t num_reserved) const;

 private:
  // Whether count blocks may be taken; charges the reservation for what it covers.
  bool UseUp(int32_t count, BlockReservation* reservation);
  BlockId TakeBlock();
  // The chain after the first blocks of a table; closed when it is not known any more.
  PrefixChain ChainAt(const BlockTable& table, int32_t num_blocks) const;

  const KvCacheConfig config_;
  BlockAllocator allocator_;
  PrefixCache prefix_cache_;
  BlockAllocator::FreedListener freed_listener_;
  std::vector<int32_t> scratch_;               // [num_blocks], all 0 between calls
  mutable std::vector<TokenId> block_tokens_;  // [block_size]
  int64_t query_tokens_ = 0;
  int64_t hit_tokens_ = 0;
  int64_t evicted_blocks_ = 0;
};

}  // namespace longspan
