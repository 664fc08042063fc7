// Allocation through the free list and then by eviction; publication of full blocks.
#include "kvcache/kv_cache_manager.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace longspan {

KvCacheManager::KvCacheManager(const KvCacheConfig& config)
    : config_(config),
      allocator_(config.num_blocks),
      prefix_cache_(config.num_blocks, config.block_size, config.hash),
      scratch_(static_cast<size_t>(config.num_blocks)),
      block_tokens_(static_cast<size_t>(config.block_size)) {}

PrefixChain KvCacheManager::Root(AdapterId adapter, std::string_view salt) const {
  PrefixChain root = PrefixCache::Root(config_.identity, adapter, salt, config_.hash_seed);
  root.closed = !config_.enable_prefix_cache;
  return root;
}

PrefixMatch KvCacheManager::FindPrefix(const PrefixChain& root, const TokenView& tokens,
                                       int64_t max_tokens) const {
  PrefixMatch match;
  match.chain = root;
  if (root.closed) return match;
  const int64_t size = config_.block_size;
  for (int64_t begin = 0; begin + size <= max_tokens; begin += size) {
    tokens.Copy(begin, size, block_tokens_.begin());
    const BlockHash hash = prefix_cache_.HashBlock(match.chain, block_tokens_);
    const BlockId block = prefix_cache_.Find(match.chain, hash, block_tokens_);
    if (block == kInvalidBlock) break;
    prefix_cache_.Advance(match.chain, block);
    match.blocks.push_back(block);
    match.num_evictable += allocator_.state(block) == BlockAllocator::State::kEvictable;
  }
  return match;
}

BlockId KvCacheManager::TakeBlock() {
  BlockId block = allocator_.TakeFree();
  if (block != kInvalidBlock) return block;
  block = allocator_.TakeLeastRecentlyUsed();
  CHECK(block != kInvalidBlock);
  prefix_cache_.Remove(block);
  allocator_.SetCached(block, false);
  ++evicted_blocks_;
  if (freed_listener_) freed_listener_(block);
  return block;
}

bool KvCacheManager::UseUp(int32_t count, BlockReservation* reservation) {
  const int32_t promised = reservation == nullptr ? 0 : std::min(count, reservation->count_);
  if (count - promised > allocator_.num_available()) return false;
  if (promised > 0) {
    reservation->count_ -= promised;
    allocator_.Unreserve(promised);
  }
  return true;
}

bool KvCacheManager::Allocate(BlockTable& table, const PrefixMatch& match, int64_t num_tokens,
                              BlockReservation* reservation) {
  CHECK(table.blocks_.empty());
  const auto num_matched = static_cast<int32_t>(match.blocks.size());
  const int32_t num_new = std::max(0, BlocksFor(num_tokens) - num_matched);
  if (!UseUp(num_new + match.num_evictable, reservation)) return false;
  table.blocks_.reserve(match.blocks.size() + static_cast<size_t>(num_new));
  for (const BlockId block : match.blocks) {  // held before anything can evict them
    CHECK(prefix_cache_.Contains(block), "block {}", ToInt(block));
    allocator_.AddHolder(block);
    table.blocks_.push_back(block);
  }
  for (int32_t i = 0; i < num_new; ++i) table.blocks_.push_back(TakeBlock());
  table.chain_ = match.chain;
  return true;
}

bool KvCacheManager::Grow(BlockTable& table, int64_t num_tokens, BlockReservation* reservation) {
  const int32_t num_new = BlocksFor(num_tokens) - table.num_blocks();
  if (num_new <= 0) return true;
  if (!UseUp(num_new, reservation)) return false;
  for (int32_t i = 0; i < num_new; ++i) table.blocks_.push_back(TakeBlock());
  return true;
}

bool KvCacheManager::Fork(const BlockTable& source, int32_t num_tokens, BlockTable& table,
                          PartialBlockCopy& copy, BlockReservation* reservation) {
  const int32_t num_shared = num_tokens / config_.block_size;
  CHECK(table.blocks_.empty() && source.num_blocks() >= BlocksFor(num_tokens),
        "{} blocks for {} tokens", source.num_blocks(), num_tokens);
  if (!UseUp(1, reservation)) return false;
  table.blocks_.reserve(static_cast<size_t>(num_shared) + 1);
  for (int32_t i = 0; i < num_shared; ++i) {
    allocator_.AddHolder(source.blocks_[static_cast<size_t>(i)]);
    table.blocks_.push_back(source.blocks_[static_cast<size_t>(i)]);
  }
  table.chain_ = ChainAt(source, num_shared);
  table.blocks_.push_back(TakeBlock());
  copy = {};
  copy.num_tokens = num_tokens % config_.block_size;
  if (copy.num_tokens > 0) {
    copy.src = source.blocks_[static_cast<size_t>(num_shared)];
    copy.dst = table.blocks_.back();
  }
  return true;
}

PrefixChain KvCacheManager::ChainAt(const BlockTable& table, int32_t num_blocks) const {
  if (table.chain_.closed || table.chain_.num_blocks == num_blocks) return table.chain_;
  PrefixChain chain;
  chain.root = table.chain_.root;
  const BlockId last =
      num_blocks > 0 ? table.blocks_[static_cast<size_t>(num_blocks) - 1] : kInvalidBlock;
  if (table.chain_.num_blocks < num_blocks || (num_blocks > 0 && !prefix_cache_.Contains(last))) {
    chain.closed = true;  // a private twin of a cached block: its place could only be hashed anew
    return chain;
  }
  if (num_blocks == 0) {
    chain.hash = chain.root;
    return chain;
  }
  chain.num_blocks = num_blocks - 1;
  prefix_cache_.Advance(chain, last);
  return chain;
}

