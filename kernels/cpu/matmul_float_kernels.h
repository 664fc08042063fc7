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
constexpr int kMaxDirectFloatRows = 4;
#elif defined(__AVX2__)
constexpr int kFloatGroupRows = 6;
constexpr int kFloatPanels = 1;
constexpr int kMaxDirectFloatRows = 4;
#else
constexpr int kFloatGroupRows = 2;
constexpr int kFloatPanels = 1;
constexpr int kMaxDirectFloatRows = 2;
#endif

// ---- Decoding of the tile layout ----

constexpr bool HasScales(WeightFormat format) {
  return format == WeightFormat::kQ4_0 || format == WeightFormat::kQ4_1 ||
         format == WeightFormat::kQ8_0;
}

// Column k of a unit, all lanes, as codes or (formats without scales) values. See weight_tiles.h; k
// is a constant after unrolling, so that the columns of one 64-byte chunk share its load.
template <WeightFormat kFormat>
LONGSPAN_LANES Floats Column(const uint8_t* unit, int k) {
  if constexpr (kFormat == WeightFormat::kQ4_0 || kFormat == WeightFormat::kQ4_1) {
    const Uints words = LoadUints(unit + 64 * (k / 8));
    const int shift = 4 * (k % 8 / 2) + 16 * (k % 2);
    const Floats code = SignedToFloat(And(ShiftRight(words, shift), 15), 0);
    return kFormat == WeightFormat::kQ4_1 ? code : Add(code, Broadcast(-8.0f));
  } else if constexpr (kFormat == WeightFormat::kQ8_0) {
    return SignedToFloat(ShiftLeft(LoadUints(unit + 64 * (k / 4)), 24 - 8 * (k % 4)), 24);
  } else if constexpr (kFormat == WeightFormat::kBF16) {
    const Uints words = LoadUints(unit + 64 * (k / 2));
    return AsFloats(k % 2 == 0 ? ShiftLeft(words, 16) : And(words, 0xffff0000u));
  } else if constexpr (kFormat == WeightFormat::kF16) {
    return LoadHalves(unit + 2 * k * kTileRows);
  } else {
    return Load(reinterpret_cast<const float*>(unit) + k * kTileRows);
  }
}

struct UnitScales {
  Floats scale;
  Floats min;
};

template <WeightFormat kFormat>
LONGSPAN_LANES UnitScales LoadScales(const uint8_t* unit) {
  const uint8_t* scales = unit + TileScaleOffset(kFormat);
  UnitScales s = {Broadcast(1.0f), Broadcast(0.0f)};
  if constexpr (HasScales(kFormat)) s.scale = LoadHalves(scales);
  if constexpr (kFormat == WeightFormat::kQ4_1) s.min = LoadHalves(scales + 32);
  return s;
}

// The weights' values, rounded after the product and after the sum as DequantizeRow rounds.
template <WeightFormat kFormat>
LONGSPAN_LANES Floats Dequantised(const Floats& code, const UnitScales& s) {
  if constexpr (!HasScales(kFormat)) return code;
  const Floats product = Mul(code, s.scale);
  if constexpr (kFormat == WeightFormat::kQ4_1) return Add(product, s.min);
  return product;
}

template <WeightFormat kFormat, bool kDequantise>
void DecodeFloatPanel(const uint8_t* unit, const WeightPanel& panel) {
  auto* codes = static_cast<float*>(panel.codes);
  for (int b = 0; b < panel.num_blocks; ++b, unit += TileUnitBytes(kFormat)) {
    const UnitScales s = LoadScales<kFormat>(unit);
#pragma GCC unroll 32
    for (int k = 0; k < kBlockCols; ++k, codes += kTileRows) {
      const Floats code = Column<kFormat>(unit, k);
      Store(codes, kDequantise ? Dequantised<kFormat>(code, s) : code);
    }
    if constexpr (!kDequantise && HasScales(kFormat)) {
      Store(panel.scale + b * kTileRows, s.scale);
      if (panel.min != nullptr) Store(panel.min + b * kTileRows, s.min);
    }
  }
}

