// One small kernel per wrapper of 8-bit elements.
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/narrow.cuh"
#include "tests/kernels/ptx/narrow_probes.h"

namespace longspan {
namespace {

template <typename Narrow>
__global__ void NarrowKernel(const uint32_t* in, int32_t num, uint32_t* out) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= num) return;
  Narrow::Neighbours(in[i], out[4 * i], out[4 * i + 1]);
  Narrow::Alternate(in[i], out[4 * i + 2], out[4 * i + 3]);
}

__global__ void TransposeKernel(const uint32_t* in, uint32_t* out) {
  out[threadIdx.x] = ptx::TransposeMatrix(in[threadIdx.x]);
}

__global__ void Log2Kernel(const float* in, int32_t num, float* log2, float* reciprocal) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= num) return;
  log2[i] = ptx::Log2(in[i]);
  reciprocal[i] = ptx::Reciprocal(in[i]);
}

__global__ void CopiesKernel(const float* from, float* out) {
  __shared__ alignas(8) float to[2][2];
  __shared__ alignas(8) uint64_t barrier;
  const uint32_t address = ptx::SharedAddress(&barrier);
  const uint32_t lane = threadIdx.x;
  if (lane == 0) {
    ptx::MbarrierInit(address, 1 + 4);
    ptx::FenceMbarrierInit();
  }
  __syncwarp();
  for (uint32_t parity = 0; parity < 2; ++parity) {
    if (lane < 4) {
      to[lane / 2][lane % 2] = -1.0f;
      ptx::CopyAsync4(ptx::SharedAddress(&to[lane / 2][lane % 2]), from + 4 * parity + lane,
                      lane % 2 == 0 ? 4 : 0);
      ptx::MbarrierArriveAfterCopies(address);
    }
    if (lane == 31) ptx::MbarrierArriveExpect(address, 0);
    ptx::MbarrierWait(address, parity);
    const float2 two = ptx::LoadShared2(ptx::SharedAddress(to[lane % 2]));
    if (lane < 2) {
      out[4 * parity + 2 * lane] = two.x;
      out[4 * parity + 2 * lane + 1] = two.y;
    }
    __syncwarp();
  }
}

}  // namespace

void ProbeNarrow(bool is_int8, const uint32_t* in, int32_t num, uint32_t* out) {
  const auto kernel = is_int8 ? &NarrowKernel<ptx::Int8> : &NarrowKernel<ptx::E4M3>;
  kernel<<<(num + 127) / 128, 128>>>(in, num, out);
}
void ProbeTransposeMatrix(const uint32_t* in, uint32_t* out) {
  TransposeKernel<<<1, 32>>>(in, out);
}
void ProbeLog2AndReciprocal(const float* in, int32_t num, float* log2, float* reciprocal) {
  Log2Kernel<<<(num + 127) / 128, 128>>>(in, num, log2, reciprocal);
}
void ProbeCopiesOnABarrier(const float* from, float* out) { CopiesKernel<<<1, 32>>>(from, out); }

}  // namespace longspan
