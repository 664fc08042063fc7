// The heap, and the buckets by rank with a small heap for candidates that come late. Same order
// from both; bpe_model.cc chooses by length.
#include "tokenizer/merge_queue.h"

#include <algorithm>
#include <functional>

namespace longspan {
namespace {

// Heap order: std's heaps put the largest on top, so "less" means "worse".
bool IsWorse(const MergeCandidate& a, const MergeCandidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

template <typename T>
void PushSmallestOnTop(std::vector<T>& heap, T value) {
  heap.push_back(value);
  std::push_heap(heap.begin(), heap.end(), std::greater<>());
}

template <typename T>
T PopSmallest(std::vector<T>& heap) {
  std::pop_heap(heap.begin(), heap.end(), std::greater<>());
  const T value = heap.back();
  heap.pop_back();
  return value;
}

}  // namespace

void HeapMergeQueue::Push(MergeCandidate candidate) {
  heap_.push_back(candidate);
  std::push_heap(heap_.begin(), heap_.end(), IsWorse);
}

std::optional<MergeCandidate> HeapMergeQueue::Pop() {
  if (heap_.empty()) return std::nullopt;
  std::pop_heap(heap_.begin(), heap_.end(), IsWorse);
  const MergeCandidate best = heap_.back();
  heap_.pop_back();
  return best;
}

void BucketMergeQueue::Clear(size_t num_ranks) {
  for (uint32_t rank : rank_of_bucket_) bucket_of_rank_[rank] = -1;
  bucket_of_rank_.resize(num_ranks, -1);
  rank_of_bucket_.clear();
  buckets_.clear();
  active_ranks_.clear();
}

void BucketMergeQueue::Push(MergeCandidate candidate) {
  int32_t& index = bucket_of_rank_[candidate.rank];
  if (index < 0) {
    index = static_cast<int32_t>(buckets_.size());
    buckets_.emplace_back();
    rank_of_bucket_.push_back(candidate.rank);
  }
  Bucket& bucket = buckets_[static_cast<size_t>(index)];
  if (bucket.positions.empty() || candidate.position >= bucket.positions.back()) {
    bucket.positions.push_back(candidate.position);
  } else {
    PushSmallestOnTop(bucket.late, candidate.position);
  }
  if (!bucket.is_active) {
    bucket.is_active = true;
    PushSmallestOnTop(active_ranks_, candidate.rank);
  }
}

std::optional<MergeCandidate> BucketMergeQueue::Pop() {
  while (!active_ranks_.empty()) {
    const uint32_t rank = active_ranks_.front();
    Bucket& bucket = buckets_[static_cast<size_t>(bucket_of_rank_[rank])];
    const bool has_next = bucket.num_popped < bucket.positions.size();
    if (!bucket.late.empty() &&
        (!has_next || bucket.late.front() < bucket.positions[bucket.num_popped])) {
      return MergeCandidate{rank, PopSmallest(bucket.late)};
    }
    if (has_next) return MergeCandidate{rank, bucket.positions[bucket.num_popped++]};
    bucket.positions.clear();
    bucket.num_popped = 0;
    bucket.is_active = false;
    PopSmallest(active_ranks_);
  }
  return std::nullopt;
}

}  // namespace longspan
