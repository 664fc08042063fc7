// What the CPU backend finds on this machine, in terms that the assembly of a server needs.
#pragma once

#include <string>

#include "core/status.h"
#include "kernels/matmul.h"

namespace longspan {

// "float32", "bfloat16" (an error without has_bfloat16), or "auto": bfloat16 where the processor
// multiplies it natively (has_bfloat16: CpuHasBFloat16).
StatusOr<MatmulPrecision> ResolveMatmulPrecision(const std::string& name, bool has_bfloat16);

// Bytes per second that this many threads read from memory, measured (some tens of milliseconds).
double MeasureReadBandwidth(int threads);

}  // namespace longspan
