// One kernel for all wrappers: what they promise is how they work together.
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

template <int kWidth>
__device__ void CopyPiece(uint8_t* to, const uint8_t* from, int num_bytes) {
  const uint32_t address = ptx::SharedAddress(to);
  const auto real = static_cast<uint32_t>(num_bytes < 0        ? 0
                                          : num_bytes > kWidth ? kWidth
                                                               : num_bytes);
  if constexpr (kWidth == 16) ptx::CopyAsync16(address, from, real);
  if constexpr (kWidth == 8) ptx::CopyAsync8(address, from, real);
  if constexpr (kWidth == 4) ptx::CopyAsync4(address, from, real);
}

template <int kWidth>
__global__ void CopyAsyncKernel(const uint8_t* from, const uint8_t* num_bytes, uint8_t* out) {
  __shared__ alignas(16) uint8_t shared[kGroups][kThreads][kBytes];
  const int lane = threadIdx.x;
  for (int group = 0; group < kGroups; ++group) {
    for (int i = 0; i < kBytes; ++i) shared[group][lane][i] = 0xee;
  }
  __syncthreads();
  for (int group = 0; group < kGroups; ++group) {
    const int at = group * kThreads + lane;
    for (int i = 0; i < kBytes; i += kWidth) {
      CopyPiece<kWidth>(shared[group][lane] + i, from + at * kBytes + i, num_bytes[at] - i);
    }
    ptx::CopyAsyncCommit();
  }
  WaitAndLook<3>(shared, out);
  WaitAndLook<2>(shared, out);
  WaitAndLook<1>(shared, out);
  WaitAndLook<0>(shared, out);
}

}  // namespace

void ProbeCopyAsync(int width, const uint8_t* from, const uint8_t* num_bytes, uint8_t* out) {
  const auto kernel = width == 16  ? &CopyAsyncKernel<16>
                      : width == 8 ? &CopyAsyncKernel<8>
                                   : &CopyAsyncKernel<4>;
  kernel<<<1, kThreads>>>(from, num_bytes, out);
}

}  // namespace longspan
