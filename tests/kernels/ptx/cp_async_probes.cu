// One kernel for all three wrappers: what they promise is how they work together.
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "tests/kernels/ptx/cp_async_probes.h"

namespace longspan {
namespace {

constexpr int kThreads = 64, kGroups = 4, kBytes = 16;

template <int kPending>
__device__ void WaitAndLook(const uint8_t (&shared)[kGroups][kThreads][kBytes], uint8_t* out) {
  constexpr int kGroup = kGroups - 1 - kPending;
  const int lane = threadIdx.x;
  ptx::CopyAsyncWait<kPending>();
  __syncthreads();
  for (int i = 0; i < kBytes; ++i) {
    out[(kGroup * kThreads + lane) * kBytes + i] = shared[kGroup][lane ^ 1][i];
  }
  __syncthreads();
}

__global__ void CopyAsyncKernel(const uint8_t* from, const uint8_t* zero, uint8_t* out) {
  __shared__ alignas(16) uint8_t shared[kGroups][kThreads][kBytes];
  const int lane = threadIdx.x;
  for (int group = 0; group < kGroups; ++group) {
    for (int i = 0; i < kBytes; ++i) shared[group][lane][i] = 0xee;
  }
  __syncthreads();
  for (int group = 0; group < kGroups; ++group) {
    const int at = group * kThreads + lane;
    ptx::CopyAsync16(ptx::SharedAddress(shared[group][lane]), from + at * kBytes,
                     zero[at] != 0 ? 0 : kBytes);
    ptx::CopyAsyncCommit();
  }
  WaitAndLook<3>(shared, out);
  WaitAndLook<2>(shared, out);
  WaitAndLook<1>(shared, out);
  WaitAndLook<0>(shared, out);
}

}  // namespace

void ProbeCopyAsync(const uint8_t* from, const uint8_t* zero, uint8_t* out) {
  CopyAsyncKernel<<<1, kThreads>>>(from, zero, out);
}

}  // namespace longspan