// Calls f.operator()<format>() for a format with a tile layout.
template <typename F>
LONGSPAN_LANES void WithTileFormat(WeightFormat format, F f) {
  switch (format) {
    case WeightFormat::kQ4_0:
      return f.template operator()<WeightFormat::kQ4_0>();
    case WeightFormat::kQ4_1:
      return f.template operator()<WeightFormat::kQ4_1>();
    case WeightFormat::kQ8_0:
      return f.template operator()<WeightFormat::kQ8_0>();
    case WeightFormat::kBF16:
      return f.template operator()<WeightFormat::kBF16>();
    case WeightFormat::kF16:
      return f.template operator()<WeightFormat::kF16>();
    default:
      return f.template operator()<WeightFormat::kF32>();
  }
}

inline void DecodeFloatTile(WeightFormat format, MatmulArithmetic arithmetic, const uint8_t* units,
                            const WeightPanel& panel) {
  WithTileFormat(format, [&]<WeightFormat kFormat>() {
    if (arithmetic == MatmulArithmetic::kDequantised) {
      DecodeFloatPanel<kFormat, true>(units, panel);
    } else {
      DecodeFloatPanel<kFormat, false>(units, panel);
    }
  });
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

// ---- Few rows: straight from the tile ----

template <WeightFormat kFormat, bool kDequantise, int kRows>
void DirectFloatTile(const uint8_t* unit, int num_blocks, const ActivationGroup& group,
                     float* acc) {
  const auto* x = static_cast<const float*>(group.data);
  const float* sums = group.sums;
  Floats total[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) total[r] = Broadcast(0.0f);
  for (int b = 0; b < num_blocks; ++b, unit += TileUnitBytes(kFormat)) {
    const UnitScales s = LoadScales<kFormat>(unit);
    Floats sum[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sum[r] = Broadcast(0.0f);
#pragma GCC unroll 32
    for (int k = 0; k < kBlockCols; ++k) {
      const Floats code = Column<kFormat>(unit, k);
      const Floats w = kDequantise ? Dequantised<kFormat>(code, s) : code;
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sum[r] = MulAdd(w, Broadcast(x[k * kRows + r]), sum[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kDequantise || !HasScales(kFormat)) {
        total[r] = Add(total[r], sum[r]);
      } else {
        total[r] = MulAdd(s.scale, sum[r], total[r]);
      }
      if constexpr (!kDequantise && kFormat == WeightFormat::kQ4_1) {
        total[r] = MulAdd(s.min, Broadcast(sums[r]), total[r]);
      }
    }
    x += kBlockCols * kRows;
    sums += kRows;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) Store(acc + r * kTileRows, total[r]);
}

template <WeightFormat kFormat, bool kDequantise, int kRows = kMaxDirectFloatRows>
void DirectFloatRows(const uint8_t* units, int num_blocks, const ActivationGroup& group,
                     float* acc) {
  if constexpr (kRows > 0) {
    if (group.num_rows == kRows) {
      DirectFloatTile<kFormat, kDequantise, kRows>(units, num_blocks, group, acc);
    } else {
      DirectFloatRows<kFormat, kDequantise, kRows - 1>(units, num_blocks, group, acc);
    }
  }
}

inline bool HasDirectFloat(WeightFormat format, MatmulArithmetic, int64_t num_rows) {
  return TileUnitBytes(format) != 0 && num_rows <= kMaxDirectFloatRows;
}

inline void MultiplyDirectFloat(WeightFormat format, MatmulArithmetic arithmetic,
                                const uint8_t* units, int num_blocks, const ActivationGroup& group,
                                float* acc) {
  WithTileFormat(format, [&]<WeightFormat kFormat>() {
    if (arithmetic == MatmulArithmetic::kDequantised) {
      DirectFloatRows<kFormat, true>(units, num_blocks, group, acc);
    } else {
      DirectFloatRows<kFormat, false>(units, num_blocks, group, acc);
    }
  });
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
