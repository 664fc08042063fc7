// Packing into tiles, decoding of tiles that keep GGUF's rows, and reading single rows back.
#include "kernels/cpu/packed_tiles.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/dtype.h"

namespace longspan {
namespace {

MatmulArithmetic ArithmeticFor(const MatmulKernels& kernels, WeightFormat format,
                               MatmulPrecision precision) {
  if (precision == MatmulPrecision::kFloat32 || format == WeightFormat::kF32 ||
      format == WeightFormat::kF16) {
    return MatmulArithmetic::kDequantised;
  }
  return kernels.native_bfloat16 ? MatmulArithmetic::kCodesBFloat16 : MatmulArithmetic::kCodesFloat;
}

// Offset of column k of a lane inside its unit, for formats of at least a byte per element.
int64_t OffsetInUnit(WeightFormat format, int lane, int k) {
  switch (format) {
    case WeightFormat::kQ8_0:
      return 64 * (k / 4) + 4 * lane + k % 4;
    case WeightFormat::kBF16:
      return 64 * (k / 2) + 4 * lane + 2 * (k % 2);
    case WeightFormat::kF16:
      return 2 * (k * kTileRows + lane);
    default:
      return 4 * (k * kTileRows + lane);
  }
}

// Byte of a lane's nibble for column k (its upper half when the result's second is 4).
std::pair<int64_t, int> NibbleInUnit(int lane, int k) {
  const int word = 2 * lane + (k & 1);
  const int nibble = (k % 8) / 2;
  return {64 * (k / 8) + 2 * word + nibble / 2, 4 * (nibble % 2)};
}

// One GGUF block of 32 into the unit of its tile.
void CopyBlock(WeightFormat format, const uint8_t* block, int lane, uint8_t* unit) {
  uint8_t* scales = unit + TileScaleOffset(format) + 2 * lane;
  std::memcpy(scales, block, 2);
  if (format == WeightFormat::kQ8_0) {
    for (int k = 0; k < 32; ++k) unit[OffsetInUnit(format, lane, k)] = block[2 + k];
    return;
  }
  const bool has_min = format == WeightFormat::kQ4_1;
  if (has_min) std::memcpy(scales + 32, block + 2, 2);
  const uint8_t* q = block + (has_min ? 4 : 2);
  for (int k = 0; k < 32; ++k) {
    const int code = (q[k % 16] >> (4 * (k / 16))) & 15;
    const auto [offset, shift] = NibbleInUnit(lane, k);
    unit[offset] = static_cast<uint8_t>(unit[offset] | (code << shift));
  }
}

}  // namespace

PackedTiles::PackedTiles(const MatmulKernels& kernels, WeightFormat format, int64_t rows,
                         int64_t cols, MatmulPrecision precision, int64_t tile_bytes)
    : kernels_(kernels),
      format_(format),
      arithmetic_(ArithmeticFor(kernels, format, precision)),
      rows_(rows),
      cols_(cols),
      row_bytes_(cols / ShapeOf(format).elements * ShapeOf(format).bytes),
      tile_bytes_(tile_bytes),
      data_(new (kAlignment) uint8_t[static_cast<size_t>(num_tiles() * tile_bytes)]()) {}

const uint8_t* PackedTiles::Units(int64_t tile, int64_t block) const {
  const int unit_bytes = TileUnitBytes(format_);
  if (unit_bytes == 0) return nullptr;
  return data_.get() + tile * tile_bytes_ + block * unit_bytes;
}

void PackedTiles::CopyRows(const uint8_t* data) {
  for (int64_t tile = 0; tile < num_tiles(); ++tile) CopyTile(data, tile);
}

void PackedTiles::CopyTile(const uint8_t* data, int64_t tile) {
  uint8_t* out = data_.get() + tile * tile_bytes_;
  const int64_t unit_bytes = TileUnitBytes(format_);
  const BlockShape shape = ShapeOf(format_);
  const int lanes = static_cast<int>(std::min<int64_t>(kTileRows, rows_ - tile * kTileRows));
  for (int lane = 0; lane < lanes; ++lane) {
    const uint8_t* row = data + (tile * kTileRows + lane) * row_bytes_;
    if (unit_bytes == 0) {
      std::memcpy(out + lane * row_bytes_, row, static_cast<size_t>(row_bytes_));
    } else if (shape.quantised) {
      for (int64_t b = 0; b < num_blocks(); ++b) {
        CopyBlock(format_, row + b * shape.bytes, lane, out + b * unit_bytes);
      }
    } else {
      for (int64_t c = 0; c < cols_; ++c) {
        const int k = static_cast<int>(c % kBlockCols);
        std::memcpy(out + c / kBlockCols * unit_bytes + OffsetInUnit(format_, lane, k),
                    row + c * shape.bytes, static_cast<size_t>(shape.bytes));
      }
    }
  }
}

void PackedTiles::DecodePanel(int64_t tile, int64_t block, const WeightPanel& panel) const {
  if (TileUnitBytes(format_) != 0) {
    kernels_.decode_tile(format_, arithmetic_, Units(tile, block), panel);
    return;
  }
  DecodeGgufRows(tile, block, panel);
  if (arithmetic_ == MatmulArithmetic::kDequantised) kernels_.fold_scales(panel);
}

void PackedTiles::DecodeGgufRows(int64_t tile, int64_t block, const WeightPanel& panel) const {
  const BlockShape shape = ShapeOf(format_);
  const int64_t first_col = block * kBlockCols;
  const int64_t end_col = first_col + static_cast<int64_t>(panel.num_blocks) * kBlockCols;
  const bool bfloat16 = arithmetic_ == MatmulArithmetic::kCodesBFloat16;
  BlockCodes codes;
  for (int lane = 0; lane < kTileRows; ++lane) {
    const uint8_t* row = data_.get() + tile * tile_bytes_ + lane * row_bytes_;
    for (int64_t col = first_col; col < end_col; col += shape.elements) {
      DecodeBlock(format_, row + col / shape.elements * shape.bytes, codes);
      const int64_t k0 = col - first_col;
      for (int i = 0; i < shape.elements; ++i) {
        const float code = static_cast<float>(codes.code[i]);
        const int64_t k = k0 + i;
        if (bfloat16) {
          static_cast<uint16_t*>(panel.codes)[k / 2 * 2 * kTileRows + 2 * lane + k % 2] =
              static_cast<uint16_t>(std::bit_cast<uint32_t>(code) >> 16);
        } else {
          static_cast<float*>(panel.codes)[k * kTileRows + lane] = code;
        }
      }
      for (int s = 0; s < shape.elements / shape.sub_block; ++s) {
        const int64_t at = (k0 / shape.sub_block + s) * kTileRows + lane;
        panel.scale[at] = codes.scale[s];
        if (panel.min != nullptr) panel.min[at] = codes.min[s];
      }
    }
  }
}

void PackedTiles::ReadRow(int64_t row, float* out) const {
  const uint8_t* tile = data_.get() + row / kTileRows * tile_bytes_;
  const int lane = static_cast<int>(row % kTileRows);
  const BlockShape shape = ShapeOf(format_);
  const int64_t unit_bytes = TileUnitBytes(format_);
  if (unit_bytes == 0) return DequantizeRow(format_, tile + lane * row_bytes_, cols_, out);
  // Rebuilds GGUF's block of 32 columns, or the plain values, and lets the definition decode it.
  for (int64_t first = 0; first < cols_; first += kBlockCols) {
    const uint8_t* unit = tile + first / kBlockCols * unit_bytes;
    const int num_cols = static_cast<int>(std::min<int64_t>(kBlockCols, cols_ - first));
    uint8_t block[4 * kBlockCols] = {};
    uint8_t* codes = block;
    if (shape.quantised) {
      std::memcpy(block, unit + TileScaleOffset(format_) + 2 * lane, 2);
      if (shape.has_min) std::memcpy(block + 2, unit + TileScaleOffset(format_) + 32 + 2 * lane, 2);
      codes += shape.has_min ? 4 : 2;
    }
    for (int k = 0; k < num_cols; ++k) {
      if (format_ == WeightFormat::kQ4_0 || format_ == WeightFormat::kQ4_1) {
        const auto [offset, shift] = NibbleInUnit(lane, k);
        codes[k % 16] = static_cast<uint8_t>(codes[k % 16] |
                                             (((unit[offset] >> shift) & 15) << (4 * (k / 16))));
      } else {
        const int bytes = format_ == WeightFormat::kQ8_0 ? 1 : shape.bytes;
        std::memcpy(codes + k * bytes, unit + OffsetInUnit(format_, lane, k),
                    static_cast<size_t>(bytes));
      }
    }
    DequantizeRow(format_, block, num_cols, out + first);
  }
}

KernelStatus PackFor(const MatmulKernels& kernels, WeightFormat format, int64_t rows, int64_t cols,
                     const void* data, MatmulPrecision precision,
                     std::unique_ptr<PackedMatrix>& out) {
  const BlockShape shape = ShapeOf(format);
  if (rows <= 0 || cols <= 0 || cols % shape.elements != 0) return KernelStatus::kBadShape;
  const int64_t unit_bytes = TileUnitBytes(format);
  int64_t tile_bytes = 0;
  int64_t total = 0;
  const bool overflow =
      unit_bytes == 0
          ? __builtin_mul_overflow(cols / shape.elements, int64_t{shape.bytes} * kTileRows,
                                   &tile_bytes)
          : __builtin_mul_overflow((cols - 1) / kBlockCols + 1, unit_bytes, &tile_bytes);
  if (overflow || tile_bytes > INT64_MAX - 63) return KernelStatus::kBadShape;
  tile_bytes = (tile_bytes + 63) / 64 * 64;
  if (__builtin_mul_overflow(tile_bytes, (rows - 1) / kTileRows + 1, &total)) {
    return KernelStatus::kBadShape;
  }
  auto packed = std::make_unique<PackedTiles>(kernels, format, rows, cols, precision, tile_bytes);
  packed->CopyRows(static_cast<const uint8_t*>(data));
  out = std::move(packed);
  return KernelStatus::kOk;
}

KernelStatus PackedMatrix::Pack(WeightFormat format, int64_t rows, int64_t cols, const void* data,
                                MatmulPrecision precision, std::unique_ptr<PackedMatrix>& out) {
  return PackFor(*SupportedMatmulKernels().front(), format, rows, cols, data, precision, out);
}

}  // namespace longspan
