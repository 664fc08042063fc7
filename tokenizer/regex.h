// PCRE2 with Unicode properties, JIT-compiled, and with a bound on the work of one match, so that a
// pattern that backtracks without end fails instead of hanging. Text must be valid UTF-8.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/status.h"

namespace longspan {

struct RegexSpan {
  size_t begin;
  size_t end;
};

// What matching writes to: one per call of Tokenizer::Encode, used by one thread.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct Buffers;
  std::unique_ptr<Buffers> buffers_;
};

// A compiled pattern; immutable, shared by threads. Copies share the compiled code.
class Regex {
 public:
  // `pattern` is in PCRE2's syntax; line ends are "\n" alone.
  static StatusOr<Regex> Compile(const std::string& pattern);

  // The first match that begins at or after `from`; look-behind may see what is before it.
  StatusOr<std::optional<RegexSpan>> Find(std::string_view text, size_t from,
                                          RegexScratch& scratch) const;

 private:
  struct Code;
  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;
};

}  // namespace longspan
