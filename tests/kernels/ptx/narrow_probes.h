// Device code that runs the wrappers of kernels/ptx/narrow.cuh and what goes with them on memory,
// for narrow_test.cc. All pointers are device memory; everything runs on the default stream.
#pragma once

#include <cstdint>

namespace longspan {

// in: registers of four bytes; out: [num][4], halves of Neighbours, then of Alternate.
void ProbeNarrow(bool is_int8, const uint32_t* in, int32_t num, uint32_t* out);
// One register of every lane, transposed.
void ProbeTransposeMatrix(const uint32_t* in, uint32_t* out);
void ProbeLog2AndReciprocal(const float* in, int32_t num, float* log2, float* reciprocal);
// 4 floats by CopyAsync4, every second of them not read (zero then), awaited on a barrier that
// counts 4 lanes' arrivals after copies and one that brings nothing; twice, for both parities.
void ProbeCopiesOnABarrier(const float* from, float* out);

}  // namespace longspan
