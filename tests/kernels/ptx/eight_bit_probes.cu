// Each thread unpacks one word.
#include "kernels/ptx/eight_bit.cuh"
#include "tests/kernels/ptx/eight_bit_probes.h"

namespace longspan {
namespace {

constexpr int kThreads = 128;

template <typename Packed>
__device__ void Unpack(uint32_t word, float* out) {
  uint32_t even, odd;
  Packed::Unpack(word, even, odd);
  const float2 first = ptx::Float16::Unpack(even);
  const float2 second = ptx::Float16::Unpack(odd);
  out[0] = first.x * Packed::kFactor;
  out[1] = first.y * Packed::kFactor;
  out[2] = second.x * Packed::kFactor;
  out[3] = second.y * Packed::kFactor;
}

__global__ void EightBitKernel(EightBitProbe probe, const uint32_t* words, int num_words,
                               float* out) {
  const auto i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= num_words) return;
  switch (probe) {
    case EightBitProbe::kFloat8E4M3:
      return Unpack<ptx::Float8E4M3>(words[i], out + 4 * i);
    case EightBitProbe::kFloat8E4M3Bits:
      return Unpack<ptx::Float8E4M3Bits>(words[i], out + 4 * i);
    case EightBitProbe::kSignedInt8:
      return Unpack<ptx::SignedInt8>(words[i], out + 4 * i);
  }
}

}  // namespace

void ProbeEightBit(EightBitProbe probe, const uint32_t* words, int num_words, float* out) {
  EightBitKernel<<<(num_words + kThreads - 1) / kThreads, kThreads>>>(probe, words, num_words, out);
}

}  // namespace longspan
