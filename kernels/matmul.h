// Matrix products y = x * W^T of float activations with weights in GGUF's block formats or in
// 16/32-bit floats. Weights keep their quantised size: they are re-laid out once and decoded in
// cache, tile by tile. The K order of every output element is fixed, so a row's bits do not depend
// on the other rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/kernel_status.h"

namespace longspan {

class ThreadPool;

// Block formats as GGUF stores them (same names, same bytes per block).
enum class WeightFormat : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K
};
std::string_view WeightFormatName(WeightFormat format);
int WeightBlockElements(WeightFormat format);  // 1, 32 or 256 consecutive elements of a row
int WeightBlockBytes(WeightFormat format);

// Decodes num_elements (a multiple of the block's) from GGUF's layout to float, exactly as the
// format defines. The oracle of every fast path; also used for norms and biases.
void DequantizeRow(WeightFormat format, const void* blocks, int64_t num_elements, float* out);

// kBFloat16: activations are rounded to bfloat16; weights stay exact (integer codes are exact in
// bfloat16, their block scales are applied to float sums; F16 and F32 weights are multiplied in
// float). kFloat32: float throughout, weights dequantised as the format defines.
enum class MatmulPrecision : uint8_t { kFloat32, kBFloat16 };

// True where the processor multiplies bfloat16 natively (AVX512_BF16).
bool CpuHasBFloat16();

// One weight matrix in the layout the kernels read. Immutable and shareable once made.
class PackedMatrix {
 public:
  // rows = outputs, cols = inputs; data = rows x cols in GGUF's row-major layout, copied.
  // Fails with kBadShape when cols is not a multiple of the format's block.
  static KernelStatus Pack(WeightFormat format, int64_t rows, int64_t cols, const void* data,
                           MatmulPrecision precision, std::unique_ptr<PackedMatrix>& out);
  virtual ~PackedMatrix() = default;

  virtual int64_t rows() const = 0;
  virtual int64_t cols() const = 0;
  virtual int64_t size_bytes() const = 0;  // memory held
  // Decodes one row to float (embedding lookup of a tied matrix).
  virtual void ReadRow(int64_t row, float* out) const = 0;
};

enum class MatmulEpilogue : uint8_t {
  kStore,    // y = x W^T + bias
  kAdd,      // y += x W^T + bias (residual)
  kSiluMul,  // y = silu(x W^T + bias) * (x W_up^T): gate and up of an MLP, the halves never stored
};

// One product. x: [num_rows, cols] float, row stride x_stride; y: [num_rows, rows of w], row stride
// y_stride (strides in elements). bias: [rows of w] or null. No y may overlap any x of the same
// call.
struct MatmulParams {
  const PackedMatrix* w;
  const float* x;
  int64_t x_stride;
  float* y;
  int64_t y_stride;
  const float* bias = nullptr;
  MatmulEpilogue epilogue = MatmulEpilogue::kStore;
  // kSiluMul only, null otherwise: same shape, format and precision as w.
  const PackedMatrix* w_up = nullptr;
  // Not null: x stands for RMSNorm(x), normalised in float while it is converted:
  // x * (1 / sqrt(mean(x^2) + norm_eps)) * norm_weight. norm_weight: [cols].
  const float* norm_weight = nullptr;
  float norm_eps = 0.0f;
};

// Runs several products over the same number of rows in one parallel region (q, k, v; gate and up).
// Products that share x, x_stride, norm and precision should be neighbours: x is converted once.
// num_rows 0 is legal. workspace: at least MatmulWorkspaceBytes, 64-byte aligned, exclusive to the
// call.
KernelStatus Matmul(ThreadPool& pool, std::span<const MatmulParams> products, int64_t num_rows,
                    std::span<std::byte> workspace);

// Enough for every call with these products (or products of the same shapes and formats) and at
// most max_rows rows on a pool of num_threads threads.
int64_t MatmulWorkspaceBytes(std::span<const MatmulParams> products, int64_t max_rows,
                             int num_threads);

// The same work inside a region of the caller's: every thread of the pool calls it with its own
// index and equal arguments, after the region's start or a Barrier (the task counter must be
// fresh), and y is complete only after the Barrier that must follow. Lets several kernels share one
// region. Arguments are not checked here: CheckMatmul does it, once.
void MatmulInRegion(ThreadPool& pool, int thread, std::span<const MatmulParams> products,
                    int64_t num_rows, std::span<std::byte> workspace);
KernelStatus CheckMatmul(std::span<const MatmulParams> products, int64_t num_rows,
                         std::span<const std::byte> workspace, int num_threads);

}  // namespace longspan
