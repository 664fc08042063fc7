// Searching weighted elements in order of their ids, by all threads of a block: sums, the element
// that a running sum reaches, the key above which a given weight lies. Weights are integers, so no
// result depends on the order of additions. Sources: a row of logits in global memory, or the few
// candidates of a row in shared memory.
#pragma once

#include <cstdint>

namespace longspan {

inline constexpr int kSampleThreads = 1024;
inline constexpr int kSampleWarps = kSampleThreads / 32;
inline constexpr int kMaxCandidates = 4096;
inline constexpr int kLaneElements = 4;  // consecutive elements that a lane looks at together

// Ascends with the float; -0 and 0 have one key.
__device__ __forceinline__ uint32_t KeyOf(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float ValueOf(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

struct SampleShared {
  unsigned long long warp_sums[kSampleWarps];
  int32_t found;
  int32_t ids[kMaxCandidates];  // ascending
  float values[kMaxCandidates];
};

// Both sources: up to four elements from index `first` on (a multiple of 4); returns how many.
struct RowSource {
  const float* logits;
  int32_t size;
  bool vector;  // the row begins on a 16-byte border

  __device__ __forceinline__ int Load(int32_t first, int32_t (&ids)[kLaneElements],
                                      float (&values)[kLaneElements]) const {
    const int count = max(0, min(kLaneElements, size - first));
    if (vector && count == kLaneElements) {
      const float4 x = *reinterpret_cast<const float4*>(logits + first);
      values[0] = x.x, values[1] = x.y, values[2] = x.z, values[3] = x.w;
    } else {
#pragma unroll
      for (int i = 0; i < kLaneElements; ++i) values[i] = i < count ? logits[first + i] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) ids[i] = first + i;
    return count;
  }
};

struct CandidateSource {
  const SampleShared* shared;
  int32_t size;

  __device__ __forceinline__ int Load(int32_t first, int32_t (&ids)[kLaneElements],
                                      float (&values)[kLaneElements]) const {
    const int count = max(0, min(kLaneElements, size - first));
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) {
      ids[i] = i < count ? shared->ids[first + i] : 0;
      values[i] = i < count ? shared->values[first + i] : 0.0f;
    }
    return count;
  }
};

// Elements that a warp covers in one step, and the range [begin, end) of a warp: ranges follow each
// other in order of ids.
inline constexpr int kWarpStep = 32 * kLaneElements;

__device__ __forceinline__ int32_t WarpRange(int32_t size) {
  const int32_t per_warp = (size + kSampleWarps - 1) / kSampleWarps;
  return (per_warp + kWarpStep - 1) / kWarpStep * kWarpStep;
}

__device__ __forceinline__ int Warp() { return static_cast<int>(threadIdx.x / 32); }
__device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x % 32); }

// Calls f(id, value) for the elements of the calling lane.
template <typename Source, typename F>
__device__ __forceinline__ void ForEachElement(const Source& source, F f) {
  const int32_t range = WarpRange(source.size);
  const int64_t begin = int64_t{Warp()} * range;
  const int64_t end = min(begin + range, int64_t{source.size});
  for (int64_t step = begin; step < end; step += kWarpStep) {
    int32_t ids[kLaneElements];
    float values[kLaneElements];
    const int count = source.Load(static_cast<int32_t>(step) + Lane() * kLaneElements, ids, values);
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) {
      if (i < count) f(ids[i], values[i]);
    }
  }
}

__device__ __forceinline__ unsigned long long WarpSum(unsigned long long x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, distance);
  }
  return x;
}

// Sum over the lanes up to and including the calling one.
__device__ __forceinline__ unsigned long long WarpPrefix(unsigned long long x) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const unsigned long long before = __shfl_up_sync(0xffffffffu, x, distance);
    if (Lane() >= distance) x += before;
  }
  return x;
}

// Leaves each warp's sum of weight(id, value) in shared.warp_sums, visible to all. The caller
// synchronises before the next use of warp_sums.
template <typename Source, typename Weight>
__device__ __forceinline__ void SumWarps(const Source& source, SampleShared& shared,
                                         Weight weight) {
  unsigned long long sum = 0;
  ForEachElement(source, [&](int32_t id, float value) { sum += weight(id, value); });
  sum = WarpSum(sum);
  if (Lane() == 0) shared.warp_sums[Warp()] = sum;
  __syncthreads();
}

// The sum of all weights, in every thread.
template <typename Source, typename Weight>
__device__ unsigned long long SumWeights(const Source& source, SampleShared& shared,
                                         Weight weight) {
  SumWarps(source, shared, weight);
  const unsigned long long total = WarpSum(shared.warp_sums[Lane()]);
  __syncthreads();
  return total;
}

// The id at which the running sum of weights first exceeds target, in every thread; -1 when all
// weights together do not.
template <typename Source, typename Weight>
__device__ int32_t FindWeight(const Source& source, SampleShared& shared, unsigned long long target,
                              Weight weight) {
  if (threadIdx.x == 0) shared.found = -1;
  SumWarps(source, shared, weight);
  const unsigned long long sum = shared.warp_sums[Lane()];
  const unsigned long long prefix = WarpPrefix(sum);
  const unsigned over = __ballot_sync(0xffffffffu, prefix > target);
  const int warp = __ffs(static_cast<int>(over)) - 1;
  const unsigned long long before = __shfl_sync(0xffffffffu, prefix - sum, warp < 0 ? 0 : warp);
  if (Warp() == warp) {
    const int32_t range = WarpRange(source.size);
    const int64_t begin = int64_t{warp} * range;
    const int64_t end = min(begin + range, int64_t{source.size});
    unsigned long long rest = target - before;
    for (int64_t step = begin; step < end; step += kWarpStep) {
      int32_t ids[kLaneElements];
      float values[kLaneElements];
      unsigned long long weights[kLaneElements];
      const int count =
          source.Load(static_cast<int32_t>(step) + Lane() * kLaneElements, ids, values);
      unsigned long long lane_sum = 0;
#pragma unroll
      for (int i = 0; i < kLaneElements; ++i) {
        weights[i] = i < count ? weight(ids[i], values[i]) : 0;
        lane_sum += weights[i];
      }
      const unsigned long long lane_prefix = WarpPrefix(lane_sum);
      const unsigned lanes_over = __ballot_sync(0xffffffffu, lane_prefix > rest);
      if (lanes_over == 0) {
        rest -= __shfl_sync(0xffffffffu, lane_prefix, 31);
        continue;
      }
      if (Lane() == __ffs(static_cast<int>(lanes_over)) - 1) {
        unsigned long long lane_rest = rest - (lane_prefix - lane_sum);
        int32_t found = -1;
#pragma unroll
        for (int i = 0; i < kLaneElements; ++i) {
          if (found < 0 && lane_rest < weights[i]) found = ids[i];
          lane_rest -= found < 0 ? weights[i] : 0;
        }
        shared.found = found;
      }
      break;
    }
  }
  __syncthreads();
  const int32_t found = shared.found;
  __syncthreads();
  return found;
}

// The largest key in [low, high] such that elements at or above it weigh at least wanted together.
// Those at or above low do.
template <typename Source, typename Weight>
__device__ uint32_t SelectKey(const Source& source, SampleShared& shared, uint32_t low,
                              uint32_t high, unsigned long long wanted, Weight weight) {
  while (low < high) {
    const uint32_t middle = high - (high - low) / 2;
    const unsigned long long sum =
        SumWeights(source, shared, [&](int32_t id, float value) -> unsigned long long {
          return KeyOf(value) >= middle ? weight(id, value) : 0;
        });
    if (sum >= wanted) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace longspan
