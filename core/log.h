// Logging: spdlog's default logger, set up once by the program. Text that came from outside (ids,
// names, metadata) is passed through Escaped first; prompt text is never logged.
#pragma once

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

namespace longspan {

enum class LogFormat { kText, kJson };

// Installs the default logger, writing to standard error. What cannot be
// written now (full disk, closed or unread pipe) is dropped and counted, never thrown or waited
// for. Call once, before threads start.
void SetUpLogging(LogFormat format, spdlog::level::level_enum level);

// "trace", "debug", "info", "warn", "error", "off"; false when the name is none of them.
bool ParseLogLevel(std::string_view name, spdlog::level::level_enum& level);

// Printable ASCII as it is; control characters, quotes, backslashes and invalid or non-ASCII bytes
// as \n, \", \\ or \xNN. At most max_bytes of the input are shown, then "...".
std::string Escaped(std::string_view text, size_t max_bytes = 128);

}  // namespace longspan
