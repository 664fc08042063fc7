// The character classes that tokenizers are defined by, from utf8proc's tables.
#pragma once

namespace longspan {

// General category Nd, Nl or No: what the Digits pre-tokenizer calls a digit.
bool IsNumeric(char32_t code);

// The Unicode property White_Space.
bool IsWhiteSpace(char32_t code);

// Part of a word in the sense of UTS #18: alphabetic, mark, decimal number, connector punctuation
// or join control. Decides whether a single_word token stands alone.
bool IsWordCharacter(char32_t code);

}  // namespace longspan
