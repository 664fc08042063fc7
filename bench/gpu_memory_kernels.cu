// Random inputs and the bare reading of memory.
#include "bench/gpu_memory_kernels.h"
#include "kernels/element_io.cuh"
#include "kernels/gpu.h"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/tma.cuh"

namespace longspan {
namespace {

__global__ void FillNormalKernel(void* to, DType dtype, float factor, int64_t num_elements,
                                 uint32_t seed) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < num_elements; i += step) {
    uint64_t x = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ull + seed * 0xda942042e4dd58b5ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    const float u = static_cast<float>((x & 0xffffff) + 1) * 0x1p-24f;
    const float angle = static_cast<float>(x >> 40) * 0x1p-23f;
    const float value[1] = {factor * sqrtf(-2.0f * logf(u)) * cospif(angle)};
    StoreElements(to, dtype, i, value);
  }
}

constexpr int kStages = 12;
constexpr int kChunkBytes = 16384;

__global__ void __launch_bounds__(32, 1) ReadKernel(const uint8_t* from, int64_t num_chunks) {
  extern __shared__ uint8_t raw[];
  __shared__ alignas(8) uint64_t barriers[kStages];
  if (threadIdx.x != 0) return;
  const uint32_t ring = (ptx::SharedAddress(raw) + 127) & ~127u;
  const uint32_t full = ptx::SharedAddress(barriers);
  const uint64_t policy = ptx::EvictFirstPolicy();
  for (int i = 0; i < kStages; ++i) ptx::MbarrierInit(full + 8 * i, 1);
  ptx::FenceMbarrierInit();
  int stage = 0;
  uint32_t parity = 0;
  int64_t loading = blockIdx.x;
  auto load = [&] {
    if (loading >= num_chunks) return;
    ptx::MbarrierArriveExpect(full + 8 * stage, kChunkBytes);
    ptx::BulkLoad(ring + stage * kChunkBytes, from + loading * kChunkBytes, kChunkBytes,
                  full + 8 * stage, policy);
    loading += gridDim.x;
  };
  for (stage = 0; stage < kStages; ++stage) load();
  stage = 0;
  for (int64_t waiting = blockIdx.x; waiting < num_chunks; waiting += gridDim.x) {
    ptx::MbarrierWait(full + 8 * stage, parity);
    load();
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

}  // namespace

void FillNormal(void* to, int64_t num_elements, uint32_t seed, GpuStreamHandle stream,
                DType dtype) {
  const float factor = dtype == DType::kInt8 ? 32.0f : 1.0f;
  FillNormalKernel<<<2048, 256, 0, static_cast<GpuNativeStream>(stream)>>>(to, dtype, factor,
                                                                           num_elements, seed);
}

void ReadMemory(const void* from, int64_t num_bytes, int32_t num_sms, GpuStreamHandle stream) {
  constexpr int kSharedBytes = kStages * kChunkBytes + 128;
  (void)cudaFuncSetAttribute(ReadKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  ReadKernel<<<num_sms, 32, kSharedBytes, static_cast<GpuNativeStream>(stream)>>>(
      static_cast<const uint8_t*>(from), num_bytes / kChunkBytes);
}

}  // namespace longspan
