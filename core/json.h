// JSON from files that nobody vouches for: bounded depth and size, no key twice, no exception. Also
// the words for messages about a value. A target of its own (core_json): few need it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "core/status.h"

namespace longspan {

inline constexpr int kMaxJsonDepth = 64;

// text: one JSON value, white space around it allowed. file: shown in messages. Refused are a byte
// order mark, invalid UTF-8, depth over kMaxJsonDepth, the same key twice in one object, numbers
// out of range, and more values than any model's files have.
StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& file);

// The value as short, printable text: what was found where something else was wanted.
std::string JsonShown(const nlohmann::json& value);

}  // namespace longspan
