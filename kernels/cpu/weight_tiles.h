// How a matrix lies in memory once packed: tiles of 16 rows, so that a vector lane is an output.
// Formats with a kernel of their own are interleaved by columns; the others keep GGUF's rows.
//
// clang-format off
//   tile    [0 .. ceil(rows / 16))   16 rows; missing rows of the last one are zeros
//   unit    [0 .. ceil(cols / 32))   32 columns of a tile, TileUnitBytes each:
//     Q4_x      4 x 64 bytes: 16-bit word 2 * lane + (k & 1) of chunk k / 8 holds column k in its
//               nibble (k % 8) / 2, so that a shift by 4 j leaves the columns 8c + 2j, 8c + 2j + 1
//               of all lanes
//     Q8_0      8 x 64 bytes: byte k % 4 of a lane's 32-bit word in chunk k / 4
//     BF16      16 x 64 bytes: half k % 2 of a lane's 32-bit word in chunk k / 2
//     F16, F32  [32][16] values
//     then Q4_x, Q8_0: 16 scales (half), then Q4_1: 16 minima (half)
//   other formats: a tile is 16 rows of GGUF blocks
// clang-format on
#pragma once

#include <cstdint>

#include "kernels/matmul.h"

namespace longspan {

// 0 for the formats that keep GGUF's rows.
constexpr int TileUnitBytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ4_0:
      return 256 + 32;
    case WeightFormat::kQ4_1:
      return 256 + 64;
    case WeightFormat::kQ8_0:
      return 512 + 32;
    case WeightFormat::kBF16:
    case WeightFormat::kF16:
      return 1024;
    case WeightFormat::kF32:
      return 2048;
    default:
      return 0;
  }
}

constexpr int TileScaleOffset(WeightFormat format) {
  return format == WeightFormat::kQ8_0 ? 512 : 256;
}

}  // namespace longspan
