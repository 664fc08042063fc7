// CHECK: a broken invariant of our own ends the process with the place and the values. Always on.
// DCHECK: the same for hot loops, compiled out in release builds. Never for bad input: that is a
// Status.
#pragma once

#include <fmt/format.h>

#include <string>

namespace longspan {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& values);

}  // namespace longspan

// CHECK(used <= total, "used {} total {}", used, total); the values are optional.
#define CHECK(condition, ...)                                                                 \
  do {                                                                                        \
    if (!(condition)) [[unlikely]]                                                            \
      ::longspan::CheckFailed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)

#ifdef NDEBUG
#define DCHECK(condition, ...) \
  do {                         \
    if (false) {               \
      (void)(condition);       \
    }                          \
  } while (false)
#else
#define DCHECK(...) CHECK(__VA_ARGS__)
#endif
