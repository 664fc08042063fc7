// The float part of every MatmulKernels table, written once on float_lanes.h and compiled once per
// instruction set. Internal linkage throughout; include it only in a file that defines a table.
#pragma once

#include "kernels/cpu/float_lanes.h"
#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/weight_tiles.h"

namespace longspan {
namespace {

// Rows of the float micro-kernel: their sums must stay in registers.
#if defined(__AVX512F__)
constexpr int kFloatRows = 12;
#elif defined(__AVX2__)
constexpr int kFloatRows = 6;
#else
constexpr int kFloatRows = 2;
#endif

// ---- Decoding of the tile layout into float panels ----

// Four 64-byte chunks: nibble 2j of a lane's word is column 8c + 2j... see weight_tiles.h.
LONGSPAN_LANES void DecodeNibbleTile(const uint8_t* unit, float offset, float* codes) {
  const Floats shift = Broadcast(-offset);
  for (int chunk = 0; chunk < 4; ++chunk) {
    const Uints words = LoadUints(unit + 64 * chunk);
    for (int j = 0; j < 4; ++j) {
      float* out = codes + (8 * chunk + 2 * j) * kTileRows;
      Store(out, Add(SignedToFloat(And(ShiftRight(words, 4 * j), 15), 0), shift));
      Store(out + kTileRows, Add(SignedToFloat(And(ShiftRight(words, 16 + 4 * j), 15), 0), shift));
    }
  }
}

LONGSPAN_LANES void DecodeByteTile(const uint8_t* unit, float* codes) {
  for (int chunk = 0; chunk < 8; ++chunk) {
    const Uints words = LoadUints(unit + 64 * chunk);
    for (int j = 0; j < 4; ++j) {
      Store(codes + (4 * chunk + j) * kTileRows, SignedToFloat(ShiftLeft(words, 24 - 8 * j), 24));
    }
  }
}

LONGSPAN_LANES void DecodeBFloat16Tile(const uint8_t* unit, float* codes) {
  for (int pair = 0; pair < 16; ++pair) {
    const Uints words = LoadUints(unit + 64 * pair);
    Store(codes + 2 * pair * kTileRows, AsFloats(ShiftLeft(words, 16)));
    Store(codes + (2 * pair + 1) * kTileRows, AsFloats(And(words, 0xffff0000u)));
  }
}

LONGSPAN_LANES void DecodeFloatTile(WeightFormat format, const uint8_t* units,
                                    const WeightPanel& panel) {
  const int unit_bytes = TileUnitBytes(format);
  for (int b = 0; b < panel.num_blocks; ++b) {
    const uint8_t* unit = units + static_cast<int64_t>(b) * unit_bytes;
    float* codes = static_cast<float*>(panel.codes) + b * kBlockCols * kTileRows;
    switch (format) {
      case WeightFormat::kQ4_0:
        DecodeNibbleTile(unit, 8.0f, codes);
        break;
      case WeightFormat::kQ4_1:
        DecodeNibbleTile(unit, 0.0f, codes);
        break;
      case WeightFormat::kQ8_0:
        DecodeByteTile(unit, codes);
        break;
      case WeightFormat::kBF16:
        DecodeBFloat16Tile(unit, codes);
        break;
      case WeightFormat::kF16:
        for (int k = 0; k < kBlockCols; ++k) {
          Store(codes + k * kTileRows, LoadHalves(unit + 2 * k * kTileRows));
        }
        break;
      default:  // kF32: no other format has this layout
        __builtin_memcpy(codes, unit, sizeof(float) * kBlockCols * kTileRows);
        break;
    }
    const uint8_t* scales = unit + TileScaleOffset(format);
    if (panel.scale != nullptr) Store(panel.scale + b * kTileRows, LoadHalves(scales));
    if (panel.min != nullptr) Store(panel.min + b * kTileRows, LoadHalves(scales + 32));
  }
}

void FoldScales(const WeightPanel& panel) {
  float* codes = static_cast<float*>(panel.codes);
  for (int k = 0; k < panel.num_blocks * kBlockCols; ++k, codes += kTileRows) {
    Floats value = Mul(Load(codes), Load(panel.scale + (k / panel.sub_block) * kTileRows));
    if (panel.min != nullptr) value = Add(value, Load(panel.min + (k / kBlockCols) * kTileRows));
    Store(codes, value);
  }
}

// ---- Micro-kernel ----

// acc[kRows][16] += panel * rows, in the order that matmul_kernels.h fixes.
template <int kRows, int kSubBlock>
LONGSPAN_LANES void MultiplyFloatRows(const WeightPanel& panel, const float* x, int64_t stride,
                                      const float* sums, int64_t sums_stride, float* acc) {
  const float* codes = static_cast<const float*>(panel.codes);
  constexpr int kPerBlock = kBlockCols / kSubBlock;
  for (int s = 0; s < panel.num_blocks * kPerBlock; ++s) {
    Floats sum[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[r] = Broadcast(0.0f);
    for (int k = 0; k < kSubBlock; ++k, codes += kTileRows) {
      const Floats w = Load(codes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        sum[r] = MulAdd(w, Broadcast(x[r * stride + s * kSubBlock + k]), sum[r]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      float* a = acc + r * kTileRows;
      Floats total = Load(a);
      if (panel.scale == nullptr) {
        total = Add(total, sum[r]);
      } else {
        total = MulAdd(Load(panel.scale + s * kTileRows), sum[r], total);
      }
      if (panel.min != nullptr && kPerBlock == 1) {
        total =
            MulAdd(Load(panel.min + s * kTileRows), Broadcast(sums[r * sums_stride + s]), total);
      }
      Store(a, total);
    }
  }
}

template <int kRows>
void MultiplyFloatGroup(const WeightPanel& panel, const float* x, int64_t stride, const float* sums,
                        int64_t sums_stride, float* acc) {
  if (panel.sub_block == 16) {
    MultiplyFloatRows<kRows, 16>(panel, x, stride, sums, sums_stride, acc);
  } else {
    MultiplyFloatRows<kRows, 32>(panel, x, stride, sums, sums_stride, acc);
  }
}

template <int kRows>
void MultiplyFloatTail(int num_rows, const WeightPanel& panel, const float* x, int64_t stride,
                       const float* sums, int64_t sums_stride, float* acc) {
  if constexpr (kRows > 0) {
    if (num_rows == kRows) {
      MultiplyFloatGroup<kRows>(panel, x, stride, sums, sums_stride, acc);
    } else {
      MultiplyFloatTail<kRows - 1>(num_rows, panel, x, stride, sums, sums_stride, acc);
    }
  }
}

void MultiplyFloat(const WeightPanel& panel, const ActivationRows& rows, int num_rows, float* acc) {
  const float* x = static_cast<const float*>(rows.data);
  const float* sums = rows.sums;
  while (num_rows > 0) {
    const int group = num_rows < kFloatRows ? num_rows : kFloatRows;
    MultiplyFloatTail<kFloatRows>(group, panel, x, rows.stride, sums, rows.sums_stride, acc);
    x += group * rows.stride;
    sums += group * rows.sums_stride;
    acc += group * kTileRows;
    num_rows -= group;
  }
}

// ---- Activations ----

// 1 / sqrt(mean of squares + eps); squares summed in float per lane over the row, lanes halved.
inline float InverseRms(const float* x, int64_t cols, float eps) {
  Floats squares = Broadcast(0.0f);
  int64_t c = 0;
  for (; c + 16 <= cols; c += 16) {
    const Floats v = Load(x + c);
    squares = MulAdd(v, v, squares);
  }
  float total = SumLanes(squares);
  for (; c < cols; ++c) total += x[c] * x[c];
  return 1.0f / __builtin_sqrtf(total / static_cast<float>(cols) + eps);
}

// Normalises and rounds one block of 32 (zero-padded past cols) and sums it.
// store(half, floats) receives columns [16 half, 16 half + 16) of the block.
template <typename StoreHalf>
LONGSPAN_LANES float ConvertBlock(const ConvertRowParams& p, int64_t first, float inverse_rms,
                                  bool round, StoreHalf store) {
  alignas(64) float padded[2][kBlockCols];
  const float* x = p.x + first;
  const float* weight = p.norm_weight == nullptr ? nullptr : p.norm_weight + first;
  if (first + kBlockCols > p.cols) {
    for (int i = 0; i < kBlockCols; ++i) {
      const bool inside = first + i < p.cols;
      padded[0][i] = inside ? x[i] : 0.0f;
      padded[1][i] = inside && weight != nullptr ? weight[i] : 0.0f;
    }
    x = padded[0];
    if (weight != nullptr) weight = padded[1];
  }
  Floats half[2];
  for (int h = 0; h < 2; ++h) {
    half[h] = Load(x + 16 * h);
    if (weight != nullptr) {
      half[h] = Mul(Mul(half[h], Broadcast(inverse_rms)), Load(weight + 16 * h));
    }
    if (round) half[h] = RoundToBFloat16(half[h]);
    store(h, half[h]);
  }
  return SumLanes(Add(half[0], half[1]));
}

inline void ConvertRowFloat(const ConvertRowParams& p) {
  const float inverse_rms = p.norm_weight == nullptr ? 1.0f : InverseRms(p.x, p.cols, p.norm_eps);
  const bool round = p.arithmetic != MatmulArithmetic::kDequantised;
  float* out = static_cast<float*>(p.out);
  for (int64_t first = 0; first < p.cols; first += kBlockCols) {
    p.sums[first / kBlockCols] = ConvertBlock(
        p, first, inverse_rms, round, [&](int h, const Floats& v) __attribute__((always_inline)) {
          Store(out + first + 16 * h, v);
        });
  }
}

// ---- Epilogue ----

LONGSPAN_LANES Floats Silu(const Floats& g) {
  const Floats e = Exp(Mul(g, Broadcast(-1.0f)));
  return Div(g, Add(e, Broadcast(1.0f)));
}

void FinishRow(const FinishRowParams& p) {
  const bool full = p.num_lanes == kTileRows;
  alignas(64) float part[kTileRows] = {};
  Floats value = Load(p.acc);
  if (p.bias != nullptr) {
    const float* bias = p.bias;
    if (!full) {
      for (int i = 0; i < p.num_lanes; ++i) part[i] = bias[i];
      bias = part;
    }
    value = Add(value, Load(bias));
  }
  if (p.epilogue == MatmulEpilogue::kSiluMul) value = Mul(Silu(value), Load(p.acc_up));
  if (full) {
    if (p.epilogue == MatmulEpilogue::kAdd) value = Add(Load(p.y), value);
    Store(p.y, value);
    return;
  }
  Store(part, value);
  for (int i = 0; i < p.num_lanes; ++i) {
    p.y[i] = p.epilogue == MatmulEpilogue::kAdd ? p.y[i] + part[i] : part[i];
  }
}

}  // namespace
}  // namespace longspan
