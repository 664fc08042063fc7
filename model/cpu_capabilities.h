// What the CPU backend finds on this machine, in terms that the assembly of a server needs.
#pragma once

#include <string>

#include "kernels/matmul.h"

namespace longspan {

// "float32", "bfloat16", or "auto": bfloat16 where the processor multiplies it natively.
MatmulPrecision ResolveMatmulPrecision(const std::string& name);

// Bytes per second that this many threads read from memory, measured (some tens of milliseconds).
double MeasureReadBandwidth(int threads);

}  // namespace longspan
