// One small kernel per wrapper.
#include <cuda.h>

#include <cstring>

#include "kernels/ptx/matrix.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/tma.cuh"
#include "tests/kernels/ptx/ptx_probes.h"

namespace longspan {
namespace {

__global__ void LoadMatrixKernel(const uint16_t* tile, bool transposed, uint32_t* out) {
  __shared__ alignas(16) uint16_t shared[32][8];
  const int lane = threadIdx.x;
  for (int i = 0; i < 8; ++i) shared[lane][i] = tile[8 * lane + i];
  __syncwarp();
  uint32_t r[4];
  if (transposed) {
    ptx::LoadMatrixX4Transposed(r, ptx::SharedAddress(shared[lane]));
  } else {
    ptx::LoadMatrixX4(r, ptx::SharedAddress(shared[lane]));
  }
  for (int i = 0; i < 4; ++i) out[4 * lane + i] = r[i];
}

template <typename Element>
__global__ void MmaKernel(const uint32_t* a, const uint32_t* b, float* c) {
  const int lane = threadIdx.x;
  uint32_t fragment[4];
  float sum[4];
  for (int i = 0; i < 4; ++i) fragment[i] = a[4 * lane + i];
  for (int i = 0; i < 4; ++i) sum[i] = c[4 * lane + i];
  Element::Mma(sum, fragment, b[2 * lane], b[2 * lane + 1]);
  for (int i = 0; i < 4; ++i) c[4 * lane + i] = sum[i];
}

template <typename Element>
__global__ void PackKernel(const float* in, int32_t num_pairs, uint32_t* out, float* back) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= num_pairs) return;
  out[i] = Element::Pack(in[2 * i], in[2 * i + 1]);
  const float2 unpacked = Element::Unpack(out[i]);
  back[2 * i] = unpacked.x;
  back[2 * i + 1] = unpacked.y;
}

__global__ void Exp2Kernel(const float* in, int32_t num, float* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < num) out[i] = ptx::Exp2(in[i]);
}

struct Coordinates {
  int32_t at[5];
};

__global__ void TmaLoadKernel(const __grid_constant__ CUtensorMap map, Coordinates c,
                              int32_t num_bytes, uint8_t* out) {
  extern __shared__ uint8_t raw[];
  __shared__ alignas(8) uint64_t barrier;
  uint8_t* tile =
      reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t{1023});
  const uint32_t address = ptx::SharedAddress(&barrier);
  if (threadIdx.x == 0) {
    ptx::MbarrierInit(address, 1);
    ptx::FenceMbarrierInit();
    ptx::PrefetchTensorMap(&map);
  }
  __syncthreads();
  for (uint32_t parity = 0; parity < 2; ++parity) {
    for (int i = threadIdx.x; i < num_bytes; i += blockDim.x) tile[i] = 0xff;
    ptx::FenceProxyAsyncShared();
    __syncthreads();
    if (threadIdx.x == 0) {
      ptx::MbarrierArriveExpect(address, num_bytes);
      ptx::TmaLoad5d(ptx::SharedAddress(tile), &map, address, c.at[0], c.at[1], c.at[2], c.at[3],
                     c.at[4], ptx::EvictFirstPolicy());
    }
    ptx::MbarrierWait(address, parity);
    __syncthreads();
  }
  for (int i = threadIdx.x; i < num_bytes; i += blockDim.x) out[i] = tile[i];
}

}  // namespace

void ProbeLoadMatrix(const uint16_t* tile, bool transposed, uint32_t* out) {
  LoadMatrixKernel<<<1, 32>>>(tile, transposed, out);
}

void ProbeMma(bool bfloat16, const uint32_t* a, const uint32_t* b, float* c) {
  if (bfloat16) {
    MmaKernel<ptx::BFloat16><<<1, 32>>>(a, b, c);
  } else {
    MmaKernel<ptx::Float16><<<1, 32>>>(a, b, c);
  }
}

void ProbePack(bool bfloat16, const float* in, int32_t num_pairs, uint32_t* out, float* back) {
  const int blocks = (num_pairs + 127) / 128;
  if (bfloat16) {
    PackKernel<ptx::BFloat16><<<blocks, 128>>>(in, num_pairs, out, back);
  } else {
    PackKernel<ptx::Float16><<<blocks, 128>>>(in, num_pairs, out, back);
  }
}

void ProbeExp2(const float* in, int32_t num, float* out) {
  Exp2Kernel<<<(num + 127) / 128, 128>>>(in, num, out);
}

void ProbeTmaLoad(const TensorMap& map, const int32_t (&at)[5], int32_t num_bytes, uint8_t* out) {
  CUtensorMap native;
  std::memcpy(&native, map.bytes, sizeof(native));
  Coordinates coordinates;
  std::memcpy(coordinates.at, at, sizeof(at));
  TmaLoadKernel<<<1, 128, num_bytes + 1024>>>(native, coordinates, num_bytes, out);
}

}  // namespace longspan
