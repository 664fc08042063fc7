// Chosen rows of a table, converted: the embedding of token ids, and the hidden states of the
// tokens whose logits are wanted.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/kernel_status.h"
#include "kernels/matmul.h"
#include "kernels/runtime/stream_handle.h"

namespace longspan {

class ThreadPool;

// y[i] = table[rows[i]]. A row number outside the table gives a row of NaN: it is a broken promise,
// and NaN is noticed where logits are checked. Several i may name one row.
struct GatherRowsParams {
  const void* table = nullptr;  // [num_table_rows, dim] in format
  WeightFormat format = WeightFormat::kF32;
  int64_t table_row_bytes = 0;    // from one row to the next
  const int32_t* rows = nullptr;  // [num_rows]
  void* y = nullptr;              // [num_rows, dim] of dtype, the last dimension contiguous
  DType dtype = DType::kFloat32;
  int64_t y_stride = 0;  // elements from one row to the next
  int64_t num_table_rows = 0;
  int64_t num_rows = 0;  // 0 is legal: nothing is written
  int64_t dim = 0;       // a multiple of the format's block
};

// Any format, y float32, float16 or bfloat16, rounded to nearest even. Answers kUnsupportedDType;
// kBadShape for extents out of range; kBadStride for table rows that overlap or, with several rows,
// rows of y that do.
KernelStatus GatherRowsCpu(ThreadPool& pool, const GatherRowsParams& params);

// The same bits (of a NaN: a NaN) by the device, in the order of the stream; every pointer is
// device memory. Formats F32, F16, BF16, Q8_0 and Q4_1; others: kUnsupportedDType. Further answers
// before anything is launched: kBadShape for null pointers, kMisaligned for pointers or strides
// that are no multiple of their element (2 bytes for Q8_0, 4 for Q4_1). 16-byte accesses to
// unquantised tables when dim and y's stride are multiples of 8, and pointers and table_row_bytes
// of 16 bytes. Moves num_rows * (bytes of a table row + dim * bytes of y).
KernelStatus GatherRowsGpu(const GatherRowsParams& params, GpuStreamHandle stream);

}  // namespace longspan
