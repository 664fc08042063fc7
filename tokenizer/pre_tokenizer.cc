// One Apply per kind of step; each calls the next step for every part it cuts, so that no list of
// pieces is built.
#include "tokenizer/pre_tokenizer.h"

#include "tokenizer/oniguruma_pattern.h"
#include "tokenizer/regex_matches.h"
#include "tokenizer/unicode_properties.h"
#include "tokenizer/utf8.h"

namespace longspan {
namespace {

using Piece = PreTokenizer::Piece;
// What a step hands its parts to: `is_first` for the one at the beginning of the text.
using Emit = std::function<Status(std::string_view part, bool is_first)>;

// Turns matches and gaps into parts, as the behavior says. Spans come in order and cover the text.
class SpanJoiner {
 public:
  SpanJoiner(SplitBehavior behavior, std::string_view text, const Emit& emit)
      : behavior_(behavior), text_(text), emit_(emit) {}

  Status Add(size_t begin, size_t end, bool is_match) {
    const bool follows_match = std::exchange(previous_is_match_, is_match);
    if (behavior_ == SplitBehavior::kRemoved && is_match) return absl::OkStatus();
    if (has_pending_ && Joins(is_match, follows_match)) {
      end_ = end;
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(Finish());
    has_pending_ = true;
    begin_ = begin;
    end_ = end;
    return absl::OkStatus();
  }

  Status Finish() {
    const bool is_part = std::exchange(has_pending_, false) && begin_ < end_;
    return is_part ? emit_(text_.substr(begin_, end_ - begin_), begin_ == 0) : absl::OkStatus();
  }

 private:
  // Whether a span belongs to the part before it.
  bool Joins(bool is_match, bool follows_match) const {
    switch (behavior_) {
      case SplitBehavior::kMergedWithPrevious:
        return is_match && !follows_match;
      case SplitBehavior::kMergedWithNext:
        return !is_match && follows_match;
      case SplitBehavior::kContiguous:
        return is_match == follows_match;
      case SplitBehavior::kRemoved:
      case SplitBehavior::kIsolated:
        return false;
    }
    return false;
  }

  SplitBehavior behavior_;
  std::string_view text_;
  const Emit& emit_;
  bool previous_is_match_ = false;
  bool has_pending_ = false;
  size_t begin_ = 0;
  size_t end_ = 0;
};

Status ForEachDigit(std::string_view text, const SpanVisitor& visit) {
  size_t gap_begin = 0;
  for (size_t position = 0; position < text.size();) {
    const Utf8Character character = DecodeUtf8(text.substr(position));
    const size_t end = position + character.num_bytes;
    if (IsNumeric(character.code)) {
      if (gap_begin < position) RETURN_IF_ERROR(visit(gap_begin, position, false));
      RETURN_IF_ERROR(visit(position, end, true));
      gap_begin = end;
    }
    position = end;
  }
  return gap_begin < text.size() ? visit(gap_begin, text.size(), false) : absl::OkStatus();
}

std::string ReplaceSpaces(std::string_view text, std::string_view replacement) {
  std::string out;
  out.reserve(text.size() + replacement.size());
  for (char c : text) {
    if (c == ' ') {
      out += replacement;
    } else {
      out += c;
    }
  }
  return out;
}

// The steps: each hands out the parts of one piece.

Status Apply(const SplitStep& step, const Piece& piece, RegexScratch& scratch, const Emit& emit) {
  SpanJoiner joiner(step.behavior, piece.text, emit);
  RETURN_IF_ERROR(
      ForEachMatch(step.pattern, piece.text, scratch, [&](size_t begin, size_t end, bool is_match) {
        return joiner.Add(begin, end, is_match != step.invert);
      }));
  return joiner.Finish();
}

Status Apply(const DigitsStep& step, const Piece& piece, RegexScratch&, const Emit& emit) {
  SpanJoiner joiner(step.individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                    piece.text, emit);
  RETURN_IF_ERROR(ForEachDigit(piece.text, [&](size_t begin, size_t end, bool is_match) {
    return joiner.Add(begin, end, is_match);
  }));
  return joiner.Finish();
}

Status Apply(const MetaspaceStep& step, const Piece& piece, RegexScratch& scratch,
             const Emit& emit) {
  std::string text = ReplaceSpaces(piece.text, step.replacement);
  const bool wants_prefix = step.prepend_scheme == PrependScheme::kAlways ||
                            (step.prepend_scheme == PrependScheme::kFirst && piece.at_text_start);
  if (wants_prefix && !piece.follows_raw_bytes && !text.starts_with(step.replacement)) {
    text.insert(0, step.replacement);
  }
  if (!step.split) return emit(text, true);
  SpanJoiner joiner(SplitBehavior::kMergedWithNext, text, emit);
  RETURN_IF_ERROR(ForEachMatch(
      step.replacement, text, scratch,
      [&](size_t begin, size_t end, bool is_match) { return joiner.Add(begin, end, is_match); }));
  return joiner.Finish();
}

Status Apply(const ByteLevelStep& step, const Piece& piece, RegexScratch& scratch,
             const Emit& emit) {
  std::string prefixed;
  std::string_view text = piece.text;
  if (step.add_prefix_space && !piece.follows_raw_bytes && !text.starts_with(' ')) {
    prefixed.assign(1, ' ').append(text);
    text = prefixed;
  }
  if (!step.pattern) return emit(text, true);
  SpanJoiner joiner(SplitBehavior::kIsolated, text, emit);
  RETURN_IF_ERROR(ForEachMatch(
      *step.pattern, text, scratch,
      [&](size_t begin, size_t end, bool is_match) { return joiner.Add(begin, end, is_match); }));
  return joiner.Finish();
}

}  // namespace

StatusOr<Regex> CompileGpt2Pattern() {
  ASSIGN_OR_RETURN(
      const std::string pattern,
      TranslateOnigurumaPattern(
          R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"));
  return Regex::Compile(pattern);
}

Status PreTokenizer::Split(std::string_view text, bool at_text_start, RegexScratch& scratch,
                           const PieceSink& sink) const {
  bool follows_raw_bytes = false;
  while (!text.empty()) {
    const Utf8Stretch stretch = FirstUtf8Stretch(text);
    const std::string_view part = text.substr(0, stretch.num_bytes);
    text.remove_prefix(stretch.num_bytes);
    if (stretch.is_valid) {
      RETURN_IF_ERROR(Run(0, {part, at_text_start, follows_raw_bytes}, scratch, sink));
    } else {
      RETURN_IF_ERROR(sink(part));
    }
    at_text_start = false;
    follows_raw_bytes = true;
  }
  return absl::OkStatus();
}

Status PreTokenizer::Run(size_t step, const Piece& piece, RegexScratch& scratch,
                         const PieceSink& sink) const {
  if (piece.text.empty()) return absl::OkStatus();
  if (step == steps_.size()) return sink(piece.text);
  const Emit emit = [&](std::string_view part, bool is_first) {
    return Run(step + 1,
               {part, is_first && piece.at_text_start, is_first && piece.follows_raw_bytes},
               scratch, sink);
  };
  return std::visit([&](const auto& kind) { return Apply(kind, piece, scratch, emit); },
                    steps_[step]);
}

}  // namespace longspan
