// The table for processors with AVX2, FMA and F16C.
#include "kernels/cpu/matmul_float_table.h"

namespace longspan {

const MatmulKernels kMatmulAvx2 = FloatTable("avx2");

}  // namespace longspan
