// What each id of a vocabulary stands for when it is read back: bytes and flags, in two flat
// arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"

namespace longspan {

class TokenTable {
 public:
  TokenTable() = default;

  // Ids are added in rising order; those left out are gaps without a token.
  void Add(TokenId id, std::string_view bytes, bool is_special);

  // Makes the table end with gaps, so that it has `size` ids; no effect on a longer one.
  void PadTo(int32_t size);

  int32_t size() const { return static_cast<int32_t>(flags_.size()); }  // one past the largest id
  bool Contains(TokenId id) const { return (FlagsOf(id) & kPresent) != 0; }
  bool IsSpecial(TokenId id) const { return (FlagsOf(id) & kSpecial) != 0; }
  std::string_view Bytes(TokenId id) const;  // empty for an id without a token

 private:
  static constexpr uint8_t kPresent = 1;
  static constexpr uint8_t kSpecial = 2;

  uint8_t FlagsOf(TokenId id) const {
    return ToInt(id) >= 0 && ToInt(id) < size() ? flags_[static_cast<size_t>(ToInt(id))] : 0;
  }

  std::string bytes_;           // of all tokens, one after the other
  std::vector<size_t> ends_;    // [id]: end of its bytes; they begin where those of id - 1 end
  std::vector<uint8_t> flags_;  // [id]
};

}  // namespace longspan
