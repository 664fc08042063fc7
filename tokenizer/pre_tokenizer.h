// Cuts a text into the pieces that byte-pair merges may not cross. One object is the whole chain of
// steps; each step cuts the pieces of the one before.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/status.h"
#include "tokenizer/regex.h"

namespace longspan {

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
enum class PrependScheme { kFirst, kNever, kAlways };

struct SplitStep {
  std::variant<std::string, Regex> pattern;  // a literal is never empty
  SplitBehavior behavior;
  bool invert;  // what the pattern does not match counts as the match
};
struct DigitsStep {
  bool individual;  // each digit is a piece of its own; else each run of digits
};
struct MetaspaceStep {
  std::string replacement;  // stands for a space
  PrependScheme prepend_scheme;
  bool split;
};
// Prepares pieces for a byte-level model, which reads their bytes as they are.
struct ByteLevelStep {
  bool add_prefix_space;
  std::optional<Regex> pattern;  // GPT-2's, unless a step before has done the splitting
};
using PreTokenizerStep = std::variant<SplitStep, DigitsStep, MetaspaceStep, ByteLevelStep>;

// The pattern that GPT-2 split text with.
StatusOr<Regex> CompileGpt2Pattern();

// Immutable. Bytes that are not UTF-8 are pieces of their own, and the text between them is cut as
// if it ended there.
class PreTokenizer {
 public:
  using PieceSink = std::function<Status(std::string_view piece)>;

  // Recursion goes as deep as there are steps.
  static constexpr size_t kMaxSteps = 64;

  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<PreTokenizerStep> steps) : steps_(std::move(steps)) {}

  // Hands out the pieces in order; none is empty, each lives only during the call. `at_text_start`:
  // this stretch of text is the beginning of what the user gave.
  Status Split(std::string_view text, bool at_text_start, RegexScratch& scratch,
               const PieceSink& sink) const;

  // What goes from step to step.
  struct Piece {
    std::string_view text;
    bool at_text_start;
    bool follows_raw_bytes;  // cut off by invalid UTF-8 only: gets no prefix
  };

 private:
  Status Run(size_t step, const Piece& piece, RegexScratch& scratch, const PieceSink& sink) const;

  std::vector<PreTokenizerStep> steps_;
};

}  // namespace longspan
