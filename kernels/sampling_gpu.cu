// From rows of logits to tokens: one block of 1,024 threads per row, every decision taken by all of
// its threads alike. What can be drawn is an upper set of the logits, described by its lowest key
// and, on ties, its last id. Where a cheap bound leaves few candidates they move to shared memory
// (33 KB static, 32 of them candidates), and the searches run there.
#include <cfloat>
#include <cmath>

#include "kernels/gpu_launch.cuh"
#include "kernels/random_stream.h"
#include "kernels/sample_search.cuh"
#include "kernels/sampling.h"

namespace longspan {
namespace {

constexpr float kMaxInverseTemperature = 1e30f;  // as model/token_draw: no 0 * inf
constexpr float kMassUnit = 0x1p44f;             // integer mass of the best token
constexpr int32_t kAnyId = 0x7fffffff;

// What may be drawn: keys above key, and of those equal to it the ids up to last_id.
struct Border {
  uint32_t key;
  int32_t last_id;

  __device__ __forceinline__ bool Keeps(int32_t id, float value) const {
    const uint32_t k = KeyOf(value);
    return k > key || (k == key && id <= last_id);
  }
};

__device__ __forceinline__ Border Stricter(const Border& a, const Border& b) {
  if (a.key != b.key) return a.key > b.key ? a : b;
  return {a.key, min(a.last_id, b.last_id)};
}

// Shares of the distribution as whole numbers: at most 2^18 tokens of at most 2^44 each.
struct Mass {
  float max;
  float inverse_temperature;

  __device__ __forceinline__ unsigned long long operator()(float value) const {
    const float term = expf(__fmul_rn(__fsub_rn(value, max), inverse_temperature));
    return __float2ull_rn(term * kMassUnit);
  }
};

struct Summary {
  bool all_finite;
  uint32_t max_key;
  int32_t arg_max;      // lowest id of the largest
  uint32_t thread_key;  // the largest key among the calling thread's elements; 0: it has none
};

__device__ Summary Summarize(const RowSource& row, SampleShared& shared) {
  Summary summary = {};
  bool finite = true;
  unsigned long long best = 0;  // key, then the complement of the id
  ForEachElement(row, [&](int32_t id, float value) {
    finite = finite && fabsf(value) <= FLT_MAX;
    const uint32_t key = KeyOf(value);
    summary.thread_key = max(summary.thread_key, key);
    const unsigned long long packed =
        static_cast<unsigned long long>(key) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
    best = max(best, packed);
  });
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    best = max(best, __shfl_xor_sync(0xffffffffu, best, distance));
  }
  if (Lane() == 0) shared.warp_sums[Warp()] = best;
  summary.all_finite = __syncthreads_and(finite ? 1 : 0) != 0;
  best = shared.warp_sums[Lane()];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    best = max(best, __shfl_xor_sync(0xffffffffu, best, distance));
  }
  __syncthreads();
  summary.max_key = static_cast<uint32_t>(best >> 32);
  summary.arg_max = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(best));
  return summary;
}

