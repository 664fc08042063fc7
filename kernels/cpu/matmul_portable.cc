// The table for any processor: plain C++ on the vectors that every target of the compiler has.
#include "kernels/cpu/matmul_float_table.h"

namespace longspan {

const MatmulKernels kMatmulPortable = FloatTable("portable");

}  // namespace longspan
