#include "tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
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

CodePoints Decompose(std::string_view text, utf8proc_option_t options) {
  CodePoints out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character character = DecodeUtf8(text);
    text.remove_prefix(character.num_bytes);
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
      AppendUtf8(
          static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character.code))),
          out);
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

StatusOr<std::string> Normalizer::Apply(std::string_view text, RegexScratch& scratch) const {
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
