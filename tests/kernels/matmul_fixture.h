// What the tests of the matrix product share: random weights in every GGUF format, an oracle in
// double, and a call with workspace and guard words. Shares no code with the kernels but
// DequantizeRow.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/matmul.h"

namespace longspan::testing {

inline constexpr WeightFormat kAllFormats[] = {
    WeightFormat::kF32,  WeightFormat::kF16,  WeightFormat::kBF16, WeightFormat::kQ4_0,
    WeightFormat::kQ4_1, WeightFormat::kQ5_0, WeightFormat::kQ5_1, WeightFormat::kQ8_0,
    WeightFormat::kQ4_K, WeightFormat::kQ5_K, WeightFormat::kQ6_K};

inline constexpr MatmulPrecision kBothPrecisions[] = {MatmulPrecision::kFloat32,
                                                      MatmulPrecision::kBFloat16};

// Offsets of the halves (scales) in a block; the other bytes may be anything.
inline std::vector<int> HalvesOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ5_1:
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K:
      return {0, 2};
    case WeightFormat::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

// rows x cols of random blocks: every code occurs, scales of both signs around 0.01.
inline std::vector<uint8_t> RandomWeights(WeightFormat format, int64_t rows, int64_t cols,
                                          std::mt19937& random) {
  const int64_t num_blocks = rows * cols / WeightBlockElements(format);
  const int bytes = WeightBlockBytes(format);
  std::vector<uint8_t> data(static_cast<size_t>(num_blocks * bytes));
  std::normal_distribution<float> normal(0.0f, 0.01f);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  for (int64_t b = 0; b < num_blocks; ++b) {
    uint8_t* block = data.data() + b * bytes;
    const float value = normal(random);
    if (format == WeightFormat::kF32) {
      std::memcpy(block, &value, 4);
    } else if (format == WeightFormat::kBF16) {
      const uint16_t bits = FloatToBFloat16(value);
      std::memcpy(block, &bits, 2);
    } else {
      for (const int at : HalvesOf(format)) {
        const uint16_t bits = FloatToFloat16(normal(random));
        std::memcpy(block + at, &bits, 2);
      }
    }
  }
  return data;
}

inline std::vector<float> RandomFloats(int64_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(random);
  return values;
}

// True when activations of this combination are rounded to bfloat16.
inline bool RoundsActivations(WeightFormat format, MatmulPrecision precision) {
  return precision == MatmulPrecision::kBFloat16 && format != WeightFormat::kF32 &&
         format != WeightFormat::kF16;
}

struct OracleValue {
  double value = 0.0;
  double magnitude = 0.0;  // sum of the absolute values of everything that was added
};

// Dot product of a row of weights (dequantised) with activations, in double.
inline OracleValue Oracle(std::span<const float> weights, std::span<const float> x, bool round) {
  OracleValue result;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double a = round ? BFloat16ToFloat(FloatToBFloat16(x[i])) : x[i];
    result.value += a * weights[i];
    result.magnitude += std::abs(a * weights[i]);
  }
  return result;
}

struct AlignedBytes {
  explicit AlignedBytes(int64_t size)
      : storage(static_cast<size_t>(size) + 128, std::byte{0xff}),
        bytes(static_cast<size_t>(size)) {}
  std::span<std::byte> span() {
    const auto address = reinterpret_cast<uintptr_t>(storage.data());
    return {storage.data() + (64 - address % 64) % 64, bytes};
  }
  std::vector<std::byte> storage;  // all ones: NaN in every float that is not written first
  size_t bytes;
};

// Runs the products with a workspace of exactly the size asked for, filled with NaN.
inline KernelStatus RunMatmul(ThreadPool& pool, std::span<const MatmulParams> products,
                              int64_t num_rows) {
  AlignedBytes workspace(MatmulWorkspaceBytes(products, num_rows, pool.num_threads()));
  return Matmul(pool, products, num_rows, workspace.span());
}

// One weight matrix in both forms.
struct TestMatrix {
  TestMatrix(const MatmulKernels& kernels, WeightFormat weight_format, int64_t num_rows,
             int64_t num_cols, MatmulPrecision precision, std::mt19937& random)
      : format(weight_format), rows(num_rows), cols(num_cols) {
    const std::vector<uint8_t> data = RandomWeights(format, rows, cols, random);
    values.resize(static_cast<size_t>(rows * cols));
    DequantizeRow(format, data.data(), rows * cols, values.data());
    status = PackFor(kernels, format, rows, cols, data.data(), precision, packed);
  }
  std::span<const float> Row(int64_t row) const {
    return std::span(values).subspan(static_cast<size_t>(row * cols), static_cast<size_t>(cols));
  }
  WeightFormat format;
  int64_t rows;
  int64_t cols;
  std::vector<float> values;
  KernelStatus status = KernelStatus::kOk;
  std::unique_ptr<PackedMatrix> packed;
};

}  // namespace longspan::testing
