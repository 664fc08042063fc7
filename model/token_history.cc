// Counts in a small open table that grows with distinct tokens, and a ring of the last few tokens
// for words to avoid. One sequence, one thread at a time.
#include "model/token_history.h"

#include <algorithm>

#include "core/check.h"

namespace longspan {
namespace {

constexpr size_t kMinPlaces = 64;

}  // namespace

void TokenHistory::Reset(int32_t tail_length) {
  counts_.clear();
  std::fill(places_.begin(), places_.end(), -1);
  tail_.clear();
  tail_length_ = static_cast<size_t>(tail_length);
}

void TokenHistory::Append(TokenId token, bool generated) {
  if ((counts_.size() + 1) * 2 > places_.size()) Rehash(std::max(kMinPlaces, places_.size() * 2));
  int32_t& place = places_[PlaceOf(token)];
  if (place < 0) {
    place = static_cast<int32_t>(counts_.size());
    counts_.push_back({.token = token});
  }
  counts_[static_cast<size_t>(place)].num_generated += generated ? 1 : 0;
  if (tail_length_ == 0) return;
  if (tail_.size() == tail_length_) tail_.erase(tail_.begin());
  tail_.push_back(token);
}

bool TokenHistory::EndsWith(std::span<const TokenId> tokens) const {
  DCHECK(tokens.size() <= tail_length_);
  return tokens.size() <= tail_.size() &&
         std::equal(tokens.begin(), tokens.end(),
                    tail_.end() - static_cast<ptrdiff_t>(tokens.size()));
}

void TokenHistory::Rehash(size_t num_places) {
  places_.assign(num_places, -1);
  for (size_t i = 0; i < counts_.size(); ++i) {
    places_[PlaceOf(counts_[i].token)] = static_cast<int32_t>(i);
  }
}

size_t TokenHistory::PlaceOf(TokenId token) const {
  const size_t mask = places_.size() - 1;
  // Multiplying spreads runs of ids; the upper half of the product is the well-mixed one.
  size_t place = (static_cast<uint32_t>(ToInt(token)) * uint64_t{0x9e3779b97f4a7c15u}) >> 32;
  for (place &= mask;; place = (place + 1) & mask) {
    const int32_t index = places_[place];
    if (index < 0 || counts_[static_cast<size_t>(index)].token == token) return place;
  }
}

}  // namespace longspan
