// The table for processors with AVX512_BF16. Integer codes of a block are exact in bfloat16, so
// vdpbf16ps multiplies exact weights with rounded activations: 32 products an instruction, sums in
// float.
//
// What bounds it: at many rows one dot product per cycle and 512-bit unit, of which a block of Q4_1
// needs 16 plus two FMAs for scale and minimum; at one row the bytes of the weights.
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/matmul_float_kernels.h"

namespace longspan {
namespace {

constexpr int kGroupRows = 8;  // times two panels: 16 sums in registers
constexpr int kMaxRowsByTable = 3;
constexpr int kPairs = kBlockCols / 2;

LONGSPAN_LANES __m512i BroadcastPair(const uint16_t* pair) {
  int32_t x;
  __builtin_memcpy(&x, pair, sizeof(x));
  return _mm512_set1_epi32(x);
}

LONGSPAN_LANES __m512 Dot(__m512 sum, __m512i w, __m512i x) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
}

// ---- Decoding ----

// Each decoder has Pair(unit, pair): columns 2 pair and 2 pair + 1 of all lanes as bfloat16
// [16 lanes][2]. `pair` is a constant after unrolling, so that the pairs of one 64-byte chunk share
// its load.

constexpr uint16_t BFloat16Bits(int value) {
  return static_cast<uint16_t>(__builtin_bit_cast(uint32_t, static_cast<float>(value)) >> 16);
}

// vpermw takes five index bits and a nibble has four: the table's upper half repeats the lower, so
// that the bit above a nibble needs no mask.
template <int kOffset>
struct NibbleDecoder {
  struct alignas(64) Table {
    uint16_t entry[32];
  };
  static constexpr Table MakeTable() {
    Table table{};
    for (int i = 0; i < 32; ++i) table.entry[i] = BFloat16Bits(i % 16 - kOffset);
    return table;
  }
  static constexpr Table kTable = MakeTable();

  static constexpr int kPairsPerChunk = 4;
  LONGSPAN_LANES __m512i Pair(__m512i chunk, int j) const {
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(chunk, 4 * j), words);
  }
  __m512i words = _mm512_load_si512(kTable.entry);
};

// Bytes by look-up: vpermi2b takes seven index bits, so each sign has a table of lower and one of
// upper bytes; then the bytes of a column pair are put together. Few instructions, but shuffles,
// which want a unit that dot products use too: for few rows.
struct ByteTables {
  alignas(64) uint8_t entry[2][2][128];  // [negative][upper byte][code % 128]
  alignas(64) uint8_t order[2][64];  // [pair of the chunk]: lower bytes from 0, upper from 64 on
};
constexpr ByteTables MakeByteTables() {
  ByteTables tables{};
  for (int negative = 0; negative < 2; ++negative) {
    for (int i = 0; i < 128; ++i) {
      const uint16_t bits = BFloat16Bits(i - 128 * negative);
      tables.entry[negative][0][i] = static_cast<uint8_t>(bits);
      tables.entry[negative][1][i] = static_cast<uint8_t>(bits >> 8);
    }
  }
  for (int pair = 0; pair < 2; ++pair) {
    for (int i = 0; i < 64; ++i) {
      const int column = 2 * pair + i % 4 / 2;
      tables.order[pair][i] = static_cast<uint8_t>(i / 4 * 4 + column + 64 * (i % 2));
    }
  }
  return tables;
}
constexpr ByteTables kByteTables = MakeByteTables();

struct ByteTableDecoder {
  LONGSPAN_LANES ByteTableDecoder() {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      table[i / 4][i / 2 % 2][i % 2] =
          _mm512_load_si512(kByteTables.entry[i / 4][i / 2 % 2] + 64 * (i % 2));
    }
    order[0] = _mm512_load_si512(kByteTables.order[0]);
    order[1] = _mm512_load_si512(kByteTables.order[1]);
  }
  LONGSPAN_LANES __m512i Bytes(__m512i codes, __mmask64 negative, int upper) const {
    const __m512i(&t)[2][2][2] = table;
    return _mm512_mask_blend_epi8(negative,
                                  _mm512_permutex2var_epi8(t[0][upper][0], codes, t[0][upper][1]),
                                  _mm512_permutex2var_epi8(t[1][upper][0], codes, t[1][upper][1]));
  }
  static constexpr int kPairsPerChunk = 2;
  LONGSPAN_LANES __m512i Pair(__m512i chunk, int j) const {
    const __mmask64 negative = _mm512_movepi8_mask(chunk);
    return _mm512_permutex2var_epi8(Bytes(chunk, negative, 0), order[j], Bytes(chunk, negative, 1));
  }
  __m512i table[2][2][2];
  __m512i order[2];
};

