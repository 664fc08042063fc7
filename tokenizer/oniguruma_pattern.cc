// One pass over the pattern that writes PCRE2 as it reads. Each construct is copied, rewritten or
// refused; there is no default that lets something unknown pass.
#include "tokenizer/oniguruma_pattern.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <optional>
#include <vector>

#include "tokenizer/utf8.h"

namespace longspan {
namespace {

// The property White_Space and its complement as class contents. PCRE2's own \s also takes U+180E.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff})"
    R"(\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{d7ff})"
    R"(\x{e000}-\x{10ffff})";

// Letters and numbers of Unicode 15 and 16, which Oniguruma knows and PCRE2 10.42 does not. (The
// other categories stay at Unicode 14: nothing that we load splits text by them.)
constexpr std::string_view kNewerLetters =
    R"(\x{1c89}-\x{1c8a}\x{a7cb}-\x{a7cd}\x{a7da}-\x{a7dc}\x{105c0}-\x{105f3})"
    R"(\x{10d4a}-\x{10d65}\x{10d6f}-\x{10d85}\x{10ec2}-\x{10ec4}\x{1123f}-\x{11240})"
    R"(\x{11380}-\x{11389}\x{1138b}\x{1138e}\x{11390}-\x{113b5}\x{113b7}\x{113d1}\x{113d3})"
    R"(\x{11bc0}-\x{11be0}\x{11f02}\x{11f04}-\x{11f10}\x{11f12}-\x{11f33}\x{1342f})"
    R"(\x{13441}-\x{13446}\x{13460}-\x{143fa}\x{16100}-\x{1611d}\x{16d40}-\x{16d6c}\x{18cff})"
    R"(\x{1b132}\x{1b155}\x{1df25}-\x{1df2a}\x{1e030}-\x{1e06d}\x{1e4d0}-\x{1e4eb})"
    R"(\x{1e5d0}-\x{1e5ed}\x{1e5f0}\x{2b739}\x{2ebf0}-\x{2ee5d}\x{31350}-\x{323af})";
constexpr std::string_view kNewerNumbers =
    R"(\x{10d40}-\x{10d49}\x{116d0}-\x{116e3}\x{11bf0}-\x{11bf9}\x{11f50}-\x{11f59})"
    R"(\x{16130}-\x{16139}\x{16d70}-\x{16d79}\x{1ccf0}-\x{1ccf9}\x{1d2c0}-\x{1d2d3})"
    R"(\x{1e4f0}-\x{1e4f9}\x{1e5f1}-\x{1e5fa})";

constexpr std::array<std::string_view, 37> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl",
    "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk",
    "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cn", "Co", "Cs"};

// Pairs of letters that case folding also maps to one character (a ligature, ß): Oniguruma matches
// those ignoring case, PCRE2 does not.
constexpr std::array<std::string_view, 5> kFoldingPairs = {"ss", "st", "ff", "fi", "fl"};

bool IsAsciiLetter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsAsciiPunctuation(char32_t c) {
  return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) ||
         (c >= 0x7B && c <= 0x7E);
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  StatusOr<std::string> Run() {
    if (!IsValidUtf8(in_)) return InvalidArgument("pattern is not valid UTF-8");
    while (!AtEnd()) RETURN_IF_ERROR(Element());
    if (!group_is_caseless_.empty()) return Refuse("a group that is not closed");
    return std::move(out_);
  }

 private:
  bool AtEnd() const { return position_ == in_.size(); }
  bool LooksAt(std::string_view text) const { return in_.substr(position_).starts_with(text); }
  bool Take(std::string_view text) {
    if (!LooksAt(text)) return false;
    position_ += text.size();
    return true;
  }
  char32_t TakeCharacter() {
    const Utf8Character character = DecodeUtf8(in_.substr(position_));
    position_ += character.num_bytes;
    return character.code;
  }
  bool IsCaseless() const { return !group_is_caseless_.empty() && group_is_caseless_.back(); }
  Status Refuse(std::string_view what) const {
    return InvalidArgument("pattern: {} is not supported (at byte {})", what, position_);
  }

