// New keys, rotated if wanted, and values into their slots of the paged pool, converted or
// quantised on the way. One block of threads per token; its threads take the chunks of kWidth
// elements of all heads, keys first, then values. Bound by memory when tokens are many, by the
// launch when they are few.
#include "kernels/element_io.cuh"
#include "kernels/gpu_launch.cuh"
#include "kernels/kv_store.h"

namespace longspan {
namespace {

constexpr int kThreads = 256;

// Rotates x, elements [d, d + kWidth) of the key that begins at element `head`, with the partners
// that it loads. A chunk lies wholly inside or outside of rotary_dim and of each half.
template <int kWidth>
__device__ __forceinline__ void RotateChunk(const KvStoreParams& p, int64_t head, int d,
                                            const float* cosines, float (&x)[kWidth]) {
  const int num_pairs = p.rotary_dim / 2;
  if (p.pairs == RopePairs::kHalfSplit || kWidth == 1) {
    const bool half_split = p.pairs == RopePairs::kHalfSplit;
    const bool first = half_split ? d < num_pairs : d % 2 == 0;  // of its pair
    const int pair = !half_split ? d / 2 : first ? d : d - num_pairs;
    const int distance = half_split ? num_pairs : 1;
    float partner[kWidth], cosine[kWidth], sine[kWidth];
    LoadElements(p.k, p.dtype, head + d + (first ? distance : -distance), partner);
    LoadElements(cosines, DType::kFloat32, pair, cosine);
    LoadElements(cosines, DType::kFloat32, num_pairs + pair, sine);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      x[i] = fmaf(first ? -partner[i] : partner[i], sine[i], x[i] * cosine[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i + 1 < kWidth; i += 2) {
      const float cosine = cosines[(d + i) / 2];
      const float sine = cosines[num_pairs + (d + i) / 2];
      const float a = x[i];
      x[i] = fmaf(-x[i + 1], sine, a * cosine);
      x[i + 1] = fmaf(a, sine, x[i + 1] * cosine);
    }
  }
}

template <int kWidth>
__device__ __forceinline__ void StoreChunk(const KvPoolView& pool, const KvStoreParams& params,
                                           bool values, int head, int d, int64_t token,
                                           int64_t block, int64_t offset) {
  const int64_t from = values ? token * params.v_token_stride + head * params.v_head_stride
                              : token * params.k_token_stride + head * params.k_head_stride;
  const int64_t to =
      values
          ? block * pool.v_block_stride + offset * pool.v_token_stride + head * pool.v_head_stride
          : block * pool.k_block_stride + offset * pool.k_token_stride + head * pool.k_head_stride;
  float x[kWidth];
  LoadElements(values ? params.v : params.k, params.dtype, from + d, x);
  if (!values && params.cos_sin != nullptr && d < params.rotary_dim) {
    RotateChunk(params, from, d, params.cos_sin + token * params.rotary_dim, x);
  }
  if (DTypeBytes(pool.dtype) == 1) {
    const float scale =
        values ? pool.v_scales[block * pool.v_scale_block_stride + head * pool.v_scale_head_stride]
               : pool.k_scales[block * pool.k_scale_block_stride + head * pool.k_scale_head_stride];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) x[i] = __fdiv_rn(x[i], scale);
  }
  StoreElements(values ? pool.v : pool.k, pool.dtype, to + d, x);
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    KvStoreKernel(const KvPoolView pool, const KvStoreParams params) {
  const int64_t token = blockIdx.x;
  const int64_t slot = params.slot_mapping[token];
  if (slot < 0) return;
  const int64_t block = slot / pool.block_size;
  const int64_t offset = slot - block * pool.block_size;
  const int chunks = pool.head_dim / kWidth;  // of a head
  const int items = 2 * pool.num_kv_heads * chunks;
#pragma unroll 1
  for (int item = static_cast<int>(threadIdx.x); item < items; item += kThreads) {
    const int row = item / chunks;
    const int d = (item - row * chunks) * kWidth;
    const bool values = row >= pool.num_kv_heads;
    StoreChunk<kWidth>(pool, params, values, values ? row - pool.num_kv_heads : row, d, token,
                       block, offset);
  }
}

KernelStatus CheckShape(const KvPoolView& pool, const KvStoreParams& p) {
  if (DTypeBytes(pool.dtype) == 0 || !IsWideType(p.dtype)) return KernelStatus::kUnsupportedDType;
  if (pool.num_kv_heads < 1 || pool.head_dim < 1 || pool.block_size < 1 || p.num_tokens < 0 ||
      int64_t{pool.num_kv_heads} * pool.head_dim > (int64_t{1} << 29) ||
      p.num_tokens > std::numeric_limits<int32_t>::max()) {
    return KernelStatus::kBadShape;
  }
  if (p.cos_sin != nullptr &&
      (p.rotary_dim < 0 || p.rotary_dim % 2 != 0 || p.rotary_dim > pool.head_dim)) {
    return KernelStatus::kBadShape;
  }
  const bool scaled = DTypeBytes(pool.dtype) == 1;
  if (scaled && (pool.k_scales == nullptr || pool.v_scales == nullptr)) {
    return KernelStatus::kBadShape;
  }
  for (const int64_t stride :
       {pool.k_block_stride, pool.k_token_stride, pool.k_head_stride, pool.v_block_stride,
        pool.v_token_stride, pool.v_head_stride, p.k_token_stride, p.k_head_stride,
        p.v_token_stride, p.v_head_stride, pool.k_scale_block_stride, pool.k_scale_head_stride,
        pool.v_scale_block_stride, pool.v_scale_head_stride}) {
    if (stride < 0) return KernelStatus::kBadStride;
  }
  return KernelStatus::kOk;
}

KernelStatus CheckPointers(const KvPoolView& pool, const KvStoreParams& p) {
  for (const void* pointer : {static_cast<const void*>(pool.k), static_cast<const void*>(pool.v),
                              p.k, p.v, static_cast<const void*>(p.slot_mapping)}) {
    if (pointer == nullptr) return KernelStatus::kBadShape;
  }
  const int pool_bytes = DTypeBytes(pool.dtype);
  const int bytes = DTypeBytes(p.dtype);
  const bool ok = IsAligned(pool.k, pool_bytes) && IsAligned(pool.v, pool_bytes) &&
                  IsAligned(p.k, bytes) && IsAligned(p.v, bytes) && IsAligned(p.slot_mapping, 8) &&
                  IsAligned(pool.k_scales, 4) && IsAligned(pool.v_scales, 4) &&
                  IsAligned(p.cos_sin, 4);
  return ok ? KernelStatus::kOk : KernelStatus::kMisaligned;
}

bool IsVector(const KvPoolView& pool, const KvStoreParams& p) {
  const int rotary_multiple = p.pairs == RopePairs::kHalfSplit ? 16 : 8;
  const bool rotation_fits =
      p.cos_sin == nullptr || (p.rotary_dim % rotary_multiple == 0 && IsAligned(p.cos_sin, 16));
  return rotation_fits && pool.head_dim % kVectorWidth == 0 &&
         IsVectorizable(pool.k, {pool.k_block_stride, pool.k_token_stride, pool.k_head_stride}) &&
         IsVectorizable(pool.v, {pool.v_block_stride, pool.v_token_stride, pool.v_head_stride}) &&
         IsVectorizable(p.k, {p.k_token_stride, p.k_head_stride}) &&
         IsVectorizable(p.v, {p.v_token_stride, p.v_head_stride});
}

}  // namespace

KernelStatus KvStoreGpu(const KvPoolView& pool, const KvStoreParams& params,
                        GpuStreamHandle stream) {
  if (const KernelStatus status = CheckShape(pool, params); status != KernelStatus::kOk) {
    return status;
  }
  if (params.num_tokens == 0) return KernelStatus::kOk;
  if (const KernelStatus status = CheckPointers(pool, params); status != KernelStatus::kOk) {
    return status;
  }
  const auto kernel = IsVector(pool, params) ? &KvStoreKernel<kVectorWidth> : &KvStoreKernel<1>;
  return LaunchKernel(kernel, params.num_tokens, kThreads, stream, pool, params);
}

}  // namespace longspan