// A key that at least k logits reach, or that of the lowest float: k threads have a maximum that
// large. k <= kSampleThreads.
__device__ uint32_t BoundOfBest(uint32_t thread_key, uint32_t max_key, int k) {
  uint32_t low = KeyOf(-FLT_MAX);
  uint32_t high = max_key;
  while (low < high) {
    const uint32_t middle = high - (high - low) / 2;
    if (__syncthreads_count(thread_key >= middle) >= k) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// The border of the k best with keys from low on; low itself when there are no more than k of them.
template <typename Source>
__device__ Border BorderOfBest(const Source& source, SampleShared& shared, uint32_t low,
                               uint32_t max_key, int64_t k) {
  const auto one = [](int32_t, float) -> unsigned long long { return 1; };
  const auto wanted = static_cast<unsigned long long>(k);
  const auto count_from = [&](uint32_t key) {
    return SumWeights(source, shared, [&](int32_t, float value) -> unsigned long long {
      return KeyOf(value) >= key ? 1 : 0;
    });
  };
  if (count_from(low) <= wanted) return {low, kAnyId};
  const uint32_t key = SelectKey(source, shared, low, max_key, wanted, one);
  const unsigned long long above = count_from(key + 1);  // keys of finite logits never wrap
  const int32_t last = FindWeight(
      source, shared, wanted - above - 1,
      [&](int32_t, float value) -> unsigned long long { return KeyOf(value) == key ? 1 : 0; });
  return {key, last};
}

// The border of the smallest set of the best kept elements whose mass reaches wanted; at least one.
template <typename Source>
__device__ Border BorderOfNucleus(const Source& source, SampleShared& shared, const Border& border,
                                  uint32_t max_key, const Mass& mass, unsigned long long wanted) {
  const auto kept_mass = [&](int32_t id, float value) -> unsigned long long {
    return border.Keeps(id, value) ? mass(value) : 0;
  };
  const uint32_t key = SelectKey(source, shared, border.key, max_key, wanted, kept_mass);
  const unsigned long long above =
      SumWeights(source, shared, [&](int32_t id, float value) -> unsigned long long {
        return KeyOf(value) > key ? kept_mass(id, value) : 0;
      });
  const unsigned long long each = mass(ValueOf(key));
  const unsigned long long missing = wanted > above ? wanted - above : 0;
  unsigned long long ties = 1;  // of those with this key, how many belong to the set
  if (each > 0 && missing > each) ties = (missing + each - 1) / each;
  const int32_t last =
      FindWeight(source, shared, ties - 1, [&](int32_t id, float value) -> unsigned long long {
        return KeyOf(value) == key && border.Keeps(id, value) ? 1 : 0;
      });
  return {key, last < 0 ? border.last_id : last};
}

// Moves what the border keeps to shared memory, in order of ids, if it fits; returns how many there
// are either way.
__device__ int32_t CollectCandidates(const RowSource& row, SampleShared& shared,
                                     const Border& border) {
  const auto kept = [&](int32_t id, float value) -> unsigned long long {
    return border.Keeps(id, value) ? 1 : 0;
  };
  SumWarps(row, shared, kept);
  const unsigned long long sum = shared.warp_sums[Lane()];
  const unsigned long long prefix = WarpPrefix(sum);
  const int32_t total = static_cast<int32_t>(__shfl_sync(0xffffffffu, prefix, 31));
  int32_t next = static_cast<int32_t>(__shfl_sync(0xffffffffu, prefix - sum, Warp()));
  __syncthreads();
  if (total > kMaxCandidates) return total;
  const int32_t range = WarpRange(row.size);
  const int64_t begin = int64_t{Warp()} * range;
  const int64_t end = min(begin + range, int64_t{row.size});
  for (int64_t step = begin; step < end; step += kWarpStep) {
    int32_t ids[kLaneElements];
    float values[kLaneElements];
    const int count = row.Load(static_cast<int32_t>(step) + Lane() * kLaneElements, ids, values);
    int lane_count = 0;
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) {
      lane_count += i < count && border.Keeps(ids[i], values[i]) ? 1 : 0;
    }
    const int lane_prefix = static_cast<int>(WarpPrefix(static_cast<unsigned>(lane_count)));
    int32_t place = next + lane_prefix - lane_count;
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) {
      if (i < count && border.Keeps(ids[i], values[i])) {
        shared.ids[place] = ids[i];
        shared.values[place] = values[i];
        ++place;
      }
    }
    next += __shfl_sync(0xffffffffu, lane_prefix, 31);
  }
  __syncthreads();
  return total;
}

// The border of the k best logits above -inf. A first bound makes it a search among few.
__device__ Border BorderOfTopK(const RowSource& row, SampleShared& shared, const Summary& summary,
                               int32_t k) {
  if (k <= kSampleThreads) {
    const uint32_t bound = BoundOfBest(summary.thread_key, summary.max_key, k);
    const int32_t count = CollectCandidates(row, shared, {bound, kAnyId});
    if (count <= kMaxCandidates) {
      return BorderOfBest(CandidateSource{&shared, count}, shared, bound, summary.max_key, k);
    }
  }
  return BorderOfBest(row, shared, KeyOf(-FLT_MAX), summary.max_key, k);
}

// The draw from what the border keeps, in order of ids, after top-p has cut it. total: the mass
// that top-p is a share of; 0: that of what the border keeps.
template <typename Source>
__device__ int32_t DrawKept(const Source& source, SampleShared& shared, Border border,
                            const SampleRow& how, const Mass& mass, const Summary& summary,
                            unsigned long long total) {
  const auto kept_mass = [&](int32_t id, float value) -> unsigned long long {
    return border.Keeps(id, value) ? mass(value) : 0;
  };
  if (how.top_p < 1.0f) {
    if (total == 0) total = SumWeights(source, shared, kept_mass);
    const double share = __dmul_rn(static_cast<double>(how.top_p), static_cast<double>(total));
    const unsigned long long wanted = min(__double2ull_ru(fmax(share, 0.0)), total);
    border =
        Stricter(border, BorderOfNucleus(source, shared, border, summary.max_key, mass, wanted));
  }
  const unsigned long long mass_left = SumWeights(source, shared, kept_mass);
  if (mass_left == 0) return summary.arg_max;
  const uint64_t random = RandomBitsAt(how.seed, how.sequence_index, how.position) << 11;
  const int32_t found = FindWeight(source, shared, __umul64hi(random, mass_left), kept_mass);
  return found < 0 ? summary.arg_max : found;
}

