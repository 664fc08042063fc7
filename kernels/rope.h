// Rotary position embedding: frequencies (host, once per model), a table of cosines and sines (once
// per step, shared by all layers and heads), and the rotation itself, in place, of queries or keys.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "kernels/kernel_status.h"
#include "kernels/runtime/stream_handle.h"

namespace longspan {

class ThreadPool;

// Which two dimensions of a head form pair i.
enum class RopePairs : uint8_t {
  kInterleaved,  // (2i, 2i + 1)
  kHalfSplit,    // (i, i + rotary_dim / 2)
};

enum class RopeRule : uint8_t { kPlain, kLinear, kLlama3, kYarn };

struct RopeFrequencyParams {
  double theta = 10000.0;
  int32_t rotary_dim = 0;  // even
  RopeRule rule = RopeRule::kPlain;
  double factor = 1.0;                  // linear, llama3, yarn
  int32_t original_context_length = 0;  // llama3, yarn
  double low_freq_factor = 1.0;         // llama3
  double high_freq_factor = 4.0;        // llama3
  double beta_fast = 32.0;              // yarn
  double beta_slow = 1.0;               // yarn
  double attention_factor = 0.0;        // yarn; 0: 0.1 ln(factor) + 1
  std::span<const float> freq_factors =
      {};  // [rotary_dim / 2] divisors of the frequencies; empty: none
};

// The same values serve every backend. inv_freq is rounded to float, as models are trained with.
struct RopeFrequencies {
  std::vector<float> inv_freq;  // [rotary_dim / 2] radians per position
  float magnitude = 1.0f;       // factor of cosine and sine (yarn)
};

// kBadShape: odd or negative rotary_dim, freq_factors of another size; kUnsupportedOption: theta or
// factor that is not positive and finite, or a rule without the lengths it needs.
KernelStatus MakeRopeFrequencies(const RopeFrequencyParams& params, RopeFrequencies& out);

// cos_sin: [num_positions, 2, rotary_dim / 2]: a row of cosines, then a row of sines, times
// magnitude. The angle position * inv_freq is exact before its reduction, so the error does not
// grow with position.
void FillRopeTableCpu(ThreadPool& pool, const RopeFrequencies& frequencies,
                      std::span<const int32_t> positions, float* cos_sin);

// The same table by the device, in the order of the stream; entries may differ from the CPU's in
// the last bit. Null pointers with positions, or extents out of range: kBadShape; kMisaligned.
struct RopeTableParams {
  const float* inv_freq = nullptr;     // [num_pairs], of RopeFrequencies
  const int32_t* positions = nullptr;  // [num_positions], >= 0
  float* cos_sin = nullptr;            // [num_positions, 2, num_pairs]
  int64_t num_positions = 0;           // 0 is legal
  int32_t num_pairs = 0;
  float magnitude = 1.0f;
};
KernelStatus FillRopeTableGpu(const RopeTableParams& params, GpuStreamHandle stream);

// x: [num_tokens, num_heads, head_dim] of dtype, rotated in place; dimensions past rotary_dim stay.
struct RopeParams {
  void* x = nullptr;
  int64_t token_stride = 0;  // strides in elements
  int64_t head_stride = 0;
  int64_t num_tokens = 0;  // 0 is legal
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  int32_t rotary_dim = 0;  // even, at most head_dim
  RopePairs pairs = RopePairs::kHalfSplit;
  const float* cos_sin = nullptr;  // [num_tokens, 2, rotary_dim / 2], see FillRopeTableCpu
  DType dtype = DType::kFloat32;
};

// One head of one token on the calling thread: x[0, rotary_dim), cos_sin as above for that token.
void RotateRowCpu(float* x, const float* cos_sin, int32_t rotary_dim, RopePairs pairs);

// float32 only, else kUnsupportedDType.
KernelStatus RopeCpu(ThreadPool& pool, const RopeParams& params);

// On the device, in the order of the stream; float32, float16 or bfloat16, computed in float32 and
// rounded once. Answers, before anything is launched: kUnsupportedDType; kBadShape, null pointers
// included; kBadStride for negative strides or heads or tokens that overlap; kMisaligned. 16-byte
// accesses when strides are multiples of 8, pointers of 16 bytes, and rotary_dim of 16 (half split)
// or 8 (interleaved). Moves num_tokens * (num_heads * rotary_dim * 2 * bytes of x + 4 *
// rotary_dim).
KernelStatus RopeGpu(const RopeParams& params, GpuStreamHandle stream);

}  // namespace longspan
