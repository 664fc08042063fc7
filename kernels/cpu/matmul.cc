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

constexpr int kChunkBlocks = 24;       // of 32 columns: two decoded bfloat16 panels are 48 KiB
constexpr int64_t kMaxTaskRows = 256;  // sums of a task's rows, when there are several chunks
constexpr int64_t kMaxTaskBytes = 256 << 10;  // a task's activations stay in the second-level cache
constexpr int64_t kMaxGroupRows = 8;          // of any table
constexpr int64_t kMaxUnsharedRows = 4;  // up to here every thread converts for itself: no barrier
constexpr int64_t kTasksPerThread = 8;   // enough to even out a disturbed core
constexpr int64_t kLine = 64;

const PackedTiles& Tiles(const PackedMatrix* w) { return *static_cast<const PackedTiles*>(w); }

int64_t CeilDiv(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }
int64_t RoundUp(int64_t value, int64_t multiple) { return CeilDiv(value, multiple) * multiple; }

// Converted activations of one product: groups of rows, then their sums.
struct OperandShape {
  int64_t group_rows;
  int64_t block_bytes;  // of one row and 32 columns
  int64_t num_blocks;

  int64_t data_bytes() const { return group_rows * num_blocks * block_bytes; }  // of a group
  int64_t sums_bytes() const { return RoundUp(group_rows * num_blocks * 4, kLine); }
  int64_t bytes(int64_t num_rows) const {
    return CeilDiv(num_rows, group_rows) * (RoundUp(data_bytes(), kLine) + sums_bytes());
  }
};

OperandShape OperandShapeOf(const PackedTiles& w) {
  const bool bfloat16 = w.arithmetic() == MatmulArithmetic::kCodesBFloat16;
  return {.group_rows = bfloat16 ? w.kernels().bfloat16_group_rows : w.kernels().float_group_rows,
          .block_bytes = kBlockCols * (bfloat16 ? 2 : 4),
          .num_blocks = w.num_blocks()};
}

struct Operand {
  std::byte* memory;
  OperandShape shape;
  int64_t num_rows;

  std::byte* data(int64_t group) const {
    return memory + group * (RoundUp(shape.data_bytes(), kLine) + shape.sums_bytes());
  }
  float* sums(int64_t group) const {
    return reinterpret_cast<float*>(data(group) + RoundUp(shape.data_bytes(), kLine));
  }
  int rows_of(int64_t group) const {
    return static_cast<int>(std::min(shape.group_rows, num_rows - group * shape.group_rows));
  }
  int64_t num_groups() const { return CeilDiv(num_rows, shape.group_rows); }
  // The group's columns from `block` on.
  ActivationGroup Group(int64_t group, int64_t block) const {
    const int rows = rows_of(group);
    return {.data = data(group) + block * rows * shape.block_bytes,
            .sums = sums(group) + block * rows,
            .num_rows = rows};
  }
};

bool SharesOperand(const MatmulParams& a, const MatmulParams& b) {
  return a.x == b.x && a.x_stride == b.x_stride && a.norm_weight == b.norm_weight &&
         a.norm_eps == b.norm_eps && a.w->cols() == b.w->cols() &&
         Tiles(a.w).arithmetic() == Tiles(b.w).arithmetic() &&
         &Tiles(a.w).kernels() == &Tiles(b.w).kernels();
}

// Copies of the converted activations that a call lays out.
int64_t OperandCopies(int64_t num_rows, int num_threads) {
  return num_rows <= kMaxUnsharedRows ? num_threads : 1;
}

// A thread's own memory: two panels (neighbouring tiles, or gate and up) and the sums of their
// rows.
struct Scratch {
  struct Panel {
    float codes[kChunkBlocks * kBlockCols * kTileRows];
    float scale[kChunkBlocks * 2 * kTileRows];
    float min[kChunkBlocks * kTileRows];
  };
  static constexpr int64_t kAccStride = (kMaxTaskRows + kMaxGroupRows) * kTileRows;

  alignas(kLine) Panel panel[2];
  float acc[2][kAccStride];
};

