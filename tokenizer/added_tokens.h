// Finds the tokens that are taken out of a text before anything else happens to it: special tokens
// such as "<|im_start|>" and words that were added to a vocabulary later.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/ids.h"
#include "core/status.h"
#include "tokenizer/cancel_flag.h"

namespace longspan {

inline constexpr size_t kMaxAddedTokenBytes = 256;

struct AddedToken {
  std::string content;  // 1..kMaxAddedTokenBytes bytes
  TokenId id;
  bool is_special = false;      // found only when the caller asks for special tokens
  bool is_single_word = false;  // not found next to a word character
  bool strips_left = false;     // swallows the white space before it
  bool strips_right = false;
};

// Leftmost-longest search over all tokens at once. Immutable, shared by threads.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher();
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  // Hands out the stretches of the text in order: an id for a token, none for the text between.
  // None is empty. With parse_special false a special token is text, also for the tokens inside it.
  using Visitor = std::function<Status(std::string_view stretch, std::optional<TokenId> id)>;
  Status Split(std::string_view text, bool parse_special, const CancelFlag& cancelled,
               const Visitor& visit) const;

 private:
  const AddedToken* LongestAt(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<uint64_t, uint32_t> edges_;  // (node << 8 | byte) -> node; 0 is the root
  std::vector<int32_t> token_at_node_;            // index into tokens_, or -1
  std::bitset<256> first_bytes_;
};

}  // namespace longspan
