// The walk for a literal, for a pattern, and for whichever of the two a step holds. An empty match
// right behind another match does not count.
#include "tokenizer/regex_matches.h"

#include <optional>

#include "tokenizer/utf8.h"

namespace longspan {
namespace {

Status ForEachLiteral(std::string_view literal, std::string_view text, const SpanVisitor& visit) {
  size_t previous_end = 0;
  for (;;) {
    const size_t begin = text.find(literal, previous_end);
    const size_t gap_end = begin == std::string_view::npos ? text.size() : begin;
    if (previous_end < gap_end) RETURN_IF_ERROR(visit(previous_end, gap_end, false));
    if (begin == std::string_view::npos) return absl::OkStatus();
    previous_end = begin + literal.size();
    RETURN_IF_ERROR(visit(begin, previous_end, true));
  }
}

}  // namespace

Status ForEachMatch(const Regex& regex, std::string_view text, RegexScratch& scratch,
                    const SpanVisitor& visit) {
  size_t previous_end = 0;  // of the last match
  size_t from = 0;
  std::optional<size_t> last_match_end;
  while (!text.empty() && from <= text.size()) {
    ASSIGN_OR_RETURN(const std::optional<RegexSpan> match, regex.Find(text, from, scratch));
    if (!match) break;
    // An empty match right after a match does not count; the search goes on one character later.
    if (match->begin == match->end && last_match_end == match->end) {
      if (from == text.size()) break;
      from += DecodeUtf8(text.substr(from)).num_bytes;
      continue;
    }
    if (previous_end < match->begin) RETURN_IF_ERROR(visit(previous_end, match->begin, false));
    RETURN_IF_ERROR(visit(match->begin, match->end, true));
    previous_end = from = match->end;
    last_match_end = match->end;
  }
  return previous_end < text.size() ? visit(previous_end, text.size(), false) : absl::OkStatus();
}

Status ForEachMatch(const std::variant<std::string, Regex>& pattern, std::string_view text,
                    RegexScratch& scratch, const SpanVisitor& visit) {
  if (const auto* literal = std::get_if<std::string>(&pattern)) {
    return ForEachLiteral(*literal, text, visit);
  }
  return ForEachMatch(std::get<Regex>(pattern), text, scratch, visit);
}

}  // namespace longspan
