// Matrix products on AVX-512 (F, BW, DQ, VL) without a bfloat16 dot product: the portable vector
// code compiled for it, in a table for the dispatch (matmul_dispatch.cc).
#include "kernels/cpu/matmul_float_table.h"

namespace longspan {

const MatmulKernels kMatmulAvx512 = FloatTable("avx512");

}  // namespace longspan