  Status Element() {
    const char c = in_[position_];
    if (c != '\\' && !IsAsciiLetter(static_cast<unsigned char>(c))) last_letter_ = 0;
    switch (c) {
      case '\\':
        ++position_;
        return Escape();
      case '[':
        ++position_;
        return CharacterClass();
      case '(':
        return OpenGroup();
      case ')':
        if (group_is_caseless_.empty()) return Refuse("an unmatched )");
        group_is_caseless_.pop_back();
        break;
      case '^':
      case '$':
        out_ += fmt::format("(?m:{})", c);
        ++position_;
        return absl::OkStatus();
      case '{':
        return Refuse("a { that is no repeat count");
      case '*':
      case '+':
      case '?':
        return Repeat();
      case '|':
      case '.':
        break;
      default:
        RETURN_IF_ERROR(Literal(TakeCharacter()));
        return LooksAt("{") ? Count() : absl::OkStatus();
    }
    out_ += c;
    ++position_;
    return c != '|' && LooksAt("{") ? Count() : absl::OkStatus();
  }

  // *, +, ? with an optional ? (lazy) or + (possessive); both engines agree on these.
  Status Repeat() {
    out_ += in_[position_++];
    if (LooksAt("?") || LooksAt("+")) out_ += in_[position_++];
    if (LooksAt("*") || LooksAt("+") || LooksAt("?") || LooksAt("{")) {
      return Refuse("a repeat of a repeat");
    }
    return absl::OkStatus();
  }

  // {n}, {n,}, {n,m}, {,m}. A + after it is possessive in one engine and a second repeat in the
  // other.
  Status Count() {
    const size_t close = in_.find('}', position_);
    if (close == std::string_view::npos) return Refuse("a { that is no repeat count");
    const std::string_view body = in_.substr(position_ + 1, close - position_ - 1);
    const size_t comma = body.find(',');
    const std::string_view low = body.substr(0, comma);
    const std::string_view high =
        comma == std::string_view::npos ? std::string_view() : body.substr(comma + 1);
    const auto is_number = [](std::string_view text) {
      return text.size() <= 4 && text.find_first_not_of("0123456789") == std::string_view::npos;
    };
    if (!is_number(low) || !is_number(high) || (low.empty() && high.empty())) {
      return Refuse("a { that is no repeat count");
    }
    position_ = close + 1;
    out_ += fmt::format("{{{}{}{}}}", low.empty() ? "0" : low,
                        comma == std::string_view::npos ? "" : ",", high);
    if (comma != std::string_view::npos && Take("?")) out_ += '?';
    if (LooksAt("*") || LooksAt("+") || LooksAt("?") || LooksAt("{")) {
      return Refuse("a repeat of a repeat");
    }
    return absl::OkStatus();
  }

  Status OpenGroup() {
    struct Opening {
      std::string_view text;
      bool makes_caseless;
    };
    static constexpr std::array<Opening, 7> kOpenings = {{{"(?:", false},
                                                          {"(?i:", true},
                                                          {"(?=", false},
                                                          {"(?!", false},
                                                          {"(?<=", false},
                                                          {"(?<!", false},
                                                          {"(?>", false}}};
    for (const Opening& opening : kOpenings) {
      if (!Take(opening.text)) continue;
      out_ += opening.text;
      group_is_caseless_.push_back(IsCaseless() || opening.makes_caseless);
      return absl::OkStatus();
    }
    if (LooksAt("(?") || LooksAt("(*")) return Refuse("this kind of group");
    ++position_;
    out_ += "(?:";  // nothing reads a captured group
    group_is_caseless_.push_back(IsCaseless());
    return absl::OkStatus();
  }

  Status Literal(char32_t c) {
    RETURN_IF_ERROR(CheckCaseless(c));
    AppendLiteral(c);
    return absl::OkStatus();
  }

