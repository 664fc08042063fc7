// Device code that runs one wrapper of kernels/ptx on memory, for ptx_test.cc. All pointers are
// device memory; everything runs on the default stream.
#pragma once

#include <cstdint>

#include "kernels/runtime/tensor_map.h"

namespace longspan {

// tile: 32 rows of 8 16-bit elements, contiguous; out: [32 lanes][4] registers.
void ProbeLoadMatrix(const uint16_t* tile, bool transposed, uint32_t* out);
// a, b: registers of every lane, [32][4] and [32][2]; c: [32][4], starts at what it holds.
void ProbeMma(bool bfloat16, const uint32_t* a, const uint32_t* b, float* c);
// out[i] = Pack(in[2 i], in[2 i + 1]), back[2 i], back[2 i + 1] = Unpack(out[i]).
void ProbePack(bool bfloat16, const float* in, int32_t num_pairs, uint32_t* out, float* back);
void ProbeExp2(const float* in, int32_t num, float* out);
// Loads the box at the coordinates; out: num_bytes of shared memory as the engine laid them. Twice,
// into the same place, so that both parities of a barrier are waited for.
void ProbeTmaLoad(const TensorMap& map, const int32_t (&at)[5], int32_t num_bytes, uint8_t* out);

// A[64, 16] * B[16, columns] by a warpgroup; columns 64, 128 or 256. a: 64 rows, b: `columns` rows,
// each of 64 elements along k; the product takes the 16 of them from 16 * step on. c:
// [64][columns].
void ProbeWgmma(bool bfloat16, int32_t columns, const uint16_t* a, const uint16_t* b, int32_t step,
                float* c);
// c[64][columns] += A * B with A in registers and B along n: a: [64][16]; b: 64 rows along k, each
// of `columns` elements; the product takes the 16 rows from 16 * step on.
void ProbeWgmmaTransposed(bool bfloat16, int32_t columns, const uint16_t* a, const uint16_t* b,
                          int32_t step, float* c);
// A tile of 64 rows and 64 16-bit elements through registers (StoreMatrixX4, swizzled) and the copy
// engine to the box at the coordinates.
void ProbeTmaStore(const TensorMap& map, const int32_t (&at)[5], const uint16_t* tile);

}  // namespace longspan