// Bytes by conversion: more instructions, but on units that dot products leave free.
struct ByteConvertDecoder {
  static constexpr int kPairsPerChunk = 2;
  LONGSPAN_LANES __m512i Pair(__m512i chunk, int j) const {
    const __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(chunk, 24 - 16 * j), 24);
    const __m512i odd = _mm512_srai_epi32(_mm512_slli_epi32(chunk, 16 - 16 * j), 24);
    // Floats of 8-bit integers have empty lower halves.
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(_mm512_cvtepi32_ps(even)), 16);
    return _mm512_or_si512(low, _mm512_castps_si512(_mm512_cvtepi32_ps(odd)));
  }
};

struct BFloat16Decoder {
  static constexpr int kPairsPerChunk = 1;
  LONGSPAN_LANES __m512i Pair(__m512i chunk, int) const { return chunk; }
};

template <WeightFormat kFormat, int kRows>
struct DecoderFor;
template <int kRows>
struct DecoderFor<WeightFormat::kQ4_0, kRows> : NibbleDecoder<8> {};
template <int kRows>
struct DecoderFor<WeightFormat::kQ4_1, kRows> : NibbleDecoder<0> {};
template <int kRows>
struct DecoderFor<WeightFormat::kQ8_0, kRows>
    : std::conditional_t<(kRows <= kMaxRowsByTable), ByteTableDecoder, ByteConvertDecoder> {};
template <int kRows>
struct DecoderFor<WeightFormat::kBF16, kRows> : BFloat16Decoder {};

template <WeightFormat kFormat>
void DecodeBFloat16Panel(const uint8_t* units, const WeightPanel& panel) {
  const DecoderFor<kFormat, kGroupRows> decoder;
  auto* codes = static_cast<uint16_t*>(panel.codes);
  for (int b = 0; b < panel.num_blocks; ++b, units += TileUnitBytes(kFormat)) {
#pragma GCC unroll 16
    for (int p = 0; p < kPairs; ++p, codes += 32) {
      constexpr int kPer = DecoderFor<kFormat, kGroupRows>::kPairsPerChunk;
      const __m512i chunk = _mm512_loadu_si512(units + 64 * (p / kPer));
      _mm512_storeu_si512(codes, decoder.Pair(chunk, p % kPer));
    }
    const uint8_t* scales = units + TileScaleOffset(kFormat);
    if (panel.scale != nullptr) Store(panel.scale + b * kTileRows, LoadHalves(scales));
    if (panel.min != nullptr) Store(panel.min + b * kTileRows, LoadHalves(scales + 32));
  }
}

void DecodeTile(WeightFormat format, MatmulArithmetic arithmetic, const uint8_t* units,
                const WeightPanel& panel) {
  if (arithmetic != MatmulArithmetic::kCodesBFloat16) {
    return DecodeFloatTile(format, arithmetic, units, panel);
  }
  switch (format) {
    case WeightFormat::kQ4_0:
      return DecodeBFloat16Panel<WeightFormat::kQ4_0>(units, panel);
    case WeightFormat::kQ4_1:
      return DecodeBFloat16Panel<WeightFormat::kQ4_1>(units, panel);
    case WeightFormat::kQ8_0:
      return DecodeBFloat16Panel<WeightFormat::kQ8_0>(units, panel);
    default:  // kBF16: no other format has this arithmetic and a tile layout
      return DecodeBFloat16Panel<WeightFormat::kBF16>(units, panel);
  }
}

// ---- Micro-kernel over panels ----

