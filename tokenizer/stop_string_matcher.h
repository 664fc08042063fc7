// Looks for stop strings in a text that arrives in pieces, and says how much of it may be shown
// already. Works on bytes: where token and character borders lie does not matter, nor how the text
// is cut up.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace longspan {

inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopStringBytes = 1024;

// One per output stream, used by one thread at a time. The match that is complete first in the text
// wins; of several that end at the same byte, the one that starts first. Text lags behind by less
// than the longest stop string.
class StopStringMatcher {
 public:
  // Up to 16 strings of 1..1024 bytes, valid UTF-8; the status names the first one that is wrong.
  // No strings at all is legal: everything passes through.
  static StatusOr<StopStringMatcher> Create(std::vector<std::string> stop_strings,
                                            bool include_stop_in_output);

  struct Output {
    std::string text;               // may be shown now; whole characters when the input is
    std::optional<size_t> matched;  // index of the stop string; set once, then the stream is over
  };

  // Takes the next piece of text. After a match the rest of the text is dropped, and so is
  // everything appended later. (Text that must not be matched, before min_tokens, is not passed in
  // here.)
  Output Append(std::string_view text);

  // No more text: what was held back because a stop string might have begun in it.
  std::string Finish();

  const std::string& stop_string(size_t index) const { return patterns_[index].text; }

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t>
        border;              // [i]: longest proper prefix of the first i bytes that also ends them
    size_t num_matched = 0;  // longest prefix of text that is a suffix of the input so far
  };

  StopStringMatcher() = default;

  // Advances every pattern by one byte; the index of the longest one that is complete now.
  std::optional<size_t> Step(char byte);
  size_t NumHeldBack() const;

  std::vector<Pattern> patterns_;
  bool include_stop_in_output_ = false;
  bool is_over_ = false;
  std::string held_back_;  // suffix of the input that may be the start of a stop string
};

}  // namespace longspan
