// The table for processors with AVX512_BF16. Integer codes of a block are exact in bfloat16, so
// vdpbf16ps multiplies exact weights with rounded activations: 32 products an instruction, sums in
// float.
//
// What bounds it: at many rows one dot product per cycle and 512-bit unit, of which a block of Q4_1
// needs 16 plus two FMAs for scale and minimum; at one row the bytes of the weights.
#include <cstdint>

#include "kernels/cpu/matmul_float_kernels.h"

namespace longspan {
namespace {

constexpr int kBFloat16Rows =
    12;  // sums of a group of rows; accumulators wait in the first-level cache
constexpr int kMaxDirectRows = 8;
constexpr int kPairs = kBlockCols / 2;

LONGSPAN_LANES __m512 Dot(__m512 sum, __m512i w, const uint16_t* pair) {
  int32_t x;
  __builtin_memcpy(&x, pair, sizeof(x));
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w),
                          reinterpret_cast<__m512bh>(_mm512_set1_epi32(x)));
}

// ---- Decoding ----

// Entry i holds (i % 16) - offset as bfloat16. vpermw takes five index bits and ours are four: the
// table's upper half repeats the lower, so that the bit above a nibble needs no mask.
LONGSPAN_LANES __m512i NibbleTable(float offset) {
  alignas(64) uint16_t table[32];
  for (int i = 0; i < 32; ++i) {
    const float value = static_cast<float>(i % 16) - offset;
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof(bits));
    table[i] = static_cast<uint16_t>(bits >> 16);
  }
  return _mm512_load_si512(table);
}

// Calls use(pair, codes) for the 16 column pairs of a unit, in order; codes: bfloat16 [16
// lanes][2].
template <typename Use>
LONGSPAN_LANES void ForNibblePairs(const uint8_t* unit, __m512i table, Use use) {
#pragma GCC unroll 4
  for (int chunk = 0; chunk < 4; ++chunk) {
    const __m512i words = _mm512_loadu_si512(unit + 64 * chunk);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      use(4 * chunk + j, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4 * j), table));
    }
  }
}

template <typename Use>
LONGSPAN_LANES void ForBytePairs(const uint8_t* unit, Use use) {
#pragma GCC unroll 8
  for (int chunk = 0; chunk < 8; ++chunk) {
    const __m512i words = _mm512_loadu_si512(unit + 64 * chunk);
#pragma GCC unroll 2
    for (int j = 0; j < 4; j += 2) {
      const __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(words, 24 - 8 * j), 24);
      const __m512i odd = _mm512_srai_epi32(_mm512_slli_epi32(words, 16 - 8 * j), 24);
      // Floats of 8-bit integers have empty lower halves.
      const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(_mm512_cvtepi32_ps(even)), 16);
      const __m512i high = _mm512_castps_si512(_mm512_cvtepi32_ps(odd));
      use(2 * chunk + j / 2, _mm512_or_si512(low, high));
    }
  }
}

template <typename Use>
LONGSPAN_LANES void ForBFloat16Pairs(const uint8_t* unit, Use use) {
#pragma GCC unroll 16
  for (int pair = 0; pair < kPairs; ++pair) use(pair, _mm512_loadu_si512(unit + 64 * pair));
}

template <WeightFormat kFormat, typename Use>
LONGSPAN_LANES void ForPairs(const uint8_t* unit, __m512i table, Use use) {
  if constexpr (kFormat == WeightFormat::kQ8_0) {
    ForBytePairs(unit, use);
  } else if constexpr (kFormat == WeightFormat::kBF16) {
    ForBFloat16Pairs(unit, use);
  } else {
    ForNibblePairs(unit, table, use);
  }
}

constexpr float OffsetOf(WeightFormat format) {
  return format == WeightFormat::kQ4_0 ? 8.0f : 0.0f;
}

template <WeightFormat kFormat>
void DecodeBFloat16Panel(const uint8_t* units, const WeightPanel& panel) {
  const __m512i table = NibbleTable(OffsetOf(kFormat));
  auto* codes = static_cast<uint16_t*>(panel.codes);
  for (int b = 0; b < panel.num_blocks; ++b, units += TileUnitBytes(kFormat)) {
    ForPairs<kFormat>(
        units, table, [&](int, __m512i w) __attribute__((always_inline)) {
          _mm512_storeu_si512(codes, w);
          codes += 32;
        });
    const uint8_t* scales = units + TileScaleOffset(kFormat);
    if (panel.scale != nullptr) Store(panel.scale + b * kTileRows, LoadHalves(scales));
    if (panel.min != nullptr) Store(panel.min + b * kTileRows, LoadHalves(scales + 32));
  }
}

