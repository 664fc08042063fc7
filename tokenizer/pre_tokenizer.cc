#include "tokenizer/pre_tokenizer.h"

#include "tokenizer/oniguruma_pattern.h"
#include "tokenizer/regex_matches.h"
#include "tokenizer/unicode_properties.h"
#include "tokenizer/utf8.h"

namespace longspan {
namespace {

// Turns matches and gaps into pieces, as the behavior says. Spans must come in order and cover the
// text.
class SpanJoiner {
 public:
  using Emit = std::function<Status(size_t begin, size_t end)>;

  SpanJoiner(SplitBehavior behavior, const Emit& emit) : behavior_(behavior), emit_(emit) {}

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
    const bool is_piece = std::exchange(has_pending_, false) && begin_ < end_;
    return is_piece ? emit_(begin_, end_) : absl::OkStatus();
  }

 private:
  // Whether a span belongs to the piece before it.
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

  std::string rewritten;  // where a step changes the text; lives as long as the steps after it run
  std::string_view text = piece.text;
  const SpanJoiner::Emit next = [&](size_t begin, size_t end) {
    const bool is_first = begin == 0;
    return Run(step + 1,
               {text.substr(begin, end - begin), is_first && piece.at_text_start,
                is_first && piece.follows_raw_bytes},
               scratch, sink);
  };

  if (const auto* split = std::get_if<SplitStep>(&steps_[step])) {
    SpanJoiner joiner(split->behavior, next);
    RETURN_IF_ERROR(
        ForEachMatch(split->pattern, text, scratch, [&](size_t begin, size_t end, bool is_match) {
          return joiner.Add(begin, end, is_match != split->invert);
        }));
    return joiner.Finish();
  }
  if (const auto* digits = std::get_if<DigitsStep>(&steps_[step])) {
    SpanJoiner joiner(digits->individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                      next);
    RETURN_IF_ERROR(ForEachDigit(text, [&](size_t begin, size_t end, bool is_match) {
      return joiner.Add(begin, end, is_match);
    }));
    return joiner.Finish();
  }
  if (const auto* metaspace = std::get_if<MetaspaceStep>(&steps_[step])) {
    rewritten = ReplaceSpaces(text, metaspace->replacement);
    const bool wants_prefix =
        metaspace->prepend_scheme == PrependScheme::kAlways ||
        (metaspace->prepend_scheme == PrependScheme::kFirst && piece.at_text_start);
    if (wants_prefix && !piece.follows_raw_bytes &&
        !rewritten.starts_with(metaspace->replacement)) {
      rewritten.insert(0, metaspace->replacement);
    }
    text = rewritten;
    if (!metaspace->split) return next(0, text.size());
    SpanJoiner joiner(SplitBehavior::kMergedWithNext, next);
    RETURN_IF_ERROR(ForEachMatch(
        metaspace->replacement, text, scratch,
        [&](size_t begin, size_t end, bool is_match) { return joiner.Add(begin, end, is_match); }));
    return joiner.Finish();
  }
  const auto& byte_level = std::get<ByteLevelStep>(steps_[step]);
  if (byte_level.add_prefix_space && !piece.follows_raw_bytes && !text.starts_with(' ')) {
    rewritten = ' ' + std::string(text);
    text = rewritten;
  }
  if (!byte_level.pattern) return next(0, text.size());
  SpanJoiner joiner(SplitBehavior::kIsolated, next);
  RETURN_IF_ERROR(ForEachMatch(
      *byte_level.pattern, text, scratch,
      [&](size_t begin, size_t end, bool is_match) { return joiner.Add(begin, end, is_match); }));
  return joiner.Finish();
}

}  // namespace longspan
