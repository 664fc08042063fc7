// Which pair of a piece to merge next: the lowest rank first, then the leftmost. Two queues with
// the same order: a binary heap for the usual short piece, and buckets by rank for long ones, where
// a heap of millions of entries would miss the cache at every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace longspan {

struct MergeCandidate {
  uint32_t rank;
  int32_t position;  // of the pair's left symbol
};

class HeapMergeQueue {
 public:
  void Clear() { heap_.clear(); }
  void Push(MergeCandidate candidate);
  std::optional<MergeCandidate> Pop();

 private:
  std::vector<MergeCandidate> heap_;
};

// Positions of one rank mostly arrive in rising order, so a bucket is a list read from the front;
// those that come late wait in a small heap beside it.
class BucketMergeQueue {
 public:
  // Ranks are in [0, num_ranks). Must be called before the first Push.
  void Clear(size_t num_ranks);
  void Push(MergeCandidate candidate);
  std::optional<MergeCandidate> Pop();

 private:
  struct Bucket {
    std::vector<int32_t> positions;  // rising
    size_t num_popped = 0;           // from the front of positions
    std::vector<int32_t> late;       // heap, the smallest on top
    bool is_active = false;          // its rank is in active_ranks_
  };

  std::vector<int32_t> bucket_of_rank_;  // index into buckets_, -1: none yet
  std::vector<uint32_t> rank_of_bucket_;
  std::vector<Bucket> buckets_;
  std::vector<uint32_t> active_ranks_;  // heap, the smallest on top
};

}  // namespace longspan