void ConvertGroups(const MatmulParams& p, const Operand& operand, int64_t begin, int64_t end) {
  const PackedTiles& w = Tiles(p.w);
  for (int64_t g = begin; g < end; ++g) {
    w.kernels().convert_group({.x = p.x + g * operand.shape.group_rows * p.x_stride,
                               .x_stride = p.x_stride,
                               .norm_weight = p.norm_weight,
                               .norm_eps = p.norm_eps,
                               .cols = w.cols(),
                               .arithmetic = w.arithmetic(),
                               .num_rows = operand.rows_of(g),
                               .data = operand.data(g),
                               .sums = operand.sums(g)});
  }
}

struct TileRef {
  const PackedTiles* w;
  int64_t tile;
};

struct GroupRange {
  int64_t begin;
  int64_t end;
};

// Decodes blocks [block, block + num_blocks) of a tile into the scratch panel.
WeightPanel DecodeChunk(const TileRef& ref, int64_t block, int num_blocks, Scratch::Panel& memory) {
  const BlockShape shape = ShapeOf(ref.w->format());
  WeightPanel panel{.codes = memory.codes,
                    .scale = shape.quantised ? memory.scale : nullptr,
                    .min = shape.has_min ? memory.min : nullptr,
                    .num_blocks = num_blocks,
                    .sub_block = shape.quantised ? shape.sub_block : kBlockCols};
  ref.w->DecodePanel(ref.tile, block, panel);
  if (ref.w->arithmetic() == MatmulArithmetic::kDequantised) {
    panel.scale = nullptr;  // folded into the values
    panel.min = nullptr;
    panel.sub_block = kBlockCols;
  }
  return panel;
}

// What one product does with two tiles: neighbours of w, or the same tile of w and w_up.
struct TilePair {
  const MatmulParams* product;
  TileRef tile[2];
  int count;
};

// Panels that one call of the micro-kernel takes must agree in shape.
bool SharePanelShape(const TilePair& pair) {
  const PackedTiles& a = *pair.tile[0].w;
  return pair.count == 2 && (a.arithmetic() == MatmulArithmetic::kDequantised ||
                             a.format() == pair.tile[1].w->format());
}

// y of one group: its rows start at first_row.
void FinishGroup(const TilePair& pair, const Operand& operand, int64_t group,
                 const float (*acc)[Scratch::kAccStride], int64_t acc_offset) {
  const MatmulParams& p = *pair.product;
  const PackedTiles& w = *pair.tile[0].w;
  const int64_t first_row = group * operand.shape.group_rows;
  const int num_outputs = p.w_up != nullptr ? 1 : pair.count;
  for (int i = 0; i < num_outputs; ++i) {
    const int64_t n0 = pair.tile[i].tile * kTileRows;
    w.kernels().finish({.acc = acc[i] + acc_offset,
                        .acc_up = acc[1] + acc_offset,
                        .bias = p.bias == nullptr ? nullptr : p.bias + n0,
                        .y = p.y + first_row * p.y_stride + n0,
                        .y_stride = p.y_stride,
                        .num_rows = operand.rows_of(group),
                        .num_lanes = static_cast<int>(std::min<int64_t>(kTileRows, w.rows() - n0)),
                        .epilogue = p.epilogue});
  }
}

// Asks for the lines of y that FinishGroup will write: they come while the products are computed.
// Inlined by force: gcc takes a function that only prefetches for one without effect and drops the
// call.
inline __attribute__((always_inline)) void PrefetchOutputs(const TilePair& pair,
                                                           const Operand& operand, int64_t group) {
  const MatmulParams& p = *pair.product;
  const float* y =
      p.y + group * operand.shape.group_rows * p.y_stride + pair.tile[0].tile * kTileRows;
  const int64_t last = (pair.tile[pair.count - 1].tile - pair.tile[0].tile) * kTileRows;
  for (int r = 0; r < operand.rows_of(group); ++r, y += p.y_stride) {
    __builtin_prefetch(y, 1);
    if (last != 0) __builtin_prefetch(y + last, 1);
  }
}

