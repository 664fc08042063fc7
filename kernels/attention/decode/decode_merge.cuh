// From softmax states to output rows: the warps of a CTA, then the parts of a cut unit. For any
// traits with kConsumers, kConsumerThreads, kRows, kHeadDim, Element and Storage.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/attention/decode/decode_params.h"
#include "kernels/attention/decode/decode_walk.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/ptx/sync.cuh"

namespace longspan {

// The four consecutive output elements that a lane merges at a time.
struct DecodeSum {
  float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float sum = 0.0f;
  __device__ __forceinline__ void Add(float factor, const float4& part_o, float part_sum) {
    sum += part_sum * factor;
    o.x += part_o.x * factor;
    o.y += part_o.y * factor;
    o.z += part_o.z * factor;
    o.w += part_o.w * factor;
  }
};

// The base that sums are relative to; nothing seen: any finite one.
__device__ __forceinline__ float MergeBase(float maximum) {
  return maximum == -INFINITY ? 0.0f : maximum;
}

// As a traits' Element: q and o are of the launch's type, not of the kernel's.
struct DecodeLaunchElement {};

template <typename Element>
__device__ __forceinline__ uint32_t PackOutput(const DecodeArgs& args, float low, float high) {
  if constexpr (std::is_same_v<Element, DecodeLaunchElement>) {
    return args.is_bfloat16 ? ptx::PackBFloat16(low, high) : ptx::PackFloat16(low, high);
  } else {
    return Element::Pack(low, high);
  }
}

// Final write of elements [d, d + 4) of a row, unless they are padding; d = 0 also writes lse.
template <typename Element>
__device__ __forceinline__ void WriteOutput(const DecodeArgs& args, const DecodePart& part, int row,
                                            int d, float maximum, const DecodeSum& total) {
  if (d >= args.head_dim) return;
  const int64_t token = DecodeToken(args, part, row);
  const int32_t head = DecodeQueryHead(args, part, row);
  float denominator = total.sum;
  if (args.sinks != nullptr) {
    constexpr float kLog2E = 1.44269504089f;
    denominator += ptx::Exp2(kLog2E * args.sinks[head] - maximum);
  }
  // No visible key: zeros, sink or not.
  const float inverse = total.sum == 0.0f ? 0.0f : 1.0f / denominator;
  auto* o =
      static_cast<uint16_t*>(args.o) + token * args.o_token_stride + head * args.o_head_stride + d;
  *reinterpret_cast<uint2*>(o) =
      make_uint2(PackOutput<Element>(args, total.o.x * inverse, total.o.y * inverse),
                 PackOutput<Element>(args, total.o.z * inverse, total.o.w * inverse));
  if (d != 0 || args.lse == nullptr) return;
  constexpr float kLn2 = 0.69314718056f;
  args.lse[token * args.num_q_heads + head] =
      total.sum == 0.0f ? -INFINITY : kLn2 * (maximum + log2f(total.sum));
}

// Merges the four warps' results: to the output when the CTA has all of the unit, else to a
// partial.
template <typename Traits>
__device__ __forceinline__ void MergeWarps(const DecodeArgs& args, const DecodePart& part,
                                           const typename Traits::Storage& shared) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const bool is_whole = part.begin == 0 && part.end == part.num_tiles;
  const int64_t partial = 2 * int64_t{blockIdx.x} + (part.begin == 0 ? 1 : 0);
  const int32_t num_rows = DecodeNumRows(args, part);
  for (int row = warp; row < num_rows; row += Traits::kConsumers) {
    float maximum = -INFINITY;
#pragma unroll
    for (int w = 0; w < Traits::kConsumers; ++w) {
      maximum = fmaxf(maximum, shared.merge_sum[w][row].x);
    }
    for (int d = 4 * lane; d < Traits::kHeadDim; d += 128) {
      DecodeSum total;
#pragma unroll
      for (int w = 0; w < Traits::kConsumers; ++w) {
        const float2 sum = shared.merge_sum[w][row];
        total.Add(ptx::Exp2(sum.x - MergeBase(maximum)),
                  *reinterpret_cast<const float4*>(&shared.merge_o[w][row][d]), sum.y);
      }
      if (is_whole) {
        WriteOutput<typename Traits::Element>(args, part, row, d, maximum, total);
        continue;
      }
      const int64_t at = partial * Traits::kRows + row;
      *reinterpret_cast<float4*>(args.partial_o + at * Traits::kHeadDim + d) = total.o;
      if (d == 0) args.partial_sum[at] = {maximum, total.sum};
    }
  }
}

// Counts this CTA's part of a cut unit; true in the CTA whose part came last. All consumers.
template <typename Traits>
__device__ __forceinline__ bool ArriveWithPart(const DecodeArgs& args, int32_t first_cta,
                                               int32_t last_cta, typename Traits::Storage& shared) {
  __threadfence();  // the part before the count
  ptx::NamedBarrierSync(1, Traits::kConsumerThreads);
  if (threadIdx.x == 0) {
    const bool is_last = atomicAdd(args.arrivals + first_cta, 1) == last_cta - first_cta;
    if (is_last) args.arrivals[first_cta] = 0;  // for the next launch
    __threadfence();
    shared.is_last_part = is_last;
  }
  ptx::NamedBarrierSync(1, Traits::kConsumerThreads);
  return shared.is_last_part != 0;
}

// Merges the parts of a cut unit in the order of CTAs, whichever came last. Every warp has rows.
template <typename Traits>
__device__ __forceinline__ void CombineParts(const DecodeArgs& args, const DecodePart& part,
                                             int32_t first_cta, int32_t last_cta) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int32_t num_rows = DecodeNumRows(args, part);
  auto row_of = [&](int32_t cta, int row) {
    const int64_t partial = 2 * int64_t{cta} + (cta == first_cta ? 1 : 0);
    return partial * Traits::kRows + row;
  };
  for (int row = warp; row < num_rows; row += Traits::kConsumers) {
    float maximum = -INFINITY;
    for (int32_t cta = first_cta + lane; cta <= last_cta; cta += 32) {
      maximum = fmaxf(maximum, __ldcg(&args.partial_sum[row_of(cta, row)].maximum));
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, step));
    }
    for (int d = 4 * lane; d < Traits::kHeadDim; d += 128) {
      DecodeSum total;
#pragma unroll 8
      for (int32_t cta = first_cta; cta <= last_cta; ++cta) {
        const int64_t at = row_of(cta, row);
        const float2 sum = __ldcg(reinterpret_cast<const float2*>(args.partial_sum + at));
        const float4 o =
            __ldcg(reinterpret_cast<const float4*>(args.partial_o + at * Traits::kHeadDim + d));
        total.Add(ptx::Exp2(sum.x - MergeBase(maximum)), o, sum.y);
      }
      WriteOutput<typename Traits::Element>(args, part, row, d, maximum, total);
    }
  }
}

}  // namespace longspan
