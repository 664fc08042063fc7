// The one implementation of PackedMatrix: a matrix in the tile layout of weight_tiles.h, together
// with the instruction set and arithmetic it was packed for. Seen by the matrix product only.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/weight_blocks.h"
#include "kernels/cpu/weight_tiles.h"
#include "kernels/matmul.h"

namespace longspan {

// Immutable after Pack; owns its memory.
class PackedTiles final : public PackedMatrix {
 public:
  PackedTiles(const MatmulKernels& kernels, WeightFormat format, int64_t rows, int64_t cols,
              MatmulPrecision precision, int64_t tile_bytes);

  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  int64_t size_bytes() const override { return num_tiles() * tile_bytes_; }
  void ReadRow(int64_t row, float* out) const override;

  const MatmulKernels& kernels() const { return kernels_; }
  WeightFormat format() const { return format_; }
  MatmulArithmetic arithmetic() const { return arithmetic_; }
  int64_t num_tiles() const { return (rows_ + kTileRows - 1) / kTileRows; }
  int64_t num_blocks() const { return (cols_ + kBlockCols - 1) / kBlockCols; }  // of 32 columns
  int64_t tile_bytes() const { return tile_bytes_; }
  int sub_block() const {
    return ShapeOf(format_).quantised ? ShapeOf(format_).sub_block : kBlockCols;
  }

  // Null when the format keeps GGUF's rows.
  const uint8_t* Units(int64_t tile, int64_t block) const;

  // Decodes panel.num_blocks blocks from `block` on into the panel's memory. The arithmetic decides
  // what the numbers are: with kDequantised values, scales folded in, else codes beside scales. For
  // formats of 256-element blocks `block` is a multiple of 8.
  void DecodePanel(int64_t tile, int64_t block, const WeightPanel& panel) const;

  void CopyRows(const uint8_t* data);  // part of Pack: fills the memory from GGUF's layout

 private:
  struct FreeAligned {
    void operator()(uint8_t* p) const { ::operator delete[](p, kAlignment); }
  };
  static constexpr std::align_val_t kAlignment{64};

  void CopyTile(const uint8_t* data, int64_t tile);
  void DecodeGgufRows(int64_t tile, int64_t block, const WeightPanel& panel) const;

  const MatmulKernels& kernels_;
  const WeightFormat format_;
  const MatmulArithmetic arithmetic_;
  const int64_t rows_;
  const int64_t cols_;
  const int64_t row_bytes_;  // of GGUF's layout
  const int64_t tile_bytes_;
  std::unique_ptr<uint8_t[], FreeAligned> data_;
};

}  // namespace longspan
