// The table of the alphabet, made at compile time, in both directions.
#include "tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "tokenizer/utf8.h"

namespace longspan {
namespace {

// Printable Latin-1 bytes stand for themselves.
constexpr bool IsPrintable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr int kFirstShifted = 0x100;  // the other bytes, in order, stand at U+0100, U+0101, ...
constexpr int kNumShifted = 68;

struct Alphabet {
  std::array<uint16_t, 256> character;
  std::array<int16_t, kFirstShifted + kNumShifted> byte;  // -1: not in the alphabet
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet{};
  for (int16_t& byte : alphabet.byte) byte = -1;
  int next_shifted = kFirstShifted;
  for (int byte = 0; byte < 256; ++byte) {
    const int character = IsPrintable(byte) ? byte : next_shifted++;
    alphabet.character[byte] = static_cast<uint16_t>(character);
    alphabet.byte[character] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

std::optional<std::string> DecodeByteLevel(std::string_view token_text) {
  std::string bytes;
  while (!token_text.empty()) {
    const Utf8Character character = DecodeUtf8(token_text);
    if (character.state != Utf8State::kValid || character.code >= kAlphabet.byte.size() ||
        kAlphabet.byte[character.code] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kAlphabet.byte[character.code]));
    token_text.remove_prefix(character.num_bytes);
  }
  return bytes;
}

char32_t ByteLevelCharacter(unsigned char byte) { return kAlphabet.character[byte]; }

}  // namespace longspan