template <int kRows, int kPanels, int kSubBlock>
LONGSPAN_LANES void MultiplyRows(const WeightPanel* panels, const ActivationGroup& group,
                                 float* acc, int64_t acc_stride) {
  const auto* x = static_cast<const uint16_t*>(group.data);
  const float* sums = group.sums;
  const uint16_t* codes[kPanels];
  for (int t = 0; t < kPanels; ++t) codes[t] = static_cast<const uint16_t*>(panels[t].codes);
  constexpr int kPerBlock = kBlockCols / kSubBlock;
  for (int s = 0; s < panels[0].num_blocks * kPerBlock; ++s) {
    __m512 sum[kPanels][kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int t = 0; t < kPanels; ++t) sum[t][r] = _mm512_setzero_ps();
    }
#pragma GCC unroll 4
    for (int p = 0; p < kSubBlock / 2; ++p) {
      __m512i w[kPanels];
#pragma GCC unroll 2
      for (int t = 0; t < kPanels; ++t) w[t] = _mm512_loadu_si512(codes[t] + 32 * p);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const __m512i a = BroadcastPair(x + 2 * (p * kRows + r));
#pragma GCC unroll 2
        for (int t = 0; t < kPanels; ++t) sum[t][r] = Dot(sum[t][r], w[t], a);
      }
    }
    x += kSubBlock * kRows;
#pragma GCC unroll 2
    for (int t = 0; t < kPanels; ++t) {
      codes[t] += 16 * kSubBlock;
      float* a = acc + t * acc_stride;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r, a += kTileRows) {
        __m512 total = _mm512_loadu_ps(a);
        if (panels[t].scale == nullptr) {
          total = _mm512_add_ps(total, sum[t][r]);
        } else {
          total =
              _mm512_fmadd_ps(_mm512_loadu_ps(panels[t].scale + s * kTileRows), sum[t][r], total);
        }
        if (kPerBlock == 1 && panels[t].min != nullptr) {
          total = _mm512_fmadd_ps(_mm512_loadu_ps(panels[t].min + s * kTileRows),
                                  _mm512_set1_ps(sums[s * kRows + r]), total);
        }
        _mm512_storeu_ps(a, total);
      }
    }
  }
}

template <int kRows, int kPanels>
void MultiplyPanels(const WeightPanel* panels, const ActivationGroup& group, float* acc,
                    int64_t acc_stride) {
  if (panels[0].sub_block == 16) {
    MultiplyRows<kRows, kPanels, 16>(panels, group, acc, acc_stride);
  } else {
    MultiplyRows<kRows, kPanels, 32>(panels, group, acc, acc_stride);
  }
}

template <int kRows>
void MultiplyGroup(const WeightPanel* panels, int num_panels, const ActivationGroup& group,
                   float* acc, int64_t acc_stride) {
  if constexpr (kRows > 0) {
    if (group.num_rows != kRows) {
      MultiplyGroup<kRows - 1>(panels, num_panels, group, acc, acc_stride);
    } else if (num_panels == 2) {
      MultiplyPanels<kRows, 2>(panels, group, acc, acc_stride);
    } else {
      MultiplyPanels<kRows, 1>(panels, group, acc, acc_stride);
    }
  }
}

void Multiply(const WeightPanel* panels, int num_panels, MatmulArithmetic arithmetic,
              const ActivationGroup& group, float* acc, int64_t acc_stride) {
  if (arithmetic == MatmulArithmetic::kCodesBFloat16) {
    MultiplyGroup<kGroupRows>(panels, num_panels, group, acc, acc_stride);
  } else {
    MultiplyFloat(panels, num_panels, group, acc, acc_stride);
  }
}

// ---- Few rows: straight from the tile ----

// kBlocks blocks side by side, so that their chains of dot products overlap. Their chunks are
// loaded before, in the order of memory: streams that jump between blocks halve what prefetching
// brings.
template <WeightFormat kFormat, int kRows, int kBlocks>
LONGSPAN_LANES void DirectBlocks(const uint8_t* unit, const DecoderFor<kFormat, kRows>& decoder,
                                 const uint16_t* x, const float* sums, __m512 (&total)[kRows]) {
  constexpr int kUnitBytes = TileUnitBytes(kFormat);
  constexpr int kPer = DecoderFor<kFormat, kRows>::kPairsPerChunk;
  constexpr int kChunks = kPairs / kPer;
  __m512i chunk[kBlocks][kChunks];
  __m512 sum[kBlocks][kRows];
#pragma GCC unroll 16
  for (int b = 0; b < kBlocks; ++b) {
#pragma GCC unroll 16
    for (int c = 0; c < kChunks; ++c) {
      chunk[b][c] = _mm512_loadu_si512(unit + b * kUnitBytes + 64 * c);
      if constexpr (kBlocks > 1) __asm__ volatile("" : "+v"(chunk[b][c]));  // keeps the order
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[b][r] = _mm512_setzero_ps();
  }
#pragma GCC unroll 16
  for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 16
    for (int b = 0; b < kBlocks; ++b) {
      const __m512i w = decoder.Pair(chunk[b][p / kPer], p % kPer);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const uint16_t* pair = x + (b * kBlockCols + 2 * p) * kRows + 2 * r;
        sum[b][r] = Dot(sum[b][r], w, BroadcastPair(pair));
      }
    }
  }
