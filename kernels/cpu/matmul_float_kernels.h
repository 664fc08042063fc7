// The float part of every MatmulKernels table, written once on float_lanes.h and compiled once per
// instruction set. Internal linkage throughout; include it only in a file that defines a table.
#pragma once

#include "kernels/cpu/float_lanes.h"
#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/weight_tiles.h"

namespace longspan {
namespace {

// Rows of a group and panels multiplied together: their sums must stay in registers, and the more
// of both, the fewer loads a multiply-add costs.
#if defined(__AVX512F__)
constexpr int kFloatGroupRows = 8;
constexpr int kFloatPanels = 2;
#elif defined(__AVX2__)
constexpr int kFloatGroupRows = 6;
constexpr int kFloatPanels = 1;
#else
constexpr int kFloatGroupRows = 2;
constexpr int kFloatPanels = 1;
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

// acc[kPanels][kRows][16] += panels * group, in the order that matmul_kernels.h fixes.
template <int kRows, int kPanels, int kSubBlock>
LONGSPAN_LANES void MultiplyFloatRows(const WeightPanel* panels, const ActivationGroup& group,
                                      float* acc, int64_t acc_stride) {
  const auto* x = static_cast<const float*>(group.data);
  const float* sums = group.sums;
  const float* codes[kPanels];
  for (int t = 0; t < kPanels; ++t) codes[t] = static_cast<const float*>(panels[t].codes);
  constexpr int kPerBlock = kBlockCols / kSubBlock;
  for (int s = 0; s < panels[0].num_blocks * kPerBlock; ++s) {
    Floats sum[kPanels][kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int t = 0; t < kPanels; ++t) sum[t][r] = Broadcast(0.0f);
    }
#pragma GCC unroll 4
    for (int k = 0; k < kSubBlock; ++k) {
      Floats w[kPanels];
#pragma GCC unroll 2
      for (int t = 0; t < kPanels; ++t) w[t] = Load(codes[t] + k * kTileRows);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Floats a = Broadcast(x[k * kRows + r]);
#pragma GCC unroll 2
        for (int t = 0; t < kPanels; ++t) sum[t][r] = MulAdd(w[t], a, sum[t][r]);
      }
    }
    x += kSubBlock * kRows;
#pragma GCC unroll 2
    for (int t = 0; t < kPanels; ++t) {
      codes[t] += kSubBlock * kTileRows;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        float* a = acc + t * acc_stride + r * kTileRows;
        Floats total = Load(a);
        if (panels[t].scale == nullptr) {
          total = Add(total, sum[t][r]);
        } else {
          total = MulAdd(Load(panels[t].scale + s * kTileRows), sum[t][r], total);
        }
        if (kPerBlock == 1 && panels[t].min != nullptr) {
          total =
              MulAdd(Load(panels[t].min + s * kTileRows), Broadcast(sums[s * kRows + r]), total);
        }
        Store(a, total);
      }
    }
  }
}

template <int kRows, int kPanels>
void MultiplyFloatPanels(const WeightPanel* panels, const ActivationGroup& group, float* acc,
                         int64_t acc_stride) {
  if (panels[0].sub_block == 16) {
    MultiplyFloatRows<kRows, kPanels, 16>(panels, group, acc, acc_stride);
  } else {
    MultiplyFloatRows<kRows, kPanels, 32>(panels, group, acc, acc_stride);
  }
}

