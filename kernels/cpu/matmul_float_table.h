// The MatmulKernels table of an instruction set without a bfloat16 dot product: everything in
// float, from matmul_float_kernels.h. Internal linkage; include it only in a file that defines such
// a table.
#pragma once

#include "kernels/cpu/matmul_float_kernels.h"

namespace longspan {
namespace {

void MultiplyInFloat(const WeightPanel* panels, int num_panels, MatmulArithmetic,
                     const ActivationGroup& group, float* acc, int64_t acc_stride) {
  MultiplyFloat(panels, num_panels, group, acc, acc_stride);
}

constexpr MatmulKernels FloatTable(const char* name) {
  return {
      .name = name,
      .native_bfloat16 = false,
      .float_group_rows = kFloatGroupRows,
      .bfloat16_group_rows = 0,
      .convert_group = ConvertGroupFloat,
      .decode_tile = DecodeFloatTile,
      .fold_scales = FoldScales,
      .multiply = MultiplyInFloat,
      .has_direct = HasDirectFloat,
      .multiply_direct = MultiplyDirectFloat,
      .finish = Finish,
  };
}

}  // namespace
}  // namespace longspan