#pragma GCC unroll 16
  for (int b = 0; b < kBlocks; ++b) {
    const uint8_t* scales = unit + b * kUnitBytes + TileScaleOffset(kFormat);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kFormat == WeightFormat::kBF16) {
        total[r] = _mm512_add_ps(total[r], sum[b][r]);
      } else {
        total[r] = _mm512_fmadd_ps(LoadHalves(scales).v[0], sum[b][r], total[r]);
      }
      if constexpr (kFormat == WeightFormat::kQ4_1) {
        total[r] = _mm512_fmadd_ps(LoadHalves(scales + 32).v[0],
                                   _mm512_set1_ps(sums[b * kRows + r]), total[r]);
      }
    }
  }
}

template <WeightFormat kFormat, int kRows>
void DirectTile(const uint8_t* units, int num_blocks, const ActivationGroup& group, float* acc) {
  const DecoderFor<kFormat, kRows> decoder;
  const auto* x = static_cast<const uint16_t*>(group.data);
  const float* sums = group.sums;
  __m512 total[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) total[r] = _mm512_setzero_ps();
  constexpr bool kNibbles = DecoderFor<kFormat, kRows>::kPairsPerChunk == 4;
  constexpr int kBlocks = !kNibbles ? 1 : kRows <= 2 ? 3 : kRows <= 6 ? 2 : 1;
  int b = 0;
  for (; b + kBlocks <= num_blocks; b += kBlocks) {
    DirectBlocks<kFormat, kRows, kBlocks>(units, decoder, x, sums, total);
    units += kBlocks * TileUnitBytes(kFormat);
    x += kBlocks * kBlockCols * kRows;
    sums += kBlocks * kRows;
  }
  for (; b < num_blocks; ++b) {
    DirectBlocks<kFormat, kRows, 1>(units, decoder, x, sums, total);
    units += TileUnitBytes(kFormat);
    x += kBlockCols * kRows;
    sums += kRows;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(acc + r * kTileRows, total[r]);
}

template <WeightFormat kFormat, int kRows = kGroupRows>
void DirectRows(const uint8_t* units, int num_blocks, const ActivationGroup& group, float* acc) {
  if constexpr (kRows > 0) {
    if (group.num_rows == kRows) {
      DirectTile<kFormat, kRows>(units, num_blocks, group, acc);
    } else {
      DirectRows<kFormat, kRows - 1>(units, num_blocks, group, acc);
    }
  }
}

// Decoding a tile again for every group costs two shuffles beside eight dot products, mostly on
// other units, so that panels save nothing at any number of rows.
bool HasDirect(WeightFormat format, MatmulArithmetic arithmetic, int64_t num_rows) {
  if (arithmetic != MatmulArithmetic::kCodesBFloat16) {
    return HasDirectFloat(format, arithmetic, num_rows);
  }
  return TileUnitBytes(format) != 0;
}

void MultiplyDirect(WeightFormat format, MatmulArithmetic arithmetic, const uint8_t* units,
                    int num_blocks, const ActivationGroup& group, float* acc) {
  if (arithmetic != MatmulArithmetic::kCodesBFloat16) {
    return MultiplyDirectFloat(format, arithmetic, units, num_blocks, group, acc);
  }
  switch (format) {
    case WeightFormat::kQ4_0:
      return DirectRows<WeightFormat::kQ4_0>(units, num_blocks, group, acc);
    case WeightFormat::kQ4_1:
      return DirectRows<WeightFormat::kQ4_1>(units, num_blocks, group, acc);
    case WeightFormat::kQ8_0:
      return DirectRows<WeightFormat::kQ8_0>(units, num_blocks, group, acc);
    default:  // kBF16
      return DirectRows<WeightFormat::kBF16>(units, num_blocks, group, acc);
  }
}

// ---- Activations ----

// Four rows of 16 column pairs to [16 pairs][4 rows], written every `stride` bytes.
LONGSPAN_LANES void StoreTransposed(const __m512i (&row)[4], char* out, int64_t stride) {
  const __m512i a = _mm512_unpacklo_epi32(row[0], row[1]);
  const __m512i b = _mm512_unpackhi_epi32(row[0], row[1]);
  const __m512i c = _mm512_unpacklo_epi32(row[2], row[3]);
  const __m512i d = _mm512_unpackhi_epi32(row[2], row[3]);
  // 128-bit lane l of quad[j] is pair 4 l + j.
  const __m512i quad[4] = {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c),
                           _mm512_unpacklo_epi64(b, d), _mm512_unpackhi_epi64(b, d)};
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const auto store = [&](int l, __m128i v) __attribute__((always_inline)) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + (4 * l + j) * stride), v);
    };
    store(0, _mm512_castsi512_si128(quad[j]));
    store(1, _mm512_extracti32x4_epi32(quad[j], 1));
    store(2, _mm512_extracti32x4_epi32(quad[j], 2));
    store(3, _mm512_extracti32x4_epi32(quad[j], 3));
  }
}

