// Rows of a table on the CPU: decoded to float by the one definition of the formats, then rounded.
#include <algorithm>
#include <limits>

#include "kernels/cpu/split_rows.h"
#include "kernels/gather_rows.h"

namespace longspan {
namespace {

KernelStatus Check(const GatherRowsParams& p) {
  if (DTypeBytes(p.dtype) < 2) return KernelStatus::kUnsupportedDType;
  const int64_t elements = WeightBlockElements(p.format);
  if (p.num_table_rows < 0 || p.num_rows < 0 || p.dim < 1 || p.dim % elements != 0) {
    return KernelStatus::kBadShape;
  }
  if (p.table_row_bytes < p.dim / elements * WeightBlockBytes(p.format) ||
      (p.num_rows > 1 && p.y_stride < p.dim)) {
    return KernelStatus::kBadStride;
  }
  return KernelStatus::kOk;
}

void Store(float value, DType dtype, void* y, int64_t index) {
  switch (dtype) {
    case DType::kFloat16:
      static_cast<uint16_t*>(y)[index] = FloatToFloat16(value);
      return;
    case DType::kBFloat16:
      static_cast<uint16_t*>(y)[index] = FloatToBFloat16(value);
      return;
    default:
      static_cast<float*>(y)[index] = value;
  }
}

void GatherRow(const GatherRowsParams& p, int64_t i) {
  constexpr int64_t kChunk = 256;  // a multiple of every format's block
  float decoded[kChunk];
  const int64_t row = p.rows[i];
  const bool valid = row >= 0 && row < p.num_table_rows;
  const auto* from = static_cast<const uint8_t*>(p.table) + (valid ? row * p.table_row_bytes : 0);
  for (int64_t first = 0; first < p.dim; first += kChunk) {
    const int64_t count = std::min(kChunk, p.dim - first);
    if (valid) {
      DequantizeRow(p.format,
                    from + first / WeightBlockElements(p.format) * WeightBlockBytes(p.format),
                    count, decoded);
    } else {
      std::fill_n(decoded, count, std::numeric_limits<float>::quiet_NaN());
    }
    for (int64_t j = 0; j < count; ++j) {
      Store(decoded[j], p.dtype, p.y, i * p.y_stride + first + j);
    }
  }
}

}  // namespace

KernelStatus GatherRowsCpu(ThreadPool& pool, const GatherRowsParams& params) {
  if (const KernelStatus status = Check(params); status != KernelStatus::kOk) return status;
  SplitRows(pool, params.num_rows, params.dim, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) GatherRow(params, i);
  });
  return KernelStatus::kOk;
}

}  // namespace longspan
