// Hash chain and index of full blocks. Buckets are chained through the entries themselves.
#include "kvcache/prefix_cache.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "core/check.h"

namespace longspan {

namespace {

constexpr size_t kMaxBlockSize = 256;

BlockHash FromXxh(XXH128_hash_t hash) { return {hash.low64, hash.high64}; }

}  // namespace

BlockHash PrefixCache::DefaultHash(const BlockHash& parent, std::span<const TokenId> tokens) {
  std::array<std::byte, sizeof(BlockHash) + kMaxBlockSize * sizeof(TokenId)> bytes;
  std::memcpy(bytes.data(), &parent, sizeof(parent));
  std::memcpy(bytes.data() + sizeof(parent), tokens.data(), tokens.size_bytes());
  return FromXxh(XXH3_128bits(bytes.data(), sizeof(parent) + tokens.size_bytes()));
}

PrefixCache::PrefixCache(int32_t num_blocks, int32_t block_size, HashFunction hash)
    : block_size_(block_size),
      hash_(hash),
      entries_(static_cast<size_t>(num_blocks)),
      tokens_(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_size)),
      buckets_(std::bit_ceil(static_cast<size_t>(num_blocks)), -1),
      bucket_mask_(buckets_.size() - 1) {
  CHECK(block_size > 0 && block_size <= static_cast<int32_t>(kMaxBlockSize), "block_size {}",
        block_size);
}

PrefixChain PrefixCache::Root(std::string_view identity, AdapterId adapter, std::string_view salt,
                              uint64_t seed) {
  const BlockHash parts[3] = {FromXxh(XXH3_128bits(identity.data(), identity.size())),
                              FromXxh(XXH3_128bits(salt.data(), salt.size())),
                              {static_cast<uint64_t>(ToInt(adapter)), seed}};
  PrefixChain root;
  root.root = root.hash = FromXxh(XXH3_128bits(parts, sizeof(parts)));
  return root;
}

BlockHash PrefixCache::HashBlock(const PrefixChain& chain, std::span<const TokenId> tokens) const {
  return hash_(chain.hash, tokens);
}

BlockId PrefixCache::Find(const PrefixChain& chain, const BlockHash& hash,
                          std::span<const TokenId> tokens) const {
  for (int32_t i = BucketOf(hash); i >= 0; i = At(BlockId{i}).next) {
    const Entry& entry = At(BlockId{i});
    if (entry.hash != hash || entry.parent != chain.parent || entry.root != chain.root) continue;
    const auto begin = tokens_.begin() + static_cast<int64_t>(i) * block_size_;
    if (std::equal(tokens.begin(), tokens.end(), begin)) return BlockId{i};
  }
  return kInvalidBlock;
}

void PrefixCache::Insert(BlockId block, const PrefixChain& chain, const BlockHash& hash,
                         std::span<const TokenId> tokens) {
  Entry& entry = At(block);
  CHECK(entry.identity == 0 && tokens.size() == static_cast<size_t>(block_size_), "block {}",
        ToInt(block));
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + static_cast<int64_t>(ToInt(block)) * block_size_);
  int32_t& bucket = BucketOf(hash);
  entry = {hash, chain.root, next_identity_++, chain.parent, bucket};
  bucket = ToInt(block);
  ++size_;
}

void PrefixCache::Remove(BlockId block) {
  Entry& entry = At(block);
  CHECK(entry.identity != 0, "block {}", ToInt(block));
  int32_t* link = &BucketOf(entry.hash);
  while (*link != ToInt(block)) link = &At(BlockId{*link}).next;
  *link = entry.next;
  entry = {};
  --size_;
}

void PrefixCache::Advance(PrefixChain& chain, BlockId block) const {
  const Entry& entry = At(block);
  chain.hash = entry.hash;
  chain.parent = entry.identity;
  ++chain.num_blocks;
}

void PrefixCache::CheckInvariants() const {
  int32_t size = 0;
  for (const int32_t first : buckets_) {
    for (int32_t i = first; i >= 0; i = At(BlockId{i}).next) {
      CHECK(At(BlockId{i}).identity != 0, "block {}", i);
      CHECK(++size <= size_, "more entries than {}", size_);
    }
  }
  CHECK(size == size_, "{} entries, counted {}", size, size_);
}

}  // namespace longspan
