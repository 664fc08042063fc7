// Matrix products on any processor: plain C++ on the vectors that every target of the compiler has,
// in a table for the dispatch (matmul_dispatch.cc).
#include "kernels/cpu/matmul_float_table.h"

namespace longspan {

const MatmulKernels kMatmulPortable = FloatTable("portable");

}  // namespace longspan
