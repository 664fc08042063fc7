// The block formats of GGUF taken apart: integer codes plus one scale (and minimum) per sub-block.
// The one place that knows how bits lie inside a block; not fast, every fast path is tested against
// it.
#pragma once

#include <cstdint>

#include "kernels/matmul.h"

namespace longspan {

// value[i] = scale[i / sub_block] * code[i] (+ min[i / sub_block] where the format has one).
struct BlockCodes {
  int8_t code[256];
  float scale[16];  // f16 scale times 6- or 8-bit sub-scale: exact in float
  float min[16];    // negative of GGUF's minimum for the K formats
};

struct BlockShape {
  int elements;   // of a block
  int bytes;      // of a block
  int sub_block;  // elements that share scale and minimum
  bool has_min;
  bool quantised;  // false: a block is one float, half or bfloat16
};

BlockShape ShapeOf(WeightFormat format);

// Quantised formats only.
void DecodeBlock(WeightFormat format, const uint8_t* block, BlockCodes& out);

}  // namespace longspan
