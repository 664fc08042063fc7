// How 8-bit keys and values reach the matrix unit in decode on sm_90a, replayed on the host: what
// ldmatrix hands to lanes, how bytes pair up, and that the products are those of the right
// dimensions. No device; the device's own instructions are tests/kernels/ptx's.
#include "kernels/attention/decode/sm90_decode_layout.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace longspan {
namespace {

using Four = std::array<int, 4>;  // bytes of a register, the lowest first

// ldmatrix on 8 rows of 16 bytes: lane (g, t) gets elements (g, 2t), (g, 2t + 1) of 16 bits;
// transposed: (2t, g), (2t + 1, g).
template <typename Byte>
Four LoadMatrix(int g, int t, bool transposed, Byte byte) {
  if (transposed) {
    return {byte(2 * t, 2 * g), byte(2 * t, 2 * g + 1), byte(2 * t + 1, 2 * g),
            byte(2 * t + 1, 2 * g + 1)};
  }
  return {byte(g, 4 * t), byte(g, 4 * t + 1), byte(g, 4 * t + 2), byte(g, 4 * t + 3)};
}

// mma.m16n8k16: row, k of element `e` (0, 1) of register `i` of the A fragment of a lane.
struct Place {
  int row, k;
};
Place PlaceInA(int g, int t, int i, int e) { return {g + 8 * (i % 2), 2 * t + 8 * (i / 2) + e}; }

TEST(Sm90DecodeLayout, EveryDimensionOfAChunkHasOnePlace) {
  std::set<int32_t> of_keys, of_values;
  for (int32_t i = 0; i < 16; ++i) {
    of_keys.insert(Kv8KeyDimension(i));
    of_values.insert(Kv8ValueDimension(i));
  }
  EXPECT_EQ(of_keys.size(), 16u);
  EXPECT_EQ(of_values.size(), 16u);
  EXPECT_EQ(*of_keys.begin(), 0);
  EXPECT_EQ(*of_keys.rbegin(), 15);
  EXPECT_EQ(*of_values.begin(), 0);
  EXPECT_EQ(*of_values.rbegin(), 15);
}

// A token's bytes, as the kernel converts them: 0, 1 to one register, 2, 3 to another.
TEST(Sm90DecodeLayout, KeysArriveWhereQueriesHaveTheSameDimension) {
  for (int g = 0; g < 8; ++g) {
    for (int t = 0; t < 4; ++t) {
      for (int half = 0; half < 2; ++half) {  // tokens 0..7, tokens 8..15
        const Four bytes =
            LoadMatrix(g, t, false, [&](int row, int d) { return 100 * (row + 8 * half) + d; });
        for (int e = 0; e < 4; ++e) {
          const Place place = PlaceInA(g, t, half + 2 * (e / 2), e % 2);
          EXPECT_EQ(bytes[e], 100 * place.row + Kv8KeyDimension(place.k));
        }
      }
      // The B fragment of queries is loaded four neighbours at a time, from 4t on.
      for (int half = 0; half < 2; ++half) {
        const int d = Kv8KeyDimension(8 * half) + t * Kv8KeyDimension(2);
        EXPECT_EQ(d, Kv8KeyDimension(2 * t + 8 * half));
        EXPECT_EQ(d + 1, Kv8KeyDimension(2 * t + 1 + 8 * half));
      }
    }
  }
}

// Pairs (d, d + 1) of two tokens become pairs of tokens: bytes 0, 2 to one register, 1, 3 to
// another.
TEST(Sm90DecodeLayout, ValuesArriveAsPairsOfTokensOfOneDimension) {
  for (int g = 0; g < 8; ++g) {
    for (int t = 0; t < 4; ++t) {
      for (int half = 0; half < 2; ++half) {
        const Four bytes =
            LoadMatrix(g, t, true, [&](int row, int d) { return 100 * (row + 8 * half) + d; });
        for (int e = 0; e < 4; ++e) {
          const Place place = PlaceInA(g, t, e % 2 + 2 * half, e / 2);
          EXPECT_EQ(bytes[e], 100 * place.k + Kv8ValueDimension(place.row));
        }
      }
      // A lane's rows g and g + 8 are neighbours in the output.
      EXPECT_EQ(Kv8ValueDimension(g), g * Kv8ValueDimension(1));
      EXPECT_EQ(Kv8ValueDimension(g + 8), Kv8ValueDimension(g) + 1);
    }
  }
}

// ldmatrix reads 8 rows of one chunk at a time: all 32 banks, once.
TEST(Sm90DecodeLayout, SwizzledRowsOfAChunkLieInDifferentBanks) {
  for (const uint32_t row_bytes : {64u, 128u}) {
    std::set<uint32_t> all;
    for (uint32_t chunk = 0; chunk < row_bytes / 16; ++chunk) {
      for (uint32_t first = 0; first < 64; first += 8) {
        std::set<uint32_t> banks;
        for (uint32_t row = first; row < first + 8; ++row) {
          const uint32_t offset = Sm90DecodeSwizzle(row_bytes, row, chunk);
          EXPECT_EQ(offset / row_bytes, row) << "a chunk left its row";
          banks.insert(offset / 16 % 8);
          all.insert(offset);
        }
        EXPECT_EQ(banks.size(), 8u) << row_bytes << " chunk " << chunk << " row " << first;
      }
    }
    EXPECT_EQ(all.size(), 64 * row_bytes / 16);
  }
}

// What the copy engine does to addresses: bits 4..6 flip by bits 7..9, or 4..5 by 7..8.
TEST(Sm90DecodeLayout, SwizzleIsTheCopyEnginesForThatWidth) {
  for (uint32_t row = 0; row < 64; ++row) {
    for (uint32_t chunk = 0; chunk < 8; ++chunk) {
      const uint32_t plain = 128 * row + 16 * chunk;
      EXPECT_EQ(Sm90DecodeSwizzle(128, row, chunk), plain ^ (plain >> 7 & 7) << 4);
    }
    for (uint32_t chunk = 0; chunk < 4; ++chunk) {
      const uint32_t plain = 64 * row + 16 * chunk;
      EXPECT_EQ(Sm90DecodeSwizzle(64, row, chunk), plain ^ (plain >> 7 & 3) << 4);
    }
  }
}

// The kernel finds chunks 2 pair and 2 pair + 1 from chunks 0 and 1 by flipping bits of an address.
TEST(Sm90DecodeLayout, PairsOfChunksDifferInBitsThatRowsDoNotReach) {
  constexpr uint32_t kStage = 7 * 1024;  // stages are multiples of 1024
  for (const uint32_t row_bytes : {64u, 128u}) {
    for (uint32_t row = 0; row < 64; ++row) {
      for (uint32_t half = 0; half < 2; ++half) {
        for (uint32_t pair = 0; pair < row_bytes / 32; ++pair) {
          EXPECT_EQ((kStage + Sm90DecodeSwizzle(row_bytes, row, half)) ^ pair << 5,
                    kStage + Sm90DecodeSwizzle(row_bytes, row, 2 * pair + half));
        }
      }
    }
  }
}

TEST(Sm90DecodeLayout, ColumnsCoverTheHeadOnce) {
  for (const int32_t head_dim : {16, 48, 64}) EXPECT_EQ(Sm90DecodeKernelHeadDim(1, head_dim), 64);
  for (const int32_t head_dim : {80, 96, 128}) EXPECT_EQ(Sm90DecodeKernelHeadDim(1, head_dim), 128);
  for (const int32_t head_dim : {64, 128, 192, 256}) {
    EXPECT_EQ(Sm90DecodeKernelHeadDim(1, head_dim), head_dim);
    EXPECT_EQ(Sm90DecodeKernelHeadDim(2, head_dim), head_dim);
    EXPECT_EQ(Sm90DecodeRowBytes(2, head_dim), 128);
    EXPECT_EQ(head_dim % Sm90DecodeRowBytes(1, head_dim), 0);
  }
}

}  // namespace
}  // namespace longspan
