// What one instruction set gives the matrix product: conversion of activations, decoding of a tile
// of weights into a panel, the micro-kernel over a panel, the epilogue. The driver (matmul.cc)
// knows blocking and threads, the files behind this table know registers.
//
// The value of an output element is fixed here and is the same for every number of rows, tile and
// thread:
//   acc = 0; for each sub-block of K in order: s = sum over the sub-block in order, starting from
//   0; acc = scale * s + acc (fused); then, where the format has minima and the sub-block is a
//   whole block: acc = min * (sum of the block's activations) + acc (fused).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/matmul.h"

namespace longspan {

inline constexpr int kTileRows = 16;  // rows of the weight matrix (outputs) in a tile: one per lane
inline constexpr int kBlockCols = 32;  // K elements of a block; rows are padded to it with zeros

// How the numbers of one matrix are multiplied; fixed when it is packed.
enum class MatmulArithmetic : uint8_t {
  kDequantised,    // float values, float activations
  kCodesFloat,     // float codes, activations rounded to bfloat16 but held in float
  kCodesBFloat16,  // bfloat16 codes and activations, two products a lane and instruction
};

// A decoded piece of a tile: num_blocks * 32 columns of 16 rows.
struct WeightPanel {
  void* codes;   // float [K][16], or bfloat16 [K / 2][16][2]
  float* scale;  // [K / sub_block][16]; null: codes are the values
  float* min;    // [K / 32][16]; null: the format has none
  int num_blocks;
  int sub_block;  // 16 or 32
};

// Up to group_rows activation rows, interleaved so that a micro-kernel walks one pointer: float
// [K][num_rows] or bfloat16 [K / 2][num_rows][2], K padded with zeros to whole blocks.
struct ActivationGroup {
  const void* data;
  const float* sums;  // [K / 32][num_rows]: sums of each block's rounded values
  int num_rows;
};

struct ConvertGroupParams {
  const float* x;  // row r at x + r * x_stride
  int64_t x_stride;
  const float* norm_weight;  // null: no RMSNorm
  float norm_eps;
  int64_t cols;
  MatmulArithmetic arithmetic;
  int num_rows;
  void* data;  // as in ActivationGroup
  float* sums;
};

struct FinishParams {
  const float* acc;     // [num_rows][16]
  const float* acc_up;  // [num_rows][16], kSiluMul only
  const float* bias;    // null: none
  float* y;
  int64_t y_stride;
  int num_rows;
  int num_lanes;  // 1..16
  MatmulEpilogue epilogue;
};

struct MatmulKernels {
  const char* name;
  bool native_bfloat16;
  int float_group_rows;     // rows of a full group, for float elements
  int bfloat16_group_rows;  // and for bfloat16 elements
  void (*convert_group)(const ConvertGroupParams& params);
  // units: num_blocks of the tile layout (weight_tiles.h). Fills a panel whose memory the caller
  // gave; scale and min are written only when not null.
  void (*decode_tile)(WeightFormat format, MatmulArithmetic arithmetic, const uint8_t* units,
                      const WeightPanel& panel);
  // Multiplies scale and adds min in place (float panels), rounding both steps as DequantizeRow
  // does.
  void (*fold_scales)(const WeightPanel& panel);
  // acc[i][num_rows][16] += panels[i] * group for one or two panels of equal shape; acc[1] lies
  // acc_stride floats after acc[0].
  void (*multiply)(const WeightPanel* panels, int num_panels, MatmulArithmetic arithmetic,
                   const ActivationGroup& group, float* acc, int64_t acc_stride);
  // acc[num_rows][16] = tile * group straight from the tile layout, decoding again for every group;
  // where has_direct says that this beats panels for so many rows in all.
  bool (*has_direct)(WeightFormat format, MatmulArithmetic arithmetic, int64_t num_rows);
  void (*multiply_direct)(WeightFormat format, MatmulArithmetic arithmetic, const uint8_t* units,
                          int num_blocks, const ActivationGroup& group, float* acc);
  void (*finish)(const FinishParams& params);
};

// Every table this processor can run, fastest first; the last one is plain C++.
std::span<const MatmulKernels* const> SupportedMatmulKernels();

// PackedMatrix::Pack for one table instead of the fastest: lets tests and benchmarks run every
// path.
KernelStatus PackFor(const MatmulKernels& kernels, WeightFormat format, int64_t rows, int64_t cols,
                     const void* data, MatmulPrecision precision,
                     std::unique_ptr<PackedMatrix>& out);

extern const MatmulKernels kMatmulPortable;
#if defined(__x86_64__)
extern const MatmulKernels kMatmulAvx2;
extern const MatmulKernels kMatmulAvx512;
extern const MatmulKernels kMatmulAvx512BFloat16;
#endif

}  // namespace longspan
