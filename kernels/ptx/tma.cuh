// The copy engine (TMA): loads of tensor boxes into shared memory, and what goes with them.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace longspan::ptx {

__device__ __forceinline__ void PrefetchTensorMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// A cache policy for data that is read once.
__device__ __forceinline__ uint64_t EvictFirstPolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Box at coordinates (c0, ..., c4), innermost first, to shared memory; its bytes count on the
// barrier. One thread.
__device__ __forceinline__ void TmaLoad5d(uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                          int32_t c0, int32_t c1, int32_t c2, int32_t c3,
                                          int32_t c4, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(policy)
      : "memory");
}

// The same with the cache's own policy: for data that others read too.
__device__ __forceinline__ void TmaLoad5d(uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                          int32_t c0, int32_t c1, int32_t c2, int32_t c3,
                                          int32_t c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

// Box of shared memory to coordinates of the tensor. One thread, which also closes the group.
__device__ __forceinline__ void TmaStore5d(const CUtensorMap* map, uint32_t from, int32_t c0,
                                           int32_t c1, int32_t c2, int32_t c3, int32_t c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::
          "l"(map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}
__device__ __forceinline__ void TmaStoreCommit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until this thread's stores have read their shared memory.
__device__ __forceinline__ void TmaStoreWaitRead() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Until they are written.
__device__ __forceinline__ void TmaStoreWait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Contiguous bytes (address and size multiples of 16) to shared memory. One thread.
__device__ __forceinline__ void BulkLoad(uint32_t to, const void* from, uint32_t num_bytes,
                                         uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(num_bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// Orders this thread's ordinary stores to shared memory before later work of the copy engine on
// it (a barrier must carry the order on).
__device__ __forceinline__ void FenceProxyAsyncShared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Byte offset in a tile of 128-byte rows, aligned to 1024 bytes, as the 128-byte swizzle of a
// tensor map places it: chunk 0..7 of 16 bytes.
constexpr uint32_t Swizzle128(uint32_t row, uint32_t chunk) {
  return row * 128 + ((chunk ^ (row & 7)) << 4);
}

}  // namespace longspan::ptx
