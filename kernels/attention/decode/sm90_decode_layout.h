// How head dimensions lie in the shared memory and in the registers of the sm_90a decode kernels:
// pure functions that the kernels, the encoding of tensor maps and tests share.
#pragma once

#include <cstdint>

namespace longspan {

// Elements of keys and values have 1 or 2 bytes.
constexpr bool Sm90DecodeHasHeadDim(int32_t element_bytes, int32_t head_dim) {
  if (element_bytes == 2) return head_dim == 64 || head_dim == 128 || head_dim == 192;
  return head_dim >= 16 && head_dim % 16 == 0 &&
         (head_dim <= 128 || head_dim == 192 || head_dim == 256);
}

// head_dim of the kernel that serves one: 8-bit kernels take smaller ones too, padded with zeros.
constexpr int32_t Sm90DecodeKernelHeadDim(int32_t element_bytes, int32_t head_dim) {
  if (element_bytes != 1 || head_dim > 128) return head_dim;
  return head_dim <= 64 ? 64 : 128;
}

// A *column* of a tile: that many bytes of every token, one row of shared memory, swizzled over as
// many. head_dim is the kernel's.
constexpr int32_t Sm90DecodeRowBytes(int32_t element_bytes, int32_t head_dim) {
  return element_bytes * head_dim % 128 == 0 ? 128 : 64;
}

// Byte offset in a tile of chunk 0..3 (or 0..7) of 16 bytes of a row of 64 (or 128) bytes, as the
// swizzle of that width places it.
constexpr uint32_t Sm90DecodeSwizzle(uint32_t row_bytes, uint32_t row, uint32_t chunk) {
  const uint32_t flip = row_bytes == 128 ? row & 7 : row >> 1 & 3;
  return row * row_bytes + ((chunk ^ flip) << 4);
}

// 8-bit keys and values are multiplied as float16, 16 dimensions of a head (a *chunk* of 16 bytes)
// at a time, without moving a byte from lane to lane. A lane t of four has bytes 4t..4t+3 of a
// token's keys; the A fragment wants its k indices 2t, 2t+1, 2t+8, 2t+9. So index k of the product
// is this dimension of the chunk, of keys and queries alike:
constexpr int32_t Kv8KeyDimension(int32_t k) { return k % 8 / 2 * 4 + k / 8 * 2 + k % 2; }

// ldmatrix.trans moves pairs of bytes: lane (g, t) gets dimensions 2g, 2g+1 of tokens 2t, 2t+1.
// Row m of the A fragment (g, or g + 8) is this dimension of the chunk, of values and output alike:
constexpr int32_t Kv8ValueDimension(int32_t m) { return m % 8 * 2 + m / 8; }

}  // namespace longspan
