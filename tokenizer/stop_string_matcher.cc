// Knuth-Morris-Pratt for each stop string, a byte at a time. What is held back is the longest start
// of a stop string that the text ends with.
#include "tokenizer/stop_string_matcher.h"

#include <algorithm>
#include <utility>

#include "tokenizer/utf8.h"

namespace longspan {
namespace {

// border[i]: the longest proper prefix of text[0, i) that is also its suffix.
std::vector<size_t> Borders(std::string_view text) {
  std::vector<size_t> border(text.size() + 1, 0);
  size_t length = 0;
  for (size_t i = 1; i < text.size(); ++i) {
    while (length > 0 && text[i] != text[length]) length = border[length];
    if (text[i] == text[length]) ++length;
    border[i + 1] = length;
  }
  return border;
}

}  // namespace

StatusOr<StopStringMatcher> StopStringMatcher::Create(std::vector<std::string> stop_strings,
                                                      bool include_stop_in_output) {
  if (stop_strings.size() > kMaxStopStrings) {
    return InvalidArgument("stop.strings: {} strings (limit {})", stop_strings.size(),
                           kMaxStopStrings);
  }
  StopStringMatcher matcher;
  matcher.include_stop_in_output_ = include_stop_in_output;
  for (size_t i = 0; i < stop_strings.size(); ++i) {
    std::string& text = stop_strings[i];
    if (text.empty() || text.size() > kMaxStopStringBytes) {
      return InvalidArgument("stop.strings[{}]: {} bytes (limit 1 to {})", i, text.size(),
                             kMaxStopStringBytes);
    }
    if (!IsValidUtf8(text)) return InvalidArgument("stop.strings[{}]: not valid UTF-8", i);
    std::vector<size_t> border = Borders(text);
    matcher.patterns_.push_back({std::move(text), std::move(border)});
  }
  return matcher;
}

std::optional<size_t> StopStringMatcher::Step(char byte) {
  std::optional<size_t> matched;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    Pattern& pattern = patterns_[i];
    size_t length = pattern.num_matched;
    while (length > 0 && pattern.text[length] != byte) length = pattern.border[length];
    if (pattern.text[length] == byte) ++length;
    pattern.num_matched = length;
    const bool is_complete = length == pattern.text.size();
    if (is_complete && (!matched || patterns_[*matched].text.size() < length)) matched = i;
  }
  return matched;
}

size_t StopStringMatcher::NumHeldBack() const {
  size_t longest = 0;
  for (const Pattern& pattern : patterns_) longest = std::max(longest, pattern.num_matched);
  return longest;
}

StopStringMatcher::Output StopStringMatcher::Append(std::string_view text) {
  if (is_over_) return {};
  std::string seen = std::exchange(held_back_, {});
  for (char byte : text) {
    seen.push_back(byte);
    if (const std::optional<size_t> matched = Step(byte)) {
      is_over_ = true;
      if (!include_stop_in_output_) seen.resize(seen.size() - patterns_[*matched].text.size());
      return {std::move(seen), matched};
    }
  }
  const size_t num_free = seen.size() - NumHeldBack();
  held_back_ = seen.substr(num_free);
  seen.resize(num_free);
  return {std::move(seen), std::nullopt};
}

std::string StopStringMatcher::Finish() {
  is_over_ = true;
  return std::exchange(held_back_, {});
}

}  // namespace longspan
