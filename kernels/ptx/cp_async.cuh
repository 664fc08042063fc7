// Asynchronous copies of 4, 8 or 16 bytes from global to shared memory (sm_80 and up): one
// instruction a wrapper. A thread's copies since its last commit are a group; groups end in order.
#pragma once

#include <cstdint>

namespace longspan::ptx {

// Both addresses are multiples of 16. Of the 16 bytes written the first num_bytes come from memory,
// the rest are zeros; with 0 nothing is read.
__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from, uint32_t num_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(num_bytes)
               : "memory");
}

// The same of 8 bytes and of 4, with addresses that are multiples of as many.
__device__ __forceinline__ void CopyAsync8(uint32_t to, const void* from, uint32_t num_bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(num_bytes)
               : "memory");
}
__device__ __forceinline__ void CopyAsync4(uint32_t to, const void* from, uint32_t num_bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(num_bytes)
               : "memory");
}

__device__ __forceinline__ void CopyAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until at most kPending of this thread's newest groups are still on their way. What the others
// brought is visible to this thread; a barrier must carry it on.
template <int kPending>
__device__ __forceinline__ void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace longspan::ptx