// The border that min-p sets: the key of the lowest logit that it keeps.
__device__ Border BorderOfMinP(const SampleRow& how, float max, bool exact) {
  const double threshold = __dadd_rn(
      static_cast<double>(max),
      __dmul_rn(static_cast<double>(how.temperature), log(static_cast<double>(how.min_p))));
  const double bounded = fmax(threshold, static_cast<double>(-FLT_MAX));
  return {KeyOf(exact ? __double2float_ru(bounded) : __double2float_rn(bounded)), kAnyId};
}

__device__ int32_t Draw(const RowSource& row, SampleShared& shared, const SampleRow& how,
                        const Summary& summary) {
  const float max = ValueOf(summary.max_key);
  const Mass mass = {max, fminf(1.0f / how.temperature, kMaxInverseTemperature)};
  const bool top_k = how.top_k > 0 && how.top_k < row.size;
  Border border = {KeyOf(-FLT_MAX), kAnyId};
  unsigned long long total = 0;
  if (how.min_p > 0.0f) border = Stricter(border, BorderOfMinP(how, max, top_k));
  if (top_k) {
    border = Stricter(border, BorderOfTopK(row, shared, summary, how.top_k));
  } else if (how.top_p < 1.0f && how.min_p <= 0.0f) {
    // Whatever lies below this has too little mass altogether to reach into the nucleus.
    total = SumWeights(row, shared,
                       [&](int32_t, float value) -> unsigned long long { return mass(value); });
    const double share = static_cast<double>(total) / static_cast<double>(kMassUnit);
    const double rest = 0.5 * (1.0 - static_cast<double>(how.top_p)) * share / row.size;
    const double threshold = max + log(rest) / mass.inverse_temperature;
    border.key = KeyOf(__double2float_rn(fmax(threshold, static_cast<double>(-FLT_MAX))));
  } else if (how.min_p <= 0.0f) {
    return DrawKept(row, shared, border, how, mass, summary, 0);
  }
  const int32_t count = CollectCandidates(row, shared, border);
  if (count > kMaxCandidates) return DrawKept(row, shared, border, how, mass, summary, total);
  return DrawKept(CandidateSource{&shared, count}, shared, border, how, mass, summary, total);
}

__device__ __forceinline__ float Clamped(float logit) {
  return fminf(fmaxf(logit, -FLT_MAX), FLT_MAX);
}

// The logit after bias and penalties, in the CPU's order of roundings; not masked yet.
__device__ float Edited(float logit, const LogitEdit& edit, const SampleRow& how) {
  if (edit.bias != 0.0f) logit = Clamped(__fadd_rn(logit, edit.bias));
  const bool penalised = how.repetition_penalty != 1.0f || how.presence_penalty != 0.0f ||
                         how.frequency_penalty != 0.0f;
  if (edit.num_generated < 0 || !penalised) return logit;
  logit = logit > 0.0f ? __fdiv_rn(logit, how.repetition_penalty)
                       : __fmul_rn(logit, how.repetition_penalty);
  if (edit.num_generated > 0) {
    const float counted = __fmul_rn(how.frequency_penalty, static_cast<float>(edit.num_generated));
    logit = __fsub_rn(logit, __fadd_rn(how.presence_penalty, counted));
  }
  return Clamped(logit);
}

// Draws from the edited logits; the row has its old bits again when this returns.
__device__ int32_t Choose(const SampleRowsParams& p, const RowSource& row, float* logits,
                          SampleShared& shared, const SampleRow& how, Summary summary) {
  bool greedy = how.temperature <= 0.0f;
  const bool has_edits = how.edits_begin < how.edits_end;
  if (has_edits) {
    for (int i = how.edits_begin + static_cast<int>(threadIdx.x); i < how.edits_end;
         i += kSampleThreads) {
      const LogitEdit edit = p.edits[i];
      const float logit = logits[edit.token];
      p.saved_logits[i] = logit;
      logits[edit.token] = edit.masked != 0 ? -INFINITY : Edited(logit, edit, how);
    }
    __syncthreads();
    summary = Summarize(row, shared);
    if (summary.max_key == KeyOf(-INFINITY)) {
      for (int i = how.edits_begin + static_cast<int>(threadIdx.x); i < how.edits_end;
           i += kSampleThreads) {
        const LogitEdit edit = p.edits[i];
        if (edit.masked != 0) logits[edit.token] = Edited(p.saved_logits[i], edit, how);
      }
      __syncthreads();
      summary = Summarize(row, shared);
      greedy = true;
    }
  }
  const int32_t token = greedy ? summary.arg_max : Draw(row, shared, how, summary);
  if (has_edits) {
    __syncthreads();
    for (int i = how.edits_begin + static_cast<int>(threadIdx.x); i < how.edits_end;
         i += kSampleThreads) {
      logits[p.edits[i].token] = p.saved_logits[i];
    }
    __syncthreads();
  }
  return token;
}

