// The table for processors with AVX-512 (F, BW, DQ, VL) but without a bfloat16 dot product.
#include "kernels/cpu/matmul_float_kernels.h"

namespace longspan {
namespace {

void DecodeTile(WeightFormat format, MatmulArithmetic, const uint8_t* units,
                const WeightPanel& panel) {
  DecodeFloatTile(format, units, panel);
}

void Multiply(const WeightPanel& panel, MatmulArithmetic, const ActivationRows& rows, int num_rows,
              float* acc) {
  MultiplyFloat(panel, rows, num_rows, acc);
}

}  // namespace

const MatmulKernels kMatmulAvx512 = {
    .name = "avx512",
    .native_bfloat16 = false,
    .convert_row = ConvertRowFloat,
    .decode_tile = DecodeTile,
    .fold_scales = FoldScales,
    .multiply = Multiply,
    .max_direct_rows = 0,
    .multiply_direct = nullptr,
    .finish_row = FinishRow,
};

}  // namespace longspan