bool HasDirectKernel(const TilePair& pair, int64_t num_rows) {
  for (int i = 0; i < pair.count; ++i) {
    const PackedTiles& w = *pair.tile[i].w;
    if (!w.kernels().has_direct(w.format(), w.arithmetic(), num_rows)) return false;
  }
  return true;
}

// Straight from the weights, group by group.
void RunPairDirect(const TilePair& pair, const Operand& operand, GroupRange groups,
                   Scratch& scratch) {
  for (int64_t g = groups.begin; g < groups.end; ++g) {
    PrefetchOutputs(pair, operand, g);
    for (int i = 0; i < pair.count; ++i) {
      const PackedTiles& w = *pair.tile[i].w;
      w.kernels().multiply_direct(w.format(), w.arithmetic(), w.Units(pair.tile[i].tile, 0),
                                  static_cast<int>(w.num_blocks()), operand.Group(g, 0),
                                  scratch.acc[i]);
    }
    FinishGroup(pair, operand, g, scratch.acc, 0);
  }
}

// Through panels: each chunk of columns is decoded once for all groups.
void RunPair(const TilePair& pair, const Operand& operand, GroupRange groups, Scratch& scratch) {
  const PackedTiles& w = *pair.tile[0].w;
  const int step = SharePanelShape(pair) ? 2 : 1;
  for (int64_t block = 0; block < w.num_blocks(); block += kChunkBlocks) {
    const int blocks = static_cast<int>(std::min<int64_t>(kChunkBlocks, w.num_blocks() - block));
    WeightPanel panels[2];
    for (int i = 0; i < pair.count; ++i) {
      panels[i] = DecodeChunk(pair.tile[i], block, blocks, scratch.panel[i]);
    }
    for (int64_t g = groups.begin; g < groups.end; ++g) {
      const ActivationGroup group = operand.Group(g, block);
      const int64_t at = (g - groups.begin) * operand.shape.group_rows * kTileRows;
      const bool is_last = block + blocks == w.num_blocks();
      if (is_last) PrefetchOutputs(pair, operand, g);
      for (int i = 0; i < pair.count; i += step) {
        if (block == 0) {
          for (int j = i; j < i + step; ++j)
            std::fill_n(scratch.acc[j] + at, group.num_rows * kTileRows, 0.0f);
        }
        w.kernels().multiply(panels + i, step, w.arithmetic(), group, scratch.acc[i] + at,
                             Scratch::kAccStride);
      }
      if (is_last) FinishGroup(pair, operand, g, scratch.acc, at);
    }
  }
}

int64_t TileCost(const MatmulParams& p) {
  return Tiles(p.w).num_blocks() * (p.w_up != nullptr ? 2 : 1);
}

// How one product is cut into tasks: ranges of tiles x ranges of row groups.
struct TaskGrid {
  int64_t tiles_per_task;
  int64_t num_tile_ranges;
  int64_t groups_per_task;
  int64_t num_group_ranges;
  int64_t num_tasks() const { return num_tile_ranges * num_group_ranges; }
};

TaskGrid GridOf(const MatmulParams& p, const Operand& operand, int64_t cost_per_task) {
  TaskGrid grid;
  const int64_t max_groups = std::clamp<int64_t>(kMaxTaskBytes / operand.shape.data_bytes(), 1,
                                                 kMaxTaskRows / operand.shape.group_rows);
  grid.num_group_ranges = CeilDiv(operand.num_groups(), max_groups);
  grid.groups_per_task = CeilDiv(operand.num_groups(), grid.num_group_ranges);
  const int64_t rows_per_task =
      std::min(operand.num_rows, grid.groups_per_task * operand.shape.group_rows);
  const int64_t num_tiles = Tiles(p.w).num_tiles();
  // Two tiles share the broadcasts of the activations, so tasks hold whole pairs.
  const int64_t tiles = RoundUp(cost_per_task / (TileCost(p) * rows_per_task), 2);
  grid.tiles_per_task = std::clamp<int64_t>(tiles, std::min<int64_t>(2, num_tiles), num_tiles);
  grid.num_tile_ranges = CeilDiv(num_tiles, grid.tiles_per_task);
  return grid;
}

