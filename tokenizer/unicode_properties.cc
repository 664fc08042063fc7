// The classes as tokenizers mean them, on top of utf8proc's categories, with the few characters on
// which the defining libraries' newer or older Unicode differs.
#include "tokenizer/unicode_properties.h"

#include <utf8proc.h>

namespace longspan {
namespace {

bool InRange(char32_t code, char32_t low, char32_t high) { return code >= low && code <= high; }

// Other_Alphabetic characters that are neither letters nor marks: circled and squared letters.
bool IsEnclosedLetter(char32_t code) {
  return InRange(code, 0x24B6, 0x24E9) || InRange(code, 0x1F130, 0x1F149) ||
         InRange(code, 0x1F150, 0x1F169) || InRange(code, 0x1F170, 0x1F189);
}

// Digits of Unicode 16 and 17, which the library that defines the Digits step knows and utf8proc
// does not.
bool IsNewerDigit(char32_t code) {
  return InRange(code, 0x10D40, 0x10D49) || InRange(code, 0x116D0, 0x116E3) ||
         InRange(code, 0x11BF0, 0x11BF9) || InRange(code, 0x11DE0, 0x11DE9) ||
         InRange(code, 0x16130, 0x16139) || InRange(code, 0x16D70, 0x16D79) ||
         InRange(code, 0x16FF4, 0x16FF6) || InRange(code, 0x1CCF0, 0x1CCF9) ||
         InRange(code, 0x1E5F1, 0x1E5FA);
}

}  // namespace

bool IsNumeric(char32_t code) {
  if (code < 0x80) return InRange(code, '0', '9');
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return IsNewerDigit(code);
  }
}

bool IsWhiteSpace(char32_t code) {
  return InRange(code, 0x09, 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || InRange(code, 0x2000, 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

bool IsWordCharacter(char32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return code == 0x200C || code == 0x200D || IsEnclosedLetter(code);
  }
}

}  // namespace longspan
