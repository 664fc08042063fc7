// The one file that knows CUDA from HIP: vendor headers, and the names the rest uses for the
// vendor's handles and calls. Only device code and kernels/runtime include it; everybody else sees
// opaque handles.
#pragma once

#if defined(__HIP_PLATFORM_AMD__)
#error "HIP names are added with the first HIP kernel"
#endif

#include <cuda_runtime_api.h>

namespace longspan {

using GpuErrorCode = cudaError_t;
using GpuNativeStream = cudaStream_t;
using GpuNativeEvent = cudaEvent_t;

}  // namespace longspan
