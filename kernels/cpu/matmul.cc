// Driver of the matrix product: conversion of activations, blocking, and the split over threads by
// output columns. No arithmetic here: an element's value is fixed in matmul_kernels.h whatever the
// blocking.
#include "kernels/matmul.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/packed_tiles.h"
#include "kernels/cpu/thread_pool.h"

namespace longspan {
namespace {

constexpr int kChunkBlocks = 24;         // of 32 columns: a decoded bfloat16 panel of 24 KiB
constexpr int64_t kMaxTaskRows = 256;    // converted rows of a task stay in the second-level cache
constexpr int64_t kMaxUnsharedRows = 4;  // up to here every thread converts for itself: no barrier
constexpr int64_t kTasksPerThread = 8;   // enough to even out a disturbed core
constexpr int64_t kLine = 64;

const PackedTiles& Tiles(const PackedMatrix* w) { return *static_cast<const PackedTiles*>(w); }

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Sizes of one product's converted activations.
struct OperandShape {
  int64_t
      row_bytes;  // an odd number of lines, so that the rows of a micro-kernel differ in cache set
  int64_t element_bytes;
  int64_t sums_bytes;
  int64_t bytes_per_row() const { return row_bytes + sums_bytes; }
};

OperandShape OperandShapeOf(const PackedTiles& w) {
  OperandShape shape;
  shape.element_bytes = w.arithmetic() == MatmulArithmetic::kCodesBFloat16 ? 2 : 4;
  const int64_t lines = (w.num_blocks() * kBlockCols * shape.element_bytes + kLine - 1) / kLine;
  shape.row_bytes = (lines | 1) * kLine;
  shape.sums_bytes = RoundUp(w.num_blocks() * 4, kLine);
  return shape;
}

bool SharesOperand(const MatmulParams& a, const MatmulParams& b) {
  return a.x == b.x && a.x_stride == b.x_stride && a.norm_weight == b.norm_weight &&
         a.norm_eps == b.norm_eps && a.w->cols() == b.w->cols() &&
         Tiles(a.w).arithmetic() == Tiles(b.w).arithmetic() &&
         &Tiles(a.w).kernels() == &Tiles(b.w).kernels();
}

// Rows of converted activations that a call lays out.
int64_t OperandRows(int64_t num_rows, int num_threads) {
  return num_rows <= kMaxUnsharedRows ? num_rows * num_threads : num_rows;
}

// Per thread: a panel, and sums of up to kMaxTaskRows rows for w and w_up.
constexpr int64_t kPanelCodesBytes = int64_t{kChunkBlocks} * kBlockCols * kTileRows * 4;
constexpr int64_t kPanelScaleBytes = int64_t{kChunkBlocks} * 2 * kTileRows * 4;
constexpr int64_t kPanelMinBytes = int64_t{kChunkBlocks} * kTileRows * 4;
constexpr int64_t kSumsBytesPerRow = int64_t{kTileRows} * 4;

int64_t ScratchBytes(int64_t max_rows) {
  return kPanelCodesBytes + kPanelScaleBytes + kPanelMinBytes +
         2 * std::min(max_rows, kMaxTaskRows) * kSumsBytesPerRow;
}

struct Scratch {
  std::byte* codes;
  float* scale;
  float* min;
  float* acc;
  float* acc_up;
};

Scratch ScratchAt(std::byte* base, int64_t max_rows) {
  Scratch s;
  s.codes = base;
  s.scale = reinterpret_cast<float*>(base + kPanelCodesBytes);
  s.min = reinterpret_cast<float*>(base + kPanelCodesBytes + kPanelScaleBytes);
  s.acc = reinterpret_cast<float*>(base + kPanelCodesBytes + kPanelScaleBytes + kPanelMinBytes);
  s.acc_up = s.acc + std::min(max_rows, kMaxTaskRows) * kTileRows;
  return s;
}

ActivationRows RowsAt(const std::byte* operand, int64_t operand_rows, const OperandShape& shape,
                      int64_t row) {
  const std::byte* sums = operand + operand_rows * shape.row_bytes;
  return {.data = operand + row * shape.row_bytes,
          .stride = shape.row_bytes / shape.element_bytes,
          .sums = reinterpret_cast<const float*>(sums + row * shape.sums_bytes),
          .sums_stride = shape.sums_bytes / 4};
}

void ConvertRows(const MatmulParams& p, std::byte* operand, int64_t operand_rows, int64_t first_out,
                 int64_t begin, int64_t end) {
  const PackedTiles& w = Tiles(p.w);
  const OperandShape shape = OperandShapeOf(w);
  std::byte* sums = operand + operand_rows * shape.row_bytes;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t out = first_out + r;
    w.kernels().convert_row({.x = p.x + r * p.x_stride,
                             .norm_weight = p.norm_weight,
                             .norm_eps = p.norm_eps,
                             .cols = w.cols(),
                             .arithmetic = w.arithmetic(),
                             .out = operand + out * shape.row_bytes,
                             .sums = reinterpret_cast<float*>(sums + out * shape.sums_bytes)});
  }
}

// acc[num_rows][16] = rows * tile.
void MultiplyTile(const PackedTiles& w, int64_t tile, const ActivationRows& rows, int num_rows,
                  const Scratch& scratch, float* acc) {
  std::memset(acc, 0, static_cast<size_t>(num_rows * kSumsBytesPerRow));
  const MatmulKernels& kernels = w.kernels();
  if (num_rows <= kernels.max_direct_rows &&
      kernels.multiply_direct(w.format(), w.arithmetic(), w.Units(tile, 0),
                              static_cast<int>(w.num_blocks()), rows, num_rows, acc)) {
    return;
  }
  const BlockShape shape = ShapeOf(w.format());
  const int64_t element_bytes = w.arithmetic() == MatmulArithmetic::kCodesBFloat16 ? 2 : 4;
  for (int64_t block = 0; block < w.num_blocks(); block += kChunkBlocks) {
    WeightPanel panel{
        .codes = scratch.codes,
        .scale = shape.quantised ? scratch.scale : nullptr,
        .min = shape.has_min ? scratch.min : nullptr,
        .num_blocks = static_cast<int>(std::min<int64_t>(kChunkBlocks, w.num_blocks() - block)),
        .sub_block = w.sub_block()};
    w.DecodePanel(tile, block, panel);
    if (w.arithmetic() == MatmulArithmetic::kDequantised) {
      panel.scale = nullptr;
      panel.min = nullptr;
      panel.sub_block = kBlockCols;
    }
    ActivationRows part = rows;
    part.data = static_cast<const std::byte*>(rows.data) + block * kBlockCols * element_bytes;
    part.sums += block;
    kernels.multiply(panel, w.arithmetic(), part, num_rows, acc);
  }
}

// One tile of outputs for rows [first_row, first_row + num_rows).
void RunTile(const MatmulParams& p, int64_t tile, const ActivationRows& rows, int64_t first_row,
             int num_rows, const Scratch& scratch) {
  const PackedTiles& w = Tiles(p.w);
  MultiplyTile(w, tile, rows, num_rows, scratch, scratch.acc);
  if (p.w_up != nullptr) {
    MultiplyTile(Tiles(p.w_up), tile, rows, num_rows, scratch, scratch.acc_up);
  }
  const int64_t n0 = tile * kTileRows;
  for (int r = 0; r < num_rows; ++r) {
    w.kernels().finish_row(
        {.acc = scratch.acc + r * kTileRows,
         .acc_up = scratch.acc_up + r * kTileRows,
         .bias = p.bias == nullptr ? nullptr : p.bias + n0,
         .y = p.y + (first_row + r) * p.y_stride + n0,
         .num_lanes = static_cast<int>(std::min<int64_t>(kTileRows, w.rows() - n0)),
         .epilogue = p.epilogue});
  }
}

int64_t TileCost(const MatmulParams& p) {
  return Tiles(p.w).num_blocks() * (p.w_up != nullptr ? 2 : 1);
}

// How one product is cut into tasks: groups of tiles x ranges of rows.
struct TaskGrid {
  int64_t tiles_per_task;
  int64_t num_groups;
  int64_t rows_per_task;
  int64_t num_row_ranges;
  int64_t num_tasks() const { return num_groups * num_row_ranges; }
};

TaskGrid GridOf(const MatmulParams& p, int64_t num_rows, int64_t cost_per_task) {
  TaskGrid grid;
  grid.num_row_ranges = (num_rows + kMaxTaskRows - 1) / kMaxTaskRows;
  grid.rows_per_task = (num_rows + grid.num_row_ranges - 1) / grid.num_row_ranges;
  const int64_t tile_cost = TileCost(p) * grid.rows_per_task;
  const int64_t num_tiles = Tiles(p.w).num_tiles();
  grid.tiles_per_task = std::clamp<int64_t>(cost_per_task / tile_cost, 1, num_tiles);
  grid.num_groups = (num_tiles + grid.tiles_per_task - 1) / grid.tiles_per_task;
  return grid;
}

void RunTask(const MatmulParams& p, const TaskGrid& grid, int64_t task, int64_t num_rows,
             const std::byte* operand, int64_t operand_rows, int64_t first_operand_row,
             const Scratch& scratch) {
  const int64_t first_row = task / grid.num_groups * grid.rows_per_task;
  const int rows_here = static_cast<int>(std::min(grid.rows_per_task, num_rows - first_row));
  const int64_t begin = task % grid.num_groups * grid.tiles_per_task;
  const int64_t end = std::min(begin + grid.tiles_per_task, Tiles(p.w).num_tiles());
  const ActivationRows rows =
      RowsAt(operand, operand_rows, OperandShapeOf(Tiles(p.w)), first_operand_row + first_row);
  for (int64_t tile = begin; tile < end; ++tile) {
    RunTile(p, tile, rows, first_row, rows_here, scratch);
  }
}

// Calls visit(product, its operand's memory, whether it is the first with that operand).
template <typename Visit>
void ForProducts(std::span<const MatmulParams> products, int64_t operand_rows, std::byte* memory,
                 Visit visit) {
  std::byte* operand = memory;
  std::byte* next = memory;
  for (size_t i = 0; i < products.size(); ++i) {
    const bool is_first = i == 0 || !SharesOperand(products[i - 1], products[i]);
    if (is_first) {
      operand = next;
      next += operand_rows * OperandShapeOf(Tiles(products[i].w)).bytes_per_row();
    }
    visit(products[i], operand, is_first);
  }
}

KernelStatus CheckProduct(const MatmulParams& p, int64_t num_rows) {
  if (p.w == nullptr) return KernelStatus::kBadShape;
  if ((p.epilogue == MatmulEpilogue::kSiluMul) != (p.w_up != nullptr)) {
    return KernelStatus::kUnsupportedOption;
  }
  if (p.w_up != nullptr) {
    const PackedTiles& w = Tiles(p.w);
    const PackedTiles& up = Tiles(p.w_up);
    if (w.rows() != up.rows() || w.cols() != up.cols()) return KernelStatus::kBadShape;
    if (w.arithmetic() != up.arithmetic() || &w.kernels() != &up.kernels()) {
      return KernelStatus::kUnsupportedDType;
    }
  }
  if (num_rows > 1 && (p.x_stride < p.w->cols() || p.y_stride < p.w->rows())) {
    return KernelStatus::kBadStride;
  }
  return KernelStatus::kOk;
}

}  // namespace