// Rounds a block; sum receives the sum of the rounded values.
LONGSPAN_LANES __m512i RoundBlock(const RowToConvert& row, int64_t first, int64_t cols,
                                  float* sum) {
  Floats half[2];
  LoadBlock(row, first, cols, half);
  const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(half[1].v[0], half[0].v[0]));
  const __m512i even = _mm512_slli_epi32(rounded, 16);
  const __m512i odd = _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
  *sum = SumLanes({{_mm512_add_ps(_mm512_castsi512_ps(even), _mm512_castsi512_ps(odd))}});
  return rounded;
}

void ConvertFullGroup(const ConvertGroupParams& p) {
  RowToConvert rows[kGroupRows];
  for (int r = 0; r < kGroupRows; ++r) rows[r] = StartRow(p, r);
  char* out = static_cast<char*>(p.data);
  float* sums = p.sums;
  constexpr int kPairBytes = 4 * kGroupRows;
  for (int64_t first = 0; first < p.cols; first += kBlockCols, sums += kGroupRows) {
    for (int r = 0; r < kGroupRows; r += 4) {
      __m512i four[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) four[i] = RoundBlock(rows[r + i], first, p.cols, sums + r + i);
      StoreTransposed(four, out + 4 * r, kPairBytes);
    }
    out += kPairs * kPairBytes;
  }
}

void ConvertGroup(const ConvertGroupParams& p) {
  if (p.arithmetic != MatmulArithmetic::kCodesBFloat16) return ConvertGroupFloat(p);
  if (p.num_rows == kGroupRows) return ConvertFullGroup(p);
  for (int r = 0; r < p.num_rows; ++r) {
    const RowToConvert row = StartRow(p, r);
    auto* out = static_cast<uint32_t*>(p.data) + r;
    float* sums = p.sums + r;
    for (int64_t first = 0; first < p.cols; first += kBlockCols, sums += p.num_rows) {
      alignas(64) uint32_t pairs[kPairs];
      _mm512_store_si512(pairs, RoundBlock(row, first, p.cols, sums));
      for (int i = 0; i < kPairs; ++i, out += p.num_rows) *out = pairs[i];
    }
  }
}

}  // namespace

const MatmulKernels kMatmulAvx512BFloat16 = {
    .name = "avx512_bf16",
    .native_bfloat16 = true,
    .float_group_rows = kFloatGroupRows,
    .bfloat16_group_rows = kGroupRows,
    .convert_group = ConvertGroup,
    .decode_tile = DecodeTile,
    .fold_scales = FoldScales,
    .multiply = Multiply,
    .has_direct = HasDirect,
    .multiply_direct = MultiplyDirect,
    .finish = Finish,
};

}  // namespace longspan
