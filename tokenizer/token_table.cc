// All tokens' bytes in one string with offsets. Ids without a token have no bytes.
#include "tokenizer/token_table.h"

#include "core/check.h"

namespace longspan {

void TokenTable::Add(TokenId id, std::string_view bytes, bool is_special) {
  CHECK(ToInt(id) >= size(), "id {} after {} ids", ToInt(id), size());
  PadTo(ToInt(id));
  bytes_.append(bytes);
  ends_.push_back(bytes_.size());
  flags_.push_back(static_cast<uint8_t>(kPresent | (is_special ? kSpecial : 0)));
}

void TokenTable::PadTo(int32_t size) {
  if (size <= this->size()) return;
  ends_.resize(static_cast<size_t>(size), bytes_.size());
  flags_.resize(static_cast<size_t>(size), 0);
}

std::string_view TokenTable::Bytes(TokenId id) const {
  if (!Contains(id)) return {};
  const size_t index = static_cast<size_t>(ToInt(id));
  const size_t begin = index == 0 ? 0 : ends_[index - 1];
  return std::string_view(bytes_).substr(begin, ends_[index] - begin);
}

}  // namespace longspan
