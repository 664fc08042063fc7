// The table for processors with AVX-512 (F, BW, DQ, VL) but without a bfloat16 dot product.
#include "kernels/cpu/matmul_float_kernels.h"

namespace longspan {
namespace {

void Multiply(const WeightPanel* panels, int num_panels, MatmulArithmetic,
              const ActivationGroup& group, float* acc, int64_t acc_stride) {
  MultiplyFloat(panels, num_panels, group, acc, acc_stride);
}

}  // namespace

const MatmulKernels kMatmulAvx512 = {
    .name = "avx512",
    .native_bfloat16 = false,
    .float_group_rows = kFloatGroupRows,
    .bfloat16_group_rows = 0,
    .convert_group = ConvertGroupFloat,
    .decode_tile = DecodeFloatTile,
    .fold_scales = FoldScales,
    .multiply = Multiply,
    .has_direct = HasDirectFloat,
    .multiply_direct = MultiplyDirectFloat,
    .finish = Finish,
};

}  // namespace longspan
