// Device code that runs the conversions of kernels/ptx/eight_bit.cuh, for eight_bit_test.cc.
// Pointers are device memory; everything runs on the default stream.
#pragma once

#include <cstdint>

namespace longspan {

// The card's own conversion where it has one, bit operations, int8.
enum class EightBitProbe { kFloat8E4M3, kFloat8E4M3Bits, kSignedInt8 };

// out[i]: of word i the two even and the two odd bytes as float16, times the conversion's factor.
// [num_words, 4] floats in the order byte 0, 2, 1, 3.
void ProbeEightBit(EightBitProbe probe, const uint32_t* words, int num_words, float* out);

}  // namespace longspan
