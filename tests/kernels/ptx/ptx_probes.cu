// One small kernel per wrapper.
#include <cuda.h>

#include <cstring>
#include <type_traits>

#include "kernels/ptx/matrix.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"
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

// Rows of 64 elements each, swizzled.
__device__ void FillSwizzled(uint8_t* tile, const uint16_t* from, int rows, int row_elements,
                             int first_element) {
  for (int i = threadIdx.x; i < rows * 64; i += blockDim.x) {
    const int row = i / 64, d = i % 64;
    const uint32_t byte = ptx::Swizzle128(row, d / 8) + d % 8 * 2;
    *reinterpret_cast<uint16_t*>(tile + byte) = from[row * row_elements + first_element + d];
  }
}
__device__ uint8_t* Aligned(uint8_t* raw) {
  return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t{1023});
}

template <int kColumns>
__device__ void CopyProduct(float (&d)[kColumns / 8][4], float* c, bool load) {
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float* at = c + (row + 8 * (i / 2)) * kColumns + 8 * j + 2 * (threadIdx.x % 4) + i % 2;
      if (load) {
        d[j][i] = *at;
      } else {
        *at = d[j][i];
      }
    }
  }
}

template <typename Element, int kColumns>
__global__ void WgmmaKernel(const uint16_t* a, const uint16_t* b, int32_t step, float* c) {
  extern __shared__ uint8_t raw[];
  uint8_t* tile_a = Aligned(raw);
  uint8_t* tile_b = tile_a + 64 * 128;
  FillSwizzled(tile_a, a, 64, 64, 0);
  FillSwizzled(tile_b, b, kColumns, 64, 0);
  ptx::FenceProxyAsyncShared();
  __syncthreads();
  float d[kColumns / 8][4];
  CopyProduct<kColumns>(d, c, true);  // not to be seen in the result
  ptx::WgmmaFence();
  ptx::Wgmma<Element, kColumns>::Multiply(
      d, ptx::MatrixDescriptor(ptx::SharedAddress(tile_a), 16).At(32 * step),
      ptx::MatrixDescriptor(ptx::SharedAddress(tile_b), 16).At(32 * step), false);
  ptx::WgmmaCommit();
  ptx::WgmmaWait<0>();
  ptx::WgmmaSettle(d);
  CopyProduct<kColumns>(d, c, false);
}

template <typename Element, int kColumns>
__global__ void WgmmaTransposedKernel(const uint16_t* a, const uint16_t* b, int32_t step,
                                      float* c) {
  extern __shared__ uint8_t raw[];
  uint8_t* tile_b = Aligned(raw);
  constexpr uint32_t kColumnBytes = 64 * 128;  // 64 columns, 64 rows along k
  for (int column = 0; column < kColumns / 64; ++column) {
    FillSwizzled(tile_b + column * kColumnBytes, b, 64, kColumns, 64 * column);
  }
  ptx::FenceProxyAsyncShared();
  __syncthreads();
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  uint32_t fragment[1][4];
  for (int i = 0; i < 4; ++i) {
    const uint16_t* at = a + (row + 8 * (i % 2)) * 16 + 2 * (threadIdx.x % 4) + 8 * (i / 2);
    fragment[0][i] = at[0] | static_cast<uint32_t>(at[1]) << 16;
  }
  float d[kColumns / 8][4];
  CopyProduct<kColumns>(d, c, true);
  ptx::WgmmaFence();
  ptx::Wgmma<Element, kColumns>::AddTransposed(
      d, fragment[0],
      ptx::MatrixDescriptor(ptx::SharedAddress(tile_b), kColumnBytes).At(step * 16 * 128));
  ptx::WgmmaCommit();
  ptx::WgmmaWait<0>();
  ptx::WgmmaSettle(d);
  ptx::WgmmaSettle(fragment);
  CopyProduct<kColumns>(d, c, false);
}

__global__ void TmaStoreKernel(const __grid_constant__ CUtensorMap map, Coordinates c,
                               const uint16_t* from) {
  extern __shared__ uint8_t raw[];
  const uint32_t tile = ptx::SharedAddress(Aligned(raw));
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // As a product's result lies: registers of columns 8 j and 8 j + 8 of rows g and g + 8.
  for (int j = 0; j < 8; j += 2) {
    uint32_t r[4];
    for (int i = 0; i < 4; ++i) {
      const int row = 16 * warp + lane / 4 + 8 * (i % 2);
      const uint16_t* at = from + row * 64 + 8 * (j + i / 2) + 2 * (lane % 4);
      r[i] = at[0] | static_cast<uint32_t>(at[1]) << 16;
    }
    ptx::StoreMatrixX4(tile + ptx::Swizzle128(16 * warp + lane % 16, j + lane / 16), r[0], r[1],
                       r[2], r[3]);
  }
  ptx::FenceProxyAsyncShared();
  ptx::NamedBarrierSync(1, 128);
  if (threadIdx.x != 0) return;
  ptx::TmaStore5d(&map, tile, c.at[0], c.at[1], c.at[2], c.at[3], c.at[4]);
  ptx::TmaStoreCommit();
  ptx::TmaStoreWaitRead();
  ptx::TmaStoreWait();
}

template <typename Element>
void LaunchWgmma(bool transposed, int32_t columns, const uint16_t* a, const uint16_t* b,
                 int32_t step, float* c) {
  auto launch = [&](auto num_columns) {
    constexpr int kColumns = decltype(num_columns)::value;
    const auto kernel =
        transposed ? &WgmmaTransposedKernel<Element, kColumns> : &WgmmaKernel<Element, kColumns>;
    constexpr int kBytes = 1024 + 64 * 128 + kColumns * 128;
    kernel<<<1, 128, kBytes>>>(a, b, step, c);
  };
  if (columns == 64) launch(std::integral_constant<int, 64>{});
  if (columns == 128) launch(std::integral_constant<int, 128>{});
  if (columns == 256) launch(std::integral_constant<int, 256>{});
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

void ProbeWgmma(bool bfloat16, int32_t columns, const uint16_t* a, const uint16_t* b, int32_t step,
                float* c) {
  if (bfloat16) {
    LaunchWgmma<ptx::BFloat16>(false, columns, a, b, step, c);
  } else {
    LaunchWgmma<ptx::Float16>(false, columns, a, b, step, c);
  }
}

void ProbeWgmmaTransposed(bool bfloat16, int32_t columns, const uint16_t* a, const uint16_t* b,
                          int32_t step, float* c) {
  if (bfloat16) {
    LaunchWgmma<ptx::BFloat16>(true, columns, a, b, step, c);
  } else {
    LaunchWgmma<ptx::Float16>(true, columns, a, b, step, c);
  }
}

void ProbeTmaStore(const TensorMap& map, const int32_t (&at)[5], const uint16_t* tile) {
  CUtensorMap native;
  std::memcpy(&native, map.bytes, sizeof(native));
  Coordinates coordinates;
  std::memcpy(coordinates.at, at, sizeof(at));
  TmaStoreKernel<<<1, 128, 64 * 128 + 1024>>>(native, coordinates, tile);
}

}  // namespace longspan