void DecodeTile(WeightFormat format, MatmulArithmetic arithmetic, const uint8_t* units,
                const WeightPanel& panel) {
  if (arithmetic != MatmulArithmetic::kCodesBFloat16) return DecodeFloatTile(format, units, panel);
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

// ---- Micro-kernel over a panel ----

template <int kRows, int kSubBlock>
LONGSPAN_LANES void MultiplyRows(const WeightPanel& panel, const uint16_t* x, int64_t stride,
                                 const float* sums, int64_t sums_stride, float* acc) {
  const auto* codes = static_cast<const uint16_t*>(panel.codes);
  constexpr int kPerBlock = kBlockCols / kSubBlock;
  for (int s = 0; s < panel.num_blocks * kPerBlock; ++s) {
    __m512 sum[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[r] = _mm512_setzero_ps();
#pragma GCC unroll 16
    for (int p = 0; p < kSubBlock / 2; ++p) {
      const __m512i w = _mm512_loadu_si512(codes + 32 * p);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) sum[r] = Dot(sum[r], w, x + r * stride + 2 * p);
    }
    codes += 16 * kSubBlock;
    x += kSubBlock;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      __m512 total = _mm512_loadu_ps(acc + r * kTileRows);
      if (panel.scale == nullptr) {
        total = _mm512_add_ps(total, sum[r]);
      } else {
        total = _mm512_fmadd_ps(_mm512_loadu_ps(panel.scale + s * kTileRows), sum[r], total);
      }
      if (panel.min != nullptr && kPerBlock == 1) {
        total = _mm512_fmadd_ps(_mm512_loadu_ps(panel.min + s * kTileRows),
                                _mm512_set1_ps(sums[r * sums_stride + s]), total);
      }
      _mm512_storeu_ps(acc + r * kTileRows, total);
    }
  }
}

template <int kRows>
void MultiplyGroup(int num_rows, const WeightPanel& panel, const uint16_t* x, int64_t stride,
                   const float* sums, int64_t sums_stride, float* acc) {
  if constexpr (kRows > 0) {
    if (num_rows != kRows) {
      MultiplyGroup<kRows - 1>(num_rows, panel, x, stride, sums, sums_stride, acc);
    } else if (panel.sub_block == 16) {
      MultiplyRows<kRows, 16>(panel, x, stride, sums, sums_stride, acc);
    } else {
      MultiplyRows<kRows, 32>(panel, x, stride, sums, sums_stride, acc);
    }
  }
}

void Multiply(const WeightPanel& panel, MatmulArithmetic arithmetic, const ActivationRows& rows,
              int num_rows, float* acc) {
  if (arithmetic != MatmulArithmetic::kCodesBFloat16) {
    return MultiplyFloat(panel, rows, num_rows, acc);
  }
  const auto* x = static_cast<const uint16_t*>(rows.data);
  const float* sums = rows.sums;
  while (num_rows > 0) {
    const int group = num_rows < kBFloat16Rows ? num_rows : kBFloat16Rows;
    MultiplyGroup<kBFloat16Rows>(group, panel, x, rows.stride, sums, rows.sums_stride, acc);
    x += group * rows.stride;
    sums += group * rows.sums_stride;
    acc += group * kTileRows;
    num_rows -= group;
  }
}

// ---- Few rows: straight from the tile ----

// kBlocks blocks side by side, so that their chains of dot products overlap.
template <WeightFormat kFormat, int kRows, int kBlocks>
LONGSPAN_LANES void DirectBlocks(const uint8_t* unit, __m512i table, const uint16_t* x,
                                 int64_t stride, const float* sums, int64_t sums_stride,
                                 __m512 (&total)[kRows]) {
  constexpr int kUnitBytes = TileUnitBytes(kFormat);
  __m512 sum[kBlocks][kRows];
#pragma GCC unroll 16
  for (int b = 0; b < kBlocks; ++b) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[b][r] = _mm512_setzero_ps();
    ForPairs<kFormat>(
        unit + b * kUnitBytes, table, [&](int p, __m512i w) __attribute__((always_inline)) {
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) {
            sum[b][r] = Dot(sum[b][r], w, x + r * stride + b * kBlockCols + 2 * p);
          }
        });
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
                                   _mm512_set1_ps(sums[r * sums_stride + b]), total[r]);
      }
    }
  }
}