int64_t MatmulWorkspaceBytes(std::span<const MatmulParams> products, int64_t max_rows,
                             int num_threads) {
  const int64_t operand_rows = std::max(max_rows, kMaxUnsharedRows * num_threads);
  int64_t bytes = num_threads * ScratchBytes(max_rows);
  ForProducts(products, 0, nullptr, [&](const MatmulParams& p, std::byte*, bool is_first) {
    if (is_first) bytes += operand_rows * OperandShapeOf(Tiles(p.w)).bytes_per_row();
  });
  return bytes;
}

KernelStatus CheckMatmul(std::span<const MatmulParams> products, int64_t num_rows,
                         std::span<const std::byte> workspace, int num_threads) {
  if (num_rows < 0) return KernelStatus::kBadShape;
  for (const MatmulParams& p : products) {
    if (const KernelStatus status = CheckProduct(p, num_rows); status != KernelStatus::kOk) {
      return status;
    }
  }
  if (reinterpret_cast<uintptr_t>(workspace.data()) % kLine != 0) return KernelStatus::kMisaligned;
  const int64_t needed = MatmulWorkspaceBytes(products, num_rows, num_threads);
  if (static_cast<int64_t>(workspace.size()) < needed) return KernelStatus::kWorkspaceTooSmall;
  return KernelStatus::kOk;
}

