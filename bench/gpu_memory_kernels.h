// What GPU benchmarks need besides the kernels they measure: random inputs and the memory's
// ceiling.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/runtime/stream_handle.h"

namespace longspan {

// Standard normal values, a function of seed and index; int8: 32 times as much. (Zeros draw less
// power.)
void FillNormal(void* to, int64_t num_elements, uint32_t seed, GpuStreamHandle stream,
                DType dtype = DType::kBFloat16);

// Reads num_bytes (a multiple of 16384) once, by the copy engine, one CTA per SM with twelve loads
// of 16 KiB in flight: the fastest reading known, the roof of decode attention.
void ReadMemory(const void* from, int64_t num_bytes, int32_t num_sms, GpuStreamHandle stream);

}  // namespace longspan
