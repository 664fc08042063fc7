// A sequence's tokens in the two pieces in which they are kept: the prompt, which all sequences of
// a request share, and what one of them generated. A view: it owns and copies nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/ids.h"

namespace longspan {

struct TokenView {
  std::span<const TokenId> prompt;
  std::span<const TokenId> generated;

  int64_t size() const { return static_cast<int64_t>(prompt.size() + generated.size()); }
  TokenId operator[](int64_t i) const {
    const auto at = static_cast<size_t>(i);
    return at < prompt.size() ? prompt[at] : generated[at - prompt.size()];
  }
  // Tokens [begin, begin + count) to `out`, any output iterator.
  template <typename Out>
  Out Copy(int64_t begin, int64_t count, Out out) const {
    const auto border = static_cast<int64_t>(prompt.size());
    const int64_t end = begin + count;
    if (begin < border) {
      out = std::copy(prompt.begin() + begin, prompt.begin() + std::min(end, border), out);
    }
    if (end > border) {
      out = std::copy(generated.begin() + (std::max(begin, border) - border),
                      generated.begin() + (end - border), out);
    }
    return out;
  }
};

}  // namespace longspan