  void AppendLiteral(char32_t c) {
    if (IsAsciiPunctuation(c)) out_ += '\\';
    AppendUtf8(c, out_);
  }

  // Case folding agrees for single ASCII letters only.
  Status CheckCaseless(char32_t c) {
    if (!IsCaseless()) return absl::OkStatus();
    if (c >= 0x80) return Refuse("a character outside ASCII that ignores case");
    const char lower = static_cast<char>(std::tolower(static_cast<int>(c)));
    const std::array<char, 2> pair = {last_letter_, lower};
    for (std::string_view folding : kFoldingPairs) {
      if (folding == std::string_view(pair.data(), pair.size())) {
        return Refuse("a ligature's letter pair that ignores case");
      }
    }
    last_letter_ = IsAsciiLetter(c) ? lower : '\0';
    return absl::OkStatus();
  }

  // What an escape stands for: one character, or a set (contents of a class) or all but the set.
  struct Meaning {
    std::optional<char32_t> character;
    std::string set;
    bool is_complement = false;
  };

  // After a backslash outside a class.
  Status Escape() {
    if (Take("A")) {
      out_ += "\\A";
      return absl::OkStatus();
    }
    if (Take("z")) {
      out_ += "\\z";
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const Meaning meaning, ParseEscape());
    if (meaning.character) {
      RETURN_IF_ERROR(Literal(*meaning.character));
    } else {
      last_letter_ = 0;
      out_ += (meaning.is_complement ? "[^" : "[") + meaning.set + ']';
    }
    return LooksAt("{") ? Count() : absl::OkStatus();
  }

  StatusOr<Meaning> ParseEscape() {
    if (AtEnd()) return Refuse("a backslash at the end");
    const char32_t c = TakeCharacter();
    switch (c) {
      case 's':
        return Meaning{{}, std::string(kSpace), false};
      case 'S':
        return Meaning{{}, std::string(kNotSpace), false};
      case 'd':
        return Meaning{{}, "\\p{Nd}", false};
      case 'D':
        return Meaning{{}, "\\P{Nd}", false};
      case 'p':
      case 'P':
        return Property(c == 'P');
      case 'n':
        return Meaning{U'\n', {}, false};
      case 'r':
        return Meaning{U'\r', {}, false};
      case 't':
        return Meaning{U'\t', {}, false};
      case 'f':
        return Meaning{U'\f', {}, false};
      case 'v':
        return Meaning{U'\v', {}, false};
      case 'x':
        return Hexadecimal(LooksAt("{") ? 0 : 2);
      case 'u':
        return Hexadecimal(4);
      default:
        if (IsAsciiPunctuation(c) || c == ' ') return Meaning{c, {}, false};
        if (c < 0x20 || c == 0x7f) {  // named, not quoted: messages are one line
          return Refuse(fmt::format("a backslash before control character {}", uint32_t{c}));
        }
        std::string name = "\\";
        AppendUtf8(c, name);
        return Refuse(name);
    }
  }

  // \x{H...} (num_digits 0), \xHH or \uHHHH.
  StatusOr<Meaning> Hexadecimal(size_t num_digits) {
    std::string_view digits;
    if (num_digits == 0) {
      const size_t close = in_.find('}', position_);
      if (close == std::string_view::npos) return Refuse("a \\x{ that is not closed");
      digits = in_.substr(position_ + 1, close - position_ - 1);
      position_ = close + 1;
    } else {
      digits = in_.substr(position_, num_digits);
      if (digits.size() < num_digits) return Refuse("a hexadecimal escape cut short");
      position_ += num_digits;
    }
    char32_t code = 0;
    for (char digit : digits) {
      if (!std::isxdigit(static_cast<unsigned char>(digit))) return Refuse("a wrong hex digit");
      code = code * 16 + static_cast<char32_t>(std::isdigit(static_cast<unsigned char>(digit))
                                                   ? digit - '0'
                                                   : std::tolower(digit) - 'a' + 10);
    }
    // \x80 and above is a raw byte in Oniguruma.
    const bool is_raw_byte = num_digits == 2 && code >= 0x80;
    if (digits.empty() || digits.size() > 6 || code > 0x10FFFF || is_raw_byte ||
        (code >= 0xD800 && code <= 0xDFFF)) {
      return Refuse("this hexadecimal escape");
    }
    return Meaning{code, {}, false};
  }