BlockTable KvCacheManager::Hold(BlockId block) {
  BlockTable table(allocator_);
  allocator_.AddHolder(block);
  table.blocks_.push_back(block);
  table.chain_.closed = true;
  return table;
}

void KvCacheManager::Truncate(BlockTable& table, int64_t num_tokens) {
  const int32_t num_kept = BlocksFor(num_tokens);
  while (table.num_blocks() > num_kept) {
    allocator_.RemoveHolder(table.blocks_.back());
    table.blocks_.pop_back();
  }
  const auto num_full = static_cast<int32_t>(num_tokens / config_.block_size);
  if (table.chain_.num_blocks > num_full) table.chain_ = ChainAt(table, num_full);
}

std::optional<BlockReservation> KvCacheManager::Reserve(int32_t num_blocks) {
  if (!allocator_.Reserve(num_blocks)) return std::nullopt;
  return BlockReservation(&allocator_, num_blocks);
}

void KvCacheManager::Publish(BlockTable& table, const TokenView& tokens,
                             int64_t num_computed_tokens) {
  PrefixChain& chain = table.chain_;
  const int64_t size = config_.block_size;
  while (!chain.closed && (chain.num_blocks + 1) * size <= num_computed_tokens) {
    tokens.Copy(chain.num_blocks * size, size, block_tokens_.begin());
    const BlockId own = table.blocks_[static_cast<size_t>(chain.num_blocks)];
    const BlockHash hash = prefix_cache_.HashBlock(chain, block_tokens_);
    BlockId cached = prefix_cache_.Find(chain, hash, block_tokens_);
    if (cached == kInvalidBlock) {
      CHECK(!prefix_cache_.Contains(own), "block {}", ToInt(own));
      prefix_cache_.Insert(own, chain, hash, block_tokens_);
      allocator_.SetCached(own, true);
      cached = own;
    }
    prefix_cache_.Advance(chain, cached);
  }
}

void KvCacheManager::Unpublish(BlockTable& table) {
  table.chain_.closed = true;
  for (const BlockId block : table.blocks_) {
    if (!prefix_cache_.Contains(block) || !held_by_one(block)) continue;
    prefix_cache_.Remove(block);
    allocator_.SetCached(block, false);
  }
}

int32_t KvCacheManager::ResetPrefixCache() {
  const int32_t num_dropped = prefix_cache_.size();
  for (int32_t i = 0; i < config_.num_blocks; ++i) {
    if (!prefix_cache_.Contains(BlockId{i})) continue;
    prefix_cache_.Remove(BlockId{i});
    allocator_.SetCached(BlockId{i}, false);
  }
  return num_dropped;
}

int32_t KvCacheManager::NumFreedBy(std::span<const BlockTable* const> tables) {
  int32_t num_freed = 0;
  for (const BlockTable* table : tables) {
    for (const BlockId block : table->blocks_) {
      num_freed += ++scratch_[static_cast<size_t>(ToInt(block))] == allocator_.num_holders(block);
    }
  }
  for (const BlockTable* table : tables) {
    for (const BlockId block : table->blocks_) scratch_[static_cast<size_t>(ToInt(block))] = 0;
  }
  return num_freed;
}

void KvCacheManager::RecordQuery(int64_t query_tokens, int64_t hit_tokens) {
  query_tokens_ += query_tokens;
  hit_tokens_ += hit_tokens;
}

void KvCacheManager::set_freed_listener(BlockAllocator::FreedListener listener) {
  freed_listener_ = listener;
  allocator_.set_freed_listener(std::move(listener));
}

KvCacheStats KvCacheManager::stats() const {
  KvCacheStats stats;
  stats.num_blocks = config_.num_blocks;
  stats.num_free = allocator_.num_free();
  stats.num_held = allocator_.num_held();
  stats.num_evictable = allocator_.num_evictable();
  stats.num_reserved = allocator_.num_reserved();
  stats.num_leaked = stats.num_blocks - stats.num_free - stats.num_held - stats.num_evictable;
  stats.query_tokens = query_tokens_;
  stats.hit_tokens = hit_tokens_;
  stats.evicted_blocks = evicted_blocks_;
  return stats;
}

void KvCacheManager::CheckInvariants() const {
  allocator_.CheckInvariants();
  prefix_cache_.CheckInvariants();
  for (int32_t i = 0; i < config_.num_blocks; ++i) {
    CHECK(prefix_cache_.Contains(BlockId{i}) == allocator_.cached(BlockId{i}), "block {}", i);
    CHECK(scratch_[static_cast<size_t>(i)] == 0, "block {}", i);
  }
}

void KvCacheManager::CheckHolders(std::span<const BlockTable* const> tables,
                                  int32_t num_reserved) const {
  std::vector<int32_t> holders(static_cast<size_t>(config_.num_blocks));
  for (const BlockTable* table : tables) {
    for (const BlockId block : table->blocks_) ++holders[static_cast<size_t>(ToInt(block))];
  }
  for (int32_t i = 0; i < config_.num_blocks; ++i) {
    CHECK(holders[static_cast<size_t>(i)] == allocator_.num_holders(BlockId{i}),
          "block {}: {} holders, counted {}", i, holders[static_cast<size_t>(i)],
          allocator_.num_holders(BlockId{i}));
  }
  CHECK(num_reserved == allocator_.num_reserved(), "{} reserved, counted {}", num_reserved,
        allocator_.num_reserved());
}

}  // namespace longspan
