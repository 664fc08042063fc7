// Rewrites a text before it is split: Unicode normal forms, lower case, replacements, a prefix. One
// object is the whole chain that a tokenizer.json names.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/status.h"
#include "tokenizer/cancel_flag.h"
#include "tokenizer/regex.h"

namespace longspan {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

struct UnicodeFormStep {
  UnicodeForm form;
};
struct LowercaseStep {};
struct PrependStep {
  std::string prefix;
};
struct ReplaceStep {
  std::variant<std::string, Regex> pattern;  // a literal is never empty
  std::string content;
};
using NormalizerStep = std::variant<UnicodeFormStep, LowercaseStep, PrependStep, ReplaceStep>;

// Immutable. Bytes that are not UTF-8 pass through unchanged and split the text for every step but
// the prefix, which is set once in front of the whole.
class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  bool empty() const { return steps_.empty(); }
  // `cancelled` is looked at between steps.
  StatusOr<std::string> Apply(std::string_view text, const CancelFlag& cancelled,
                              RegexScratch& scratch) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace longspan
