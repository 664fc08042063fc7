// Two limits of the system, read with getrlimit; nothing is measured.
#include "server/address_space.h"

#include <sys/resource.h>

#include <algorithm>

#include "core/machine.h"

namespace longspan {
namespace {

// gRPC's pools grow with the cores and stop there.
constexpr int kMaxGrpcThreadsByCore = 32;
// Its threads whatever the machine, ours, the metrics endpoint's, and some air.
constexpr int kOtherThreads = 30;
// The C library's, when the limit of stacks is "unlimited".
constexpr int64_t kDefaultStackBytes = 2 * 1024 * 1024;

int64_t StackBytes() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return kDefaultStackBytes;
  }
  return static_cast<int64_t>(limit.rlim_cur);
}

}  // namespace

int64_t AddressSpaceToServe(int threads) {
  const int cores = AvailableCores();
  const int num_threads =
      kOtherThreads + std::min(2 * cores, kMaxGrpcThreadsByCore) + (threads > 0 ? threads : cores);
  return kAddressSpaceToStart + num_threads * StackBytes();
}

Status CheckAddressSpace(int64_t needed_bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      limit.rlim_cur >= static_cast<rlim_t>(needed_bytes)) {
    return Status();
  }
  return MakeStatus(absl::StatusCode::kResourceExhausted,
                    "the limit of address space is {} bytes, and the server needs {} before any "
                    "memory for a model (raise ulimit -v)",
                    limit.rlim_cur, needed_bytes);
}

}  // namespace longspan
