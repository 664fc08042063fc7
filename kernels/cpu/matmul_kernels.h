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

// Activations as the micro-kernels read them: float or bfloat16 rows, zero-padded to whole blocks.
struct ActivationRows {
  const void* data;
  int64_t stride;     // elements
  const float* sums;  // sum of each block of 32, of the rounded values
  int64_t sums_stride;
};

struct ConvertRowParams {
  const float* x;
  const float* norm_weight;  // null: no RMSNorm
  float norm_eps;
  int64_t cols;
  MatmulArithmetic arithmetic;
  void* out;    // cols rounded up to 32; elements as the arithmetic's
  float* sums;  // one per block
};

struct FinishRowParams {
  const float* acc;     // [16]
  const float* acc_up;  // [16], kSiluMul only
  const float* bias;    // null: none
  float* y;
  int num_lanes;  // 1..16
  MatmulEpilogue epilogue;
};

struct MatmulKernels {
  const char* name;
  bool native_bfloat16;
  void (*convert_row)(const ConvertRowParams& params);
  // units: num_blocks of the tile layout (weight_tiles.h). Fills a panel whose memory the caller
  // gave; scale and min are written only when not null.
  void (*decode_tile)(WeightFormat format, MatmulArithmetic arithmetic, const uint8_t* units,
                      const WeightPanel& panel);
  // Multiplies scale and adds min in place (float panels), rounding both steps as DequantizeRow
  // does.
  void (*fold_scales)(const WeightPanel& panel);
  // acc[num_rows][16] += panel * rows.
  void (*multiply)(const WeightPanel& panel, MatmulArithmetic arithmetic,
                   const ActivationRows& rows, int num_rows, float* acc);
  // The same product straight from the tile layout, for at most max_direct_rows rows. False: this
  // format or arithmetic has no such kernel.
  int max_direct_rows;
  bool (*multiply_direct)(WeightFormat format, MatmulArithmetic arithmetic, const uint8_t* units,
                          int num_blocks, const ActivationRows& rows, int num_rows, float* acc);
  void (*finish_row)(const FinishRowParams& params);
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
