// The table of lead bytes and what follows from it. No locale, no library.
#include "tokenizer/utf8.h"

#include <cstdint>

namespace longspan {
namespace {

// What may follow a lead byte: the number of continuation bytes and the range of the first of them
// (the table "well-formed UTF-8 byte sequences" of the Unicode standard).
struct LeadByte {
  size_t num_following;
  uint8_t first_low;
  uint8_t first_high;
};

LeadByte Classify(uint8_t lead) {
  if (lead < 0xC2 || lead > 0xF4) return {0, 0, 0};
  if (lead < 0xE0) return {1, 0x80, 0xBF};
  if (lead < 0xF0) {
    return {2, static_cast<uint8_t>(lead == 0xE0 ? 0xA0 : 0x80),
            static_cast<uint8_t>(lead == 0xED ? 0x9F : 0xBF)};
  }
  return {3, static_cast<uint8_t>(lead == 0xF0 ? 0x90 : 0x80),
          static_cast<uint8_t>(lead == 0xF4 ? 0x8F : 0xBF)};
}

}  // namespace

Utf8Character DecodeUtf8(std::string_view text) {
  const uint8_t lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return {Utf8State::kValid, lead, 1};
  const LeadByte rule = Classify(lead);
  if (rule.num_following == 0) return {Utf8State::kInvalid, 0, 1};
  char32_t code = lead & (0x3F >> rule.num_following);
  for (size_t i = 1; i <= rule.num_following; ++i) {
    if (i == text.size()) return {Utf8State::kIncomplete, 0, i};
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    const uint8_t low = i == 1 ? rule.first_low : 0x80;
    const uint8_t high = i == 1 ? rule.first_high : 0xBF;
    if (byte < low || byte > high) return {Utf8State::kInvalid, 0, i};
    code = (code << 6) | (byte & 0x3F);
  }
  return {Utf8State::kValid, code, rule.num_following + 1};
}

void AppendUtf8(char32_t code, std::string& out) {
  const auto continuation = [&](int shift) {
    out.push_back(static_cast<char>(0x80 | ((code >> shift) & 0x3F)));
  };
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (code >> 6)));
    continuation(0);
  } else if (code < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | (code >> 12)));
    continuation(6);
    continuation(0);
  } else {
    out.push_back(static_cast<char>(0xF0 | (code >> 18)));
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

bool IsValidUtf8(std::string_view text) {
  if (text.empty()) return true;
  const Utf8Stretch stretch = FirstUtf8Stretch(text);
  return stretch.is_valid && stretch.num_bytes == text.size();
}

Utf8Stretch FirstUtf8Stretch(std::string_view text) {
  const bool is_valid = DecodeUtf8(text).state == Utf8State::kValid;
  size_t end = 0;
  while (end < text.size()) {
    const Utf8Character character = DecodeUtf8(text.substr(end));
    if ((character.state == Utf8State::kValid) != is_valid) break;
    end += character.num_bytes;
  }
  return {end, is_valid};
}

size_t AppendWholeCharacters(std::string_view text, std::string& out) {
  size_t position = 0;
  while (position < text.size()) {
    const Utf8Character character = DecodeUtf8(text.substr(position));
    if (character.state == Utf8State::kIncomplete) break;
    if (character.state == Utf8State::kValid) {
      out.append(text.substr(position, character.num_bytes));
    } else {
      out.append(kReplacementCharacter);
    }
    position += character.num_bytes;
  }
  return position;
}

}  // namespace longspan