// The best tokens and their log-probabilities, best first.
__device__ void WriteTop(const SampleRowsParams& p, const RowSource& row, SampleShared& shared,
                         const SampleRow& how, const Summary& summary, double log_sum) {
  const int wanted = min(min(how.num_logprobs, p.max_top), row.size);
  int32_t* top_tokens = p.top_tokens + int64_t{blockIdx.x} * p.max_top;
  float* top_logprobs = p.top_logprobs + int64_t{blockIdx.x} * p.max_top;
  const uint32_t bound = BoundOfBest(summary.thread_key, summary.max_key, wanted);
  int32_t count = CollectCandidates(row, shared, {bound, kAnyId});
  if (count > kMaxCandidates) {
    const Border best = BorderOfBest(row, shared, bound, summary.max_key, wanted);
    count = CollectCandidates(row, shared, best);
  }
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kSampleThreads) {
    const float value = shared.values[i];
    int rank = 0;
    for (int j = 0; j < count; ++j) {
      const float other = shared.values[j];
      rank += other > value || (other == value && j < i) ? 1 : 0;
    }
    if (rank >= wanted) continue;
    top_tokens[rank] = shared.ids[i];
    top_logprobs[rank] = static_cast<float>(value - log_sum);
  }
  for (int i = wanted + static_cast<int>(threadIdx.x); i < p.max_top; i += kSampleThreads) {
    top_tokens[i] = -1;
    top_logprobs[i] = -INFINITY;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kSampleThreads) SampleRowsKernel(const SampleRowsParams p) {
  __shared__ SampleShared shared;
  const SampleRow how = p.rows[blockIdx.x];
  float* logits = p.logits + int64_t{blockIdx.x} * p.logits_stride;
  const RowSource row = {logits, p.vocab_size, (reinterpret_cast<uintptr_t>(logits) & 15) == 0};
  const Summary summary = Summarize(row, shared);
  if (!summary.all_finite) {
    if (threadIdx.x == 0) p.tokens[blockIdx.x] = -1;
    return;
  }
  double log_sum = 0.0;
  if (how.num_logprobs >= 0 && p.logprobs != nullptr) {
    const float max = ValueOf(summary.max_key);
    const Mass mass = {max, 1.0f};
    const unsigned long long total = SumWeights(
        row, shared, [&](int32_t, float value) -> unsigned long long { return mass(value); });
    log_sum = max + log(static_cast<double>(total) / static_cast<double>(kMassUnit));
    if (how.num_logprobs > 0 && p.max_top > 0) WriteTop(p, row, shared, how, summary, log_sum);
  }
  const int32_t token = how.given >= 0 ? how.given : Choose(p, row, logits, shared, how, summary);
  if (threadIdx.x != 0) return;
  p.tokens[blockIdx.x] = token;
  if (how.num_logprobs >= 0 && p.logprobs != nullptr) {
    p.logprobs[blockIdx.x] = static_cast<float>(logits[token] - log_sum);
  }
}

KernelStatus Check(const SampleRowsParams& p) {
  constexpr int32_t kMaxVocab = 1 << 18;  // so that 64 bits hold every sum of masses
  if (p.num_rows < 0 || p.vocab_size < 1 || p.vocab_size > kMaxVocab || p.max_top < 0 ||
      p.max_top > kMaxTopLogprobs) {
    return KernelStatus::kBadShape;
  }
  if (p.logits_stride < 0 || !RowsAreApart(p.num_rows, p.logits_stride, p.vocab_size)) {
    return KernelStatus::kBadStride;
  }
  if (p.num_rows == 0) return KernelStatus::kOk;
  if (p.logits == nullptr || p.rows == nullptr || p.tokens == nullptr ||
      (p.edits != nullptr && p.saved_logits == nullptr) ||
      (p.max_top > 0 &&
       (p.logprobs == nullptr || p.top_tokens == nullptr || p.top_logprobs == nullptr))) {
    return KernelStatus::kBadShape;
  }
  const bool ok = IsAligned(p.logits, 4) && IsAligned(p.rows, 8) && IsAligned(p.edits, 4) &&
                  IsAligned(p.saved_logits, 4) && IsAligned(p.tokens, 4) &&
                  IsAligned(p.logprobs, 4) && IsAligned(p.top_tokens, 4) &&
                  IsAligned(p.top_logprobs, 4);
  return ok ? KernelStatus::kOk : KernelStatus::kMisaligned;
}

}  // namespace

KernelStatus SampleRowsGpu(const SampleRowsParams& params, GpuStreamHandle stream) {
  if (const KernelStatus status = Check(params); status != KernelStatus::kOk) return status;
  if (params.num_rows == 0) return KernelStatus::kOk;
  return LaunchKernel(&SampleRowsKernel, params.num_rows, kSampleThreads, stream, params);
}

}  // namespace longspan