// Workspace: scratch of every thread, then the operands in order.
void MatmulInRegion(ThreadPool& pool, int thread, std::span<const MatmulParams> products,
                    int64_t num_rows, std::span<std::byte> workspace) {
  if (num_rows == 0 || products.empty()) return;
  const int num_threads = pool.num_threads();
  const int64_t scratch_bytes = ScratchBytes(num_rows);
  const Scratch scratch = ScratchAt(workspace.data() + thread * scratch_bytes, num_rows);
  std::byte* operands = workspace.data() + num_threads * scratch_bytes;
  const int64_t operand_rows = OperandRows(num_rows, num_threads);
  const bool shared = num_rows > kMaxUnsharedRows;
  const int64_t first_operand_row = shared ? 0 : thread * num_rows;

  int64_t total_cost = 0;
  ForProducts(products, operand_rows, operands,
              [&](const MatmulParams& p, std::byte* operand, bool is_first) {
                total_cost += TileCost(p) * Tiles(p.w).num_tiles() * num_rows;
                if (!is_first) return;
                const int64_t begin = shared ? thread * num_rows / num_threads : 0;
                const int64_t end = shared ? (thread + 1) * num_rows / num_threads : num_rows;
                ConvertRows(p, operand, operand_rows, first_operand_row, begin, end);
              });
  if (shared) pool.Barrier();

  const int64_t cost_per_task = total_cost / (num_threads * kTasksPerThread) + 1;
  int64_t task = pool.NextTask();
  int64_t first_task = 0;
  ForProducts(products, operand_rows, operands,
              [&](const MatmulParams& p, std::byte* operand, bool) {
                const TaskGrid grid = GridOf(p, num_rows, cost_per_task);
                for (; task < first_task + grid.num_tasks(); task = pool.NextTask()) {
                  RunTask(p, grid, task - first_task, num_rows, operand, operand_rows,
                          first_operand_row, scratch);
                }
                first_task += grid.num_tasks();
              });
}

KernelStatus Matmul(ThreadPool& pool, std::span<const MatmulParams> products, int64_t num_rows,
                    std::span<std::byte> workspace) {
  const KernelStatus status = CheckMatmul(products, num_rows, workspace, pool.num_threads());
  if (status != KernelStatus::kOk || num_rows == 0 || products.empty()) return status;
  pool.Run([&](int thread) { MatmulInRegion(pool, thread, products, num_rows, workspace); });
  return KernelStatus::kOk;
}

}  // namespace longspan
