// The end of a process whose invariant is broken: one line on standard error, then abort. It does
// not log, since the logger may be what is broken.
#include "core/check.h"

#include <cstdio>
#include <cstdlib>

namespace longspan {

void CheckFailed(const char* file, int line, const char* condition, const std::string& values) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s %s\n", file, line, condition, values.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace longspan
