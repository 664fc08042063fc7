// The steps of the chain on stretches of valid UTF-8. Unicode tables are utf8proc's; where the
// library that defines the format knows an older or newer Unicode, single characters are put right
// here.
#include "tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "tokenizer/regex_matches.h"
#include "tokenizer/utf8.h"

namespace longspan {
namespace {

using CodePoints = std::vector<utf8proc_int32_t>;

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

uint16_t CombiningClass(utf8proc_int32_t code) {
  return static_cast<uint16_t>(utf8proc_get_property(code)->combining_class);
}

// Characters that the library which defines the format does not decompose: its tables are those of
// Unicode 11, and these came later.
bool IsLeftWhole(char32_t code) {
  struct Range {
    char32_t first;
    char32_t last;
  };
  static constexpr std::array<Range, 8> kRanges = {{{0x32FF, 0x32FF},
                                                    {0xA7F2, 0xA7F4},
                                                    {0xAB69, 0xAB69},
                                                    {0x10781, 0x107BA},
                                                    {0x11938, 0x11938},
                                                    {0x1E030, 0x1E06D},
                                                    {0x1F16C, 0x1F16C},
                                                    {0x1FBF0, 0x1FBF9}}};
  return std::any_of(kRanges.begin(), kRanges.end(), [code](const Range& range) {
    return code >= range.first && code <= range.last;
  });
}

CodePoints Decompose(std::string_view text, utf8proc_option_t options) {
  CodePoints out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character character = DecodeUtf8(text);
    text.remove_prefix(character.num_bytes);
    if (IsLeftWhole(character.code)) {
      out.push_back(static_cast<utf8proc_int32_t>(character.code));
      continue;
    }
    utf8proc_int32_t buffer[32];  // the longest compatibility decomposition has 18 characters
    int boundary_state = 0;
    const utf8proc_ssize_t num =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(character.code), buffer,
                                std::size(buffer), options, &boundary_state);
    out.insert(out.end(), buffer, buffer + std::clamp<utf8proc_ssize_t>(num, 0, std::size(buffer)));
  }
  return out;
}

// Canonical order: every run of marks sorted by combining class. utf8proc sorts by insertion, which
// is quadratic in the length of a run.
void OrderMarks(CodePoints& codes) {
  const auto is_starter = [](utf8proc_int32_t code) { return CombiningClass(code) == 0; };
  auto begin = codes.begin();
  while (begin != codes.end()) {
    begin = std::find_if_not(begin, codes.end(), is_starter);
    const auto end = std::find_if(begin, codes.end(), is_starter);
    std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return CombiningClass(a) < CombiningClass(b);
    });
    begin = end;
  }
}

std::string ToUnicodeForm(std::string_view text, UnicodeForm form) {
  const bool is_compatible = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  const int options = UTF8PROC_DECOMPOSE | (is_compatible ? UTF8PROC_COMPAT : 0);
  CodePoints codes = Decompose(text, static_cast<utf8proc_option_t>(options));
  OrderMarks(codes);
  if (form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc) {
    const utf8proc_ssize_t length = utf8proc_normalize_utf32(
        codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    codes.resize(static_cast<size_t>(std::max<utf8proc_ssize_t>(length, 0)));
  }
  std::string out;
  out.reserve(text.size());
  for (utf8proc_int32_t code : codes) AppendUtf8(static_cast<char32_t>(code), out);
  return out;
}

// Simple lower case, with the pairs of Unicode 16 and 17 that utf8proc does not know.
char32_t LowercaseOf(char32_t code) {
  if (code >= 0x10D50 && code <= 0x10D65) return code + 0x20;
  if (code >= 0x16EA0 && code <= 0x16EB8) return code + 0x1B;
  switch (code) {
    case 0x1C89:
    case 0xA7CC:
    case 0xA7CE:
    case 0xA7D2:
    case 0xA7D4:
    case 0xA7DA:
      return code + 1;
    case 0xA7CB:
      return 0x264;
    case 0xA7DC:
      return 0x19B;
    default:
      return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
  }
}

std::string ToLowercase(std::string_view text) {
  constexpr char32_t kCapitalIWithDot = 0x130;  // the one character whose lower case is two
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character character = DecodeUtf8(text);
    text.remove_prefix(character.num_bytes);
    if (character.code == kCapitalIWithDot) {
      out += "i\xCC\x87";
    } else {
      AppendUtf8(LowercaseOf(character.code), out);
    }
  }
  return out;
}

StatusOr<std::string> Replace(std::string_view text, const ReplaceStep& step,
                              RegexScratch& scratch) {
  std::string out;
  out.reserve(text.size());
  RETURN_IF_ERROR(ForEachMatch(
      step.pattern, text, scratch, [&](size_t begin, size_t end, bool is_match) -> Status {
        out += is_match ? std::string_view(step.content) : text.substr(begin, end - begin);
        return absl::OkStatus();
      }));
  return out;
}

StatusOr<std::string> ApplyToValid(const NormalizerStep& step, std::string_view text,
                                   RegexScratch& scratch) {
  if (const auto* unicode = std::get_if<UnicodeFormStep>(&step)) {
    return IsAscii(text) ? std::string(text) : ToUnicodeForm(text, unicode->form);
  }
  if (std::holds_alternative<LowercaseStep>(step)) return ToLowercase(text);
  return Replace(text, std::get<ReplaceStep>(step), scratch);
}

}  // namespace

StatusOr<std::string> Normalizer::Apply(std::string_view text, const CancelFlag& cancelled,
                                        RegexScratch& scratch) const {
  std::string current(text);
  for (const NormalizerStep& step : steps_) {
    if (current.empty()) break;
    if (const auto* prepend = std::get_if<PrependStep>(&step)) {
      current.insert(0, prepend->prefix);
      continue;
    }
    std::string next;
    std::string_view rest = current;
    while (!rest.empty()) {
      RETURN_IF_ERROR(cancelled.Check());
      const Utf8Stretch stretch = FirstUtf8Stretch(rest);
      const std::string_view part = rest.substr(0, stretch.num_bytes);
      rest.remove_prefix(stretch.num_bytes);
      if (stretch.is_valid) {
        ASSIGN_OR_RETURN(const std::string changed, ApplyToValid(step, part, scratch));
        next += changed;
      } else {
        next += part;
      }
    }
    current = std::move(next);
  }
  return current;
}

}  // namespace longspan
