// The real clock. Tests use tests/support/fake_clock.h.
#include "core/clock.h"

namespace longspan {

TimePoint SteadyClock::Now() const { return std::chrono::steady_clock::now(); }

}  // namespace longspan
