// The table for processors with AVX-512 (F, BW, DQ, VL) but without a bfloat16 dot product.
#include "kernels/cpu/matmul_float_table.h"

namespace longspan {

const MatmulKernels kMatmulAvx512 = FloatTable("avx512");

}  // namespace longspan
