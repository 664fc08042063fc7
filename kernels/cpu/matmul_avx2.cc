// Matrix products on AVX2, FMA and F16C: the portable vector code compiled for them, in a table for
// the dispatch (matmul_dispatch.cc).
#include "kernels/cpu/matmul_float_table.h"

namespace longspan {

const MatmulKernels kMatmulAvx2 = FloatTable("avx2");

}  // namespace longspan
