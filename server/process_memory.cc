// Settings that have to exist before anything else runs: the allocator's (a symbol that it reads
// before main) and gRPC's (an environment variable that it reads at its first use).
#include "server/process_memory.h"

#include <cstdlib>

// Read by jemalloc, which this program links, before main; MALLOC_CONF overrides it. Memory that is
// free goes back to the system within a second or so, by a thread of the allocator that sleeps
// while there is none. (glibc's allocator keeps pages until somebody trims it, and nobody can know
// when: a message that gRPC refuses by itself never reaches us.)
extern "C" const char* malloc_conf;
const char* malloc_conf = "background_thread:true,max_background_threads:1,dirty_decay_ms:1000";

namespace longspan {

// With gRPC 1.51's chunked reads the bound is not looked at.
void BoundReadAhead() { ::setenv("GRPC_EXPERIMENTS", "-tcp_read_chunks", 0); }

}  // namespace longspan
