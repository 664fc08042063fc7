// Barriers of part of a CTA, and order between a kernel and the one before it in the stream.
#pragma once

#include <cstdint>

namespace longspan::ptx {

// All of num_threads (a multiple of 32) meet; ids 1..15, 0 is __syncthreads.
__device__ __forceinline__ void NamedBarrierSync(uint32_t id, uint32_t num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

// Counts this warp's threads without waiting; the others of num_threads wait.
__device__ __forceinline__ void NamedBarrierArrive(uint32_t id, uint32_t num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

// Gives registers back, or takes them (waiting for others to give): all warps of a warpgroup, a
// multiple of 8 per thread. Taken ones hold nothing yet.
template <int kRegisters>
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Until the kernel before is done and what it wrote is visible. Returns at once for a kernel that
// was not launched with programmatic stream serialisation.
__device__ __forceinline__ void GridDependencyWait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// The kernel behind may start once every CTA has called this or ended.
__device__ __forceinline__ void GridDependencyLaunch() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace longspan::ptx
