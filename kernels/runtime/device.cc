// The device and the texts of its runtime's error codes.
#include "kernels/runtime/device.h"

#include "kernels/gpu.h"
#include "kernels/runtime/gpu_result.h"

namespace longspan {

std::string_view GpuResult::text() const {
  return cudaGetErrorString(static_cast<GpuErrorCode>(code));
}

std::optional<GpuDevice> FindGpuDevice(std::string* reason) {
  int index = 0;
  cudaDeviceProp properties;
  GpuErrorCode error = cudaGetDevice(&index);
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, index);
  if (error != cudaSuccess) {
    if (reason != nullptr) *reason = cudaGetErrorString(error);
    return std::nullopt;
  }
  GpuDevice device;
  device.name = properties.name;
  device.compute_capability = 10 * properties.major + properties.minor;
  device.num_sms = properties.multiProcessorCount;
  device.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  device.l2_bytes = properties.l2CacheSize;
  return device;
}

}  // namespace longspan
