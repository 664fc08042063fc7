// A trie over the bytes of all added tokens, walked from each position of a text; the longest token
// that may stand there wins. Word and space borders are looked at only for tokens that ask for it.
#include "tokenizer/added_tokens.h"

#include <utility>

#include "core/check.h"
#include "tokenizer/unicode_properties.h"
#include "tokenizer/utf8.h"

namespace longspan {
namespace {

constexpr size_t kBytesPerCancelCheck = 64 << 10;

uint64_t EdgeKey(uint32_t node, char byte) {
  return (uint64_t{node} << 8) | static_cast<uint8_t>(byte);
}

// The last character of a text, or nullopt when it is empty or does not end in valid UTF-8.
std::optional<Utf8Character> LastCharacter(std::string_view text) {
  for (size_t length = 1; length <= 4 && length <= text.size(); ++length) {
    const Utf8Character character = DecodeUtf8(text.substr(text.size() - length));
    if (character.state == Utf8State::kValid && character.num_bytes == length) return character;
  }
  return std::nullopt;
}

bool EndsWithWord(std::string_view text) {
  const std::optional<Utf8Character> last = LastCharacter(text);
  return last && IsWordCharacter(last->code);
}

bool StartsWithWord(std::string_view text) {
  if (text.empty()) return false;
  const Utf8Character first = DecodeUtf8(text);
  return first.state == Utf8State::kValid && IsWordCharacter(first.code);
}

size_t NumSpaceBytesAtEnd(std::string_view text) {
  size_t num_bytes = 0;
  while (const auto last = LastCharacter(text.substr(0, text.size() - num_bytes))) {
    if (!IsWhiteSpace(last->code)) break;
    num_bytes += last->num_bytes;
  }
  return num_bytes;
}

size_t NumSpaceBytesAtStart(std::string_view text) {
  size_t num_bytes = 0;
  while (num_bytes < text.size()) {
    const Utf8Character first = DecodeUtf8(text.substr(num_bytes));
    if (first.state != Utf8State::kValid || !IsWhiteSpace(first.code)) break;
    num_bytes += first.num_bytes;
  }
  return num_bytes;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher() : AddedTokenMatcher(std::vector<AddedToken>()) {}

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  token_at_node_.push_back(-1);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    CHECK(!tokens_[i].content.empty());  // it would match everywhere, for ever
    first_bytes_.set(static_cast<uint8_t>(tokens_[i].content[0]));
    uint32_t node = 0;
    for (char byte : tokens_[i].content) {
      const auto [edge, is_new] =
          edges_.try_emplace(EdgeKey(node, byte), static_cast<uint32_t>(token_at_node_.size()));
      if (is_new) token_at_node_.push_back(-1);
      node = edge->second;
    }
    token_at_node_[node] = static_cast<int32_t>(i);
  }
}

const AddedToken* AddedTokenMatcher::LongestAt(std::string_view text) const {
  const AddedToken* longest = nullptr;
  uint32_t node = 0;
  for (char byte : text) {
    const auto edge = edges_.find(EdgeKey(node, byte));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (token_at_node_[node] >= 0) longest = &tokens_[token_at_node_[node]];
  }
  return longest;
}

Status AddedTokenMatcher::Split(std::string_view text, bool parse_special,
                                const CancelFlag& cancelled, const Visitor& visit) const {
  size_t done = 0;  // everything before it has been handed out
  size_t next_check = 0;
  for (size_t position = 0; !tokens_.empty() && position < text.size();) {
    if (position >= next_check) {
      RETURN_IF_ERROR(cancelled.Check());
      next_check = position + kBytesPerCancelCheck;
    }
    const AddedToken* token = first_bytes_[static_cast<uint8_t>(text[position])]
                                  ? LongestAt(text.substr(position))
                                  : nullptr;
    if (token == nullptr) {
      ++position;
      continue;
    }
    size_t begin = position;
    size_t end = position + token->content.size();
    position = end;
    if (token->is_special && !parse_special) continue;
    if (token->is_single_word &&
        (EndsWithWord(text.substr(0, begin)) || StartsWithWord(text.substr(end)))) {
      continue;
    }
    if (begin < done) continue;  // inside white space that the token before it swallowed
    if (token->strips_left) begin -= NumSpaceBytesAtEnd(text.substr(done, begin - done));
    if (token->strips_right) end += NumSpaceBytesAtStart(text.substr(end));
    if (done < begin) RETURN_IF_ERROR(visit(text.substr(done, begin - done), std::nullopt));
    RETURN_IF_ERROR(visit(text.substr(begin, end - begin), token->id));
    done = end;
  }
  return done < text.size() ? visit(text.substr(done), std::nullopt) : absl::OkStatus();
}

}  // namespace longspan
