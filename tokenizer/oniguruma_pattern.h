// tokenizer.json writes patterns in Oniguruma's (Ruby's) syntax; we match with PCRE2. This rewrites
// the part of the syntax that means exactly the same in both, and refuses the rest by name.
#pragma once

#include <string>
#include <string_view>

#include "core/status.h"

namespace longspan {

// The PCRE2 pattern. InvalidArgument names the first construct that is not supported and its place.
StatusOr<std::string> TranslateOnigurumaPattern(std::string_view pattern);

}  // namespace longspan
