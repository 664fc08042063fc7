// Which block holds which tokens: an index over full blocks by a hash chain. A hash only finds
// candidates; a match is confirmed by the block's tokens and by the identity of its parent block.
// It neither holds nor frees blocks: that is block_allocator.h.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/ids.h"

namespace longspan {

struct BlockHash {
  uint64_t low = 0;
  uint64_t high = 0;
  friend bool operator==(const BlockHash&, const BlockHash&) = default;
};

// A place in a hash chain: everything that decides the K/V of the next block, but its own tokens.
struct PrefixChain {
  BlockHash hash;       // of all tokens so far, and of the root
  BlockHash root;       // of model, adapter and salt; compared too, so no collision crosses a salt
  uint64_t parent = 0;  // identity of the cached block before; 0: none
  int32_t num_blocks = 0;
  bool closed = false;  // the place is not known: nothing more is found or published
};

// Engine thread only. Every entry belongs to one block; O(1) per operation without allocation.
class PrefixCache {
 public:
  // hash of (parent hash, tokens). Tests pass a poor one to force collisions.
  using HashFunction = BlockHash (*)(const BlockHash& parent, std::span<const TokenId> tokens);
  static BlockHash DefaultHash(const BlockHash& parent, std::span<const TokenId> tokens);

  PrefixCache(int32_t num_blocks, int32_t block_size, HashFunction hash);

  // The start of a chain. identity: all that changes K/V besides tokens (model, KV dtype);
  // salt: isolates tenants; seed: makes hashes of the process unknown to its clients, who could
  // else fill one bucket.
  static PrefixChain Root(std::string_view identity, AdapterId adapter, std::string_view salt,
                          uint64_t seed);

  BlockHash HashBlock(const PrefixChain& chain, std::span<const TokenId> tokens) const;
  // The block with these tokens at this place of the chain; kInvalidBlock when there is none.
  BlockId Find(const PrefixChain& chain, const BlockHash& hash,
               std::span<const TokenId> tokens) const;
  void Insert(BlockId block, const PrefixChain& chain, const BlockHash& hash,
              std::span<const TokenId> tokens);
  void Remove(BlockId block);

  bool Contains(BlockId block) const { return At(block).identity != 0; }
  // Moves the chain past a block that it contains.
  void Advance(PrefixChain& chain, BlockId block) const;

  int32_t size() const { return size_; }
  void CheckInvariants() const;

 private:
  struct Entry {
    BlockHash hash;
    BlockHash root;
    uint64_t identity = 0;  // of this entry, never used twice; 0: no entry
    uint64_t parent = 0;
    int32_t next = -1;  // in its bucket
  };

  Entry& At(BlockId block) { return entries_[static_cast<size_t>(ToInt(block))]; }
  const Entry& At(BlockId block) const { return entries_[static_cast<size_t>(ToInt(block))]; }
  int32_t& BucketOf(const BlockHash& hash) { return buckets_[hash.low & bucket_mask_]; }
  int32_t BucketOf(const BlockHash& hash) const { return buckets_[hash.low & bucket_mask_]; }

  const int32_t block_size_;
  const HashFunction hash_;
  std::vector<Entry> entries_;    // by block
  std::vector<TokenId> tokens_;   // [num_blocks, block_size]
  std::vector<int32_t> buckets_;  // first entry, or -1; a power of two
  uint64_t bucket_mask_ = 0;
  uint64_t next_identity_ = 1;
  int32_t size_ = 0;
};

}  // namespace longspan
