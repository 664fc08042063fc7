// UTF-8 one character at a time, strict (no surrogates, no overlong forms, nothing above U+10FFFF),
// and the repair of broken text. Invalid bytes are grouped as Unicode recommends: a maximal subpart
// is the longest start of a character that the bytes spell, or else a single byte.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace longspan {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8State {
  kValid,
  kInvalid,
  kIncomplete,  // the text ends inside a character that more bytes could complete
};

struct Utf8Character {
  Utf8State state;
  char32_t code;     // only when valid
  size_t num_bytes;  // of the character, or of the maximal subpart
};

// The first character of a text that is not empty.
Utf8Character DecodeUtf8(std::string_view text);

void AppendUtf8(char32_t code, std::string& out);

bool IsValidUtf8(std::string_view text);

// Length of the first stretch, all of it valid or all of it not; `text` is not empty.
struct Utf8Stretch {
  size_t num_bytes;
  bool is_valid;
};
Utf8Stretch FirstUtf8Stretch(std::string_view text);

// Appends the text with U+FFFD for every maximal subpart, but leaves out an incomplete character at
// its end; returns how many bytes were consumed.
size_t AppendWholeCharacters(std::string_view text, std::string& out);

}  // namespace longspan