  StatusOr<Meaning> Property(bool is_negated) {
    const size_t close = in_.find('}', position_);
    if (!LooksAt("{") || close == std::string_view::npos) return Refuse("\\p without {}");
    if (IsCaseless()) return Refuse("a property that ignores case");
    std::string_view name = in_.substr(position_ + 1, close - position_ - 1);
    if (name.starts_with('^')) {
      is_negated = !is_negated;
      name.remove_prefix(1);
    }
    if (name.empty()) return Refuse("\\p{}");
    for (char c : name) {
      if (!IsAsciiLetter(static_cast<unsigned char>(c)) && c != '_') return Refuse("this property");
    }
    position_ = close + 1;
    if (name == "L") return Meaning{{}, fmt::format("\\p{{L}}{}", kNewerLetters), is_negated};
    if (name == "N") return Meaning{{}, fmt::format("\\p{{N}}{}", kNewerNumbers), is_negated};
    for (std::string_view category : kCategories) {
      if (name == category) {
        return Meaning{{}, fmt::format("\\{}{{{}}}", is_negated ? 'P' : 'p', name), false};
      }
    }
    // A script; PCRE2 itself refuses a name that is none. Plain \p{Han} would be script extensions.
    return Meaning{{}, fmt::format("\\{}{{sc:{}}}", is_negated ? 'P' : 'p', name), false};
  }

  // After '['.
  Status CharacterClass() {
    out_ += '[';
    if (Take("^")) {
      if (IsCaseless()) return Refuse("a negated class that ignores case");
      out_ += '^';
    }
    if (LooksAt("]")) return Refuse("an empty class");
    while (!Take("]")) {
      if (AtEnd()) return Refuse("a class that is not closed");
      RETURN_IF_ERROR(ClassItem());
    }
    out_ += ']';
    last_letter_ = 0;
    return LooksAt("{") ? Count() : absl::OkStatus();
  }

  // One character, set or range.
  Status ClassItem() {
    ASSIGN_OR_RETURN(const Meaning first, ClassAtom());
    const bool is_range = LooksAt("-") && !LooksAt("-]");
    if (!first.character) {
      if (is_range) return Refuse("a range that begins with a set");
      if (first.is_complement) return Refuse("the complement of a property inside a class");
      out_ += first.set;
      return absl::OkStatus();
    }
    AppendLiteral(*first.character);
    if (!is_range) return absl::OkStatus();
    ++position_;
    ASSIGN_OR_RETURN(const Meaning last, ClassAtom());
    if (!last.character) return Refuse("a range that ends with a set");
    if (*last.character < *first.character) return Refuse("a range that runs backwards");
    out_ += '-';
    AppendLiteral(*last.character);
    return absl::OkStatus();
  }

  StatusOr<Meaning> ClassAtom() {
    if (AtEnd()) return Refuse("a class that is not closed");
    if (LooksAt("[")) return Refuse("a class inside a class");
    if (LooksAt("&&")) return Refuse("an intersection of classes");
    if (Take("\\")) return ParseEscape();
    const char32_t c = TakeCharacter();
    if (IsCaseless() && c >= 0x80) return Refuse("a character outside ASCII that ignores case");
    return Meaning{c, {}, false};
  }

  std::string_view in_;
  size_t position_ = 0;
  std::string out_;
  std::vector<bool> group_is_caseless_;
  char last_letter_ = 0;  // the letter just before, in lower case, where case is ignored; else 0
};

}  // namespace

StatusOr<std::string> TranslateOnigurumaPattern(std::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace longspan
