// The byte-level alphabet that GPT-2 introduced: vocabulary files write each of the 256 bytes as
// one printable character ("Ġ" is the space), so that tokens can stand in text files.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace longspan {

// The bytes that a token's text spells; nullopt when one of its characters is not in the alphabet.
std::optional<std::string> DecodeByteLevel(std::string_view token_text);

// The character that stands for a byte.
char32_t ByteLevelCharacter(unsigned char byte);

}  // namespace longspan
