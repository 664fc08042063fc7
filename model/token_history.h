// What the sampler must remember of one sequence's earlier tokens: how often each occurred, and the
// last few in order. Not the whole text: memory grows with distinct tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"

namespace longspan {

// Engine thread only. Reset keeps capacity, so a slot's history is reused without allocation.
class TokenHistory {
 public:
  struct Count {
    TokenId token{};
    int32_t num_generated = 0;  // 0: in the prompt only
  };

  // tail_length: how many of the last tokens EndsWith may compare.
  void Reset(int32_t tail_length);
  void Append(TokenId token, bool generated);

  // Every distinct token, in order of first occurrence.
  std::span<const Count> counts() const { return counts_; }

  // Whether the last tokens are exactly `tokens`, which has at most tail_length of them.
  bool EndsWith(std::span<const TokenId> tokens) const;

 private:
  void Rehash(size_t num_places);
  size_t PlaceOf(TokenId token) const;  // of the token, or the free place where it belongs

  std::vector<Count> counts_;
  std::vector<int32_t> places_;  // open addressing, a power of two: index into counts_, or -1
  std::vector<TokenId> tail_;    // oldest first
  size_t tail_length_ = 0;
};

}  // namespace longspan