template <int kRows = kFloatGroupRows>
void MultiplyFloat(const WeightPanel* panels, int num_panels, const ActivationGroup& group,
                   float* acc, int64_t acc_stride) {
  if constexpr (kRows > 0) {
    if (group.num_rows != kRows) {
      return MultiplyFloat<kRows - 1>(panels, num_panels, group, acc, acc_stride);
    }
    if (num_panels == kFloatPanels) {
      return MultiplyFloatPanels<kRows, kFloatPanels>(panels, group, acc, acc_stride);
    }
    for (int t = 0; t < num_panels; ++t) {
      MultiplyFloatPanels<kRows, 1>(panels + t, group, acc + t * acc_stride, acc_stride);
    }
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

// A row on its way into a group.
struct RowToConvert {
  const float* x;
  const float* norm_weight;
  float inverse_rms;
};

LONGSPAN_LANES RowToConvert StartRow(const ConvertGroupParams& p, int row) {
  const float* x = p.x + row * p.x_stride;
  return {x, p.norm_weight, p.norm_weight == nullptr ? 1.0f : InverseRms(x, p.cols, p.norm_eps)};
}

// Columns [first, first + 32) of a row, normalised; zeros past cols.
LONGSPAN_LANES void LoadBlock(const RowToConvert& row, int64_t first, int64_t cols,
                              Floats (&half)[2]) {
  const float* x = row.x + first;
  const float* weight = row.norm_weight + (row.norm_weight == nullptr ? 0 : first);
  alignas(64) float padded[2][kBlockCols];
  if (first + kBlockCols > cols) {
    for (int i = 0; i < kBlockCols; ++i) {
      const bool inside = first + i < cols;
      padded[0][i] = inside ? x[i] : 0.0f;
      padded[1][i] = inside && row.norm_weight != nullptr ? weight[i] : 0.0f;
    }
    x = padded[0];
    if (row.norm_weight != nullptr) weight = padded[1];
  }
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    half[h] = Load(x + 16 * h);
    if (row.norm_weight != nullptr) {
      half[h] = Mul(Mul(half[h], Broadcast(row.inverse_rms)), Load(weight + 16 * h));
    }
  }
}

inline void ConvertGroupFloat(const ConvertGroupParams& p) {
  const bool round = p.arithmetic != MatmulArithmetic::kDequantised;
  for (int r = 0; r < p.num_rows; ++r) {
    const RowToConvert row = StartRow(p, r);
    float* out = static_cast<float*>(p.data) + r;
    float* sums = p.sums + r;
    for (int64_t first = 0; first < p.cols; first += kBlockCols) {
      Floats half[2];
      LoadBlock(row, first, p.cols, half);
      if (round) half[0] = RoundToBFloat16(half[0]);
      if (round) half[1] = RoundToBFloat16(half[1]);
      *sums = SumLanes(Add(half[0], half[1]));
      sums += p.num_rows;
      alignas(64) float block[kBlockCols];
      Store(block, half[0]);
      Store(block + 16, half[1]);
      for (int i = 0; i < kBlockCols; ++i, out += p.num_rows) *out = block[i];
    }
  }
}

// ---- Epilogue ----

LONGSPAN_LANES Floats Silu(const Floats& g) {
  const Floats e = Exp(Mul(g, Broadcast(-1.0f)));
  return Div(g, Add(e, Broadcast(1.0f)));
}

template <MatmulEpilogue kEpilogue>
LONGSPAN_LANES Floats FinishLanes(const Floats& value, const float* up, const Floats& y) {
  if constexpr (kEpilogue == MatmulEpilogue::kSiluMul) return Mul(Silu(value), Load(up));
  if constexpr (kEpilogue == MatmulEpilogue::kAdd) return Add(y, value);
  return value;
}

template <MatmulEpilogue kEpilogue>
void FinishRows(const FinishParams& p) {
  const bool full = p.num_lanes == kTileRows;
  alignas(64) float part[kTileRows] = {};  // stands for what lies past a narrow tile
  Floats bias = Broadcast(0.0f);
  if (p.bias != nullptr) {
    for (int i = 0; i < p.num_lanes; ++i) part[i] = p.bias[i];
    bias = Load(part);
  }
  float* y = p.y;
  for (int r = 0; r < p.num_rows; ++r, y += p.y_stride) {
    Floats value = Load(p.acc + r * kTileRows);
    if (p.bias != nullptr) value = Add(value, bias);
    if (full) {
      const Floats old = kEpilogue == MatmulEpilogue::kAdd ? Load(y) : value;
      Store(y, FinishLanes<kEpilogue>(value, p.acc_up + r * kTileRows, old));
      continue;
    }
    if (kEpilogue == MatmulEpilogue::kAdd) {
      for (int i = 0; i < p.num_lanes; ++i) part[i] = y[i];
    }
    Store(part, FinishLanes<kEpilogue>(value, p.acc_up + r * kTileRows, Load(part)));
    for (int i = 0; i < p.num_lanes; ++i) y[i] = part[i];
  }
}

void Finish(const FinishParams& p) {
  switch (p.epilogue) {
    case MatmulEpilogue::kStore:
      return FinishRows<MatmulEpilogue::kStore>(p);
    case MatmulEpilogue::kAdd:
      return FinishRows<MatmulEpilogue::kAdd>(p);
    case MatmulEpilogue::kSiluMul:
      return FinishRows<MatmulEpilogue::kSiluMul>(p);
  }
}

}  // namespace
}  // namespace longspan
