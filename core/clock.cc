#include "core/clock.h"

namespace longspan {

TimePoint SteadyClock::Now() const { return std::chrono::steady_clock::now(); }

}  // namespace longspan
