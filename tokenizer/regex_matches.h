// Walks a text as an alternation of matches and what lies between them, for a literal or a pattern.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <variant>

#include "core/status.h"
#include "tokenizer/regex.h"

namespace longspan {

// Called with [begin, end) in text order; the spans cover the text. Gaps are never empty, matches
// of a pattern may be.
using SpanVisitor = std::function<Status(size_t begin, size_t end, bool is_match)>;

// Valid UTF-8 only; a literal is not empty. Stops at the first status that is not OK and returns
// it.
Status ForEachMatch(const std::variant<std::string, Regex>& pattern, std::string_view text,
                    RegexScratch& scratch, const SpanVisitor& visit);
Status ForEachMatch(const Regex& regex, std::string_view text, RegexScratch& scratch,
                    const SpanVisitor& visit);

}  // namespace longspan