template <WeightFormat kFormat, int kRows>
void DirectTile(const uint8_t* units, int num_blocks, const ActivationRows& rows, float* acc) {
  const __m512i table = NibbleTable(OffsetOf(kFormat));
  const auto* x = static_cast<const uint16_t*>(rows.data);
  const float* sums = rows.sums;
  __m512 total[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) total[r] = _mm512_loadu_ps(acc + r * kTileRows);
  constexpr int kBlocks = kRows <= 2 ? 2 : 1;
  int b = 0;
  for (; b + kBlocks <= num_blocks; b += kBlocks) {
    DirectBlocks<kFormat, kRows, kBlocks>(units, table, x, rows.stride, sums, rows.sums_stride,
                                          total);
    units += kBlocks * TileUnitBytes(kFormat);
    x += kBlocks * kBlockCols;
    sums += kBlocks;
  }
  if (b < num_blocks) {
    DirectBlocks<kFormat, kRows, 1>(units, table, x, rows.stride, sums, rows.sums_stride, total);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(acc + r * kTileRows, total[r]);
}

template <WeightFormat kFormat, int kRows = kMaxDirectRows>
void DirectRows(const uint8_t* units, int num_blocks, const ActivationRows& rows, int num_rows,
                float* acc) {
  if constexpr (kRows > 0) {
    if (num_rows == kRows) {
      DirectTile<kFormat, kRows>(units, num_blocks, rows, acc);
    } else {
      DirectRows<kFormat, kRows - 1>(units, num_blocks, rows, num_rows, acc);
    }
  }
}

bool MultiplyDirect(WeightFormat format, MatmulArithmetic arithmetic, const uint8_t* units,
                    int num_blocks, const ActivationRows& rows, int num_rows, float* acc) {
  if (arithmetic != MatmulArithmetic::kCodesBFloat16) return false;
  switch (format) {
    case WeightFormat::kQ4_0:
      DirectRows<WeightFormat::kQ4_0>(units, num_blocks, rows, num_rows, acc);
      return true;
    case WeightFormat::kQ4_1:
      DirectRows<WeightFormat::kQ4_1>(units, num_blocks, rows, num_rows, acc);
      return true;
    case WeightFormat::kQ8_0:
      DirectRows<WeightFormat::kQ8_0>(units, num_blocks, rows, num_rows, acc);
      return true;
    case WeightFormat::kBF16:
      DirectRows<WeightFormat::kBF16>(units, num_blocks, rows, num_rows, acc);
      return true;
    default:
      return false;
  }
}

// ---- Activations ----

void ConvertRow(const ConvertRowParams& p) {
  if (p.arithmetic != MatmulArithmetic::kCodesBFloat16) return ConvertRowFloat(p);
  const float inverse_rms = p.norm_weight == nullptr ? 1.0f : InverseRms(p.x, p.cols, p.norm_eps);
  auto* out = static_cast<uint16_t*>(p.out);
  for (int64_t first = 0; first < p.cols; first += kBlockCols) {
    __m512 half[2];
    ConvertBlock(
        p, first, inverse_rms,
        false, [&](int h, const Floats& v) __attribute__((always_inline)) { half[h] = v.v[0]; });
    const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(half[1], half[0]));
    _mm512_storeu_si512(out + first, rounded);
    const __m512i even = _mm512_slli_epi32(rounded, 16);
    const __m512i odd = _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
    const Floats pairs = {{_mm512_castsi512_ps(even) + _mm512_castsi512_ps(odd)}};
    p.sums[first / kBlockCols] = SumLanes(pairs);
  }
}

}  // namespace

const MatmulKernels kMatmulAvx512BFloat16 = {
    .name = "avx512_bf16",
    .native_bfloat16 = true,
    .convert_row = ConvertRow,
    .decode_tile = DecodeTile,
    .fold_scales = FoldScales,
    .multiply = Multiply,
    .max_direct_rows = kMaxDirectRows,
    .multiply_direct = MultiplyDirect,
    .finish_row = FinishRow,
};

}  // namespace longspan