void RunTask(const MatmulParams& p, const TaskGrid& grid, int64_t task, const Operand& operand,
             Scratch& scratch) {
  GroupRange groups;
  groups.begin = task / grid.num_tile_ranges * grid.groups_per_task;
  groups.end = std::min(groups.begin + grid.groups_per_task, operand.num_groups());
  const PackedTiles& w = Tiles(p.w);
  int64_t tile = task % grid.num_tile_ranges * grid.tiles_per_task;
  const int64_t end = std::min(tile + grid.tiles_per_task, w.num_tiles());
  while (tile < end) {
    TilePair pair{.product = &p, .tile = {{&w, tile}, {&w, tile + 1}}, .count = 2};
    if (p.w_up != nullptr) {
      pair.tile[1] = {&Tiles(p.w_up), tile};
    } else if (tile + 1 == end) {
      pair.count = 1;
    }
    if (HasDirectKernel(pair, operand.num_rows)) {
      RunPairDirect(pair, operand, groups, scratch);
    } else {
      RunPair(pair, operand, groups, scratch);
    }
    tile += p.w_up != nullptr ? 1 : pair.count;
  }
}

// Calls visit(product, its operand, whether it is the first with that operand). The operands lie
// one after the other in memory, `copies` of each; the visitor sees copy number `copy`.
template <typename Visit>
void ForProducts(std::span<const MatmulParams> products, int64_t num_rows, std::byte* memory,
                 int64_t copies, int64_t copy, Visit visit) {
  Operand operand{};
  for (size_t i = 0; i < products.size(); ++i) {
    const bool is_first = i == 0 || !SharesOperand(products[i - 1], products[i]);
    if (is_first) {
      const OperandShape shape = OperandShapeOf(Tiles(products[i].w));
      operand = {memory + copy * shape.bytes(num_rows), shape, num_rows};
      memory += copies * shape.bytes(num_rows);
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
  int64_t bytes = num_threads * static_cast<int64_t>(sizeof(Scratch));
  for (size_t i = 0; i < products.size(); ++i) {
    if (i > 0 && SharesOperand(products[i - 1], products[i])) continue;
    const OperandShape shape = OperandShapeOf(Tiles(products[i].w));
    bytes += std::max(shape.bytes(max_rows),
                      num_threads * shape.bytes(std::min(max_rows, kMaxUnsharedRows)));
  }
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
  Scratch& scratch = reinterpret_cast<Scratch*>(workspace.data())[thread];
  std::byte* operands = workspace.data() + num_threads * sizeof(Scratch);
  const int64_t copies = OperandCopies(num_rows, num_threads);
  const int64_t copy = copies == 1 ? 0 : thread;

  int64_t total_cost = 0;
  ForProducts(products, num_rows, operands, copies, copy,
              [&](const MatmulParams& p, const Operand& operand, bool is_first) {
                total_cost += TileCost(p) * Tiles(p.w).num_tiles() * num_rows;
                if (!is_first) return;
                const int64_t n = operand.num_groups();
                const int64_t begin = copies == 1 ? thread * n / num_threads : 0;
                const int64_t end = copies == 1 ? (thread + 1) * n / num_threads : n;
                ConvertGroups(p, operand, begin, end);
              });
  if (copies == 1) pool.Barrier();

  const int64_t cost_per_task = total_cost / (num_threads * kTasksPerThread) + 1;
  int64_t task = pool.NextTask();
  int64_t first_task = 0;
  ForProducts(products, num_rows, operands, copies, copy,
              [&](const MatmulParams& p, const Operand& operand, bool) {
                const TaskGrid grid = GridOf(p, operand, cost_per_task);
                for (; task < first_task + grid.num_tasks(); task = pool.NextTask()) {
                  RunTask(p, grid, task - first_task, operand, scratch);
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
