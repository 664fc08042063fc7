// The device and the texts of its runtime's error codes.
#include "kernels/runtime/device.h"

#include <string>

#include "kernels/gpu.h"
#include "kernels/runtime/gpu_result.h"

namespace longspan {
namespace {

std::string Version(int version) {  // 13000: 13.0
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// The runtime calls a missing driver one that is too old.
std::string NoDeviceReason(GpuErrorCode error) {
  if (error == cudaErrorNoDevice) return "the NVIDIA driver shows no device to this process";
  int served = 0;
  if (error != cudaErrorInsufficientDriver || cudaDriverGetVersion(&served) != cudaSuccess) {
    return cudaGetErrorString(error);
  }
  if (served == 0) return "there is no NVIDIA driver on this machine";
  return "the NVIDIA driver serves CUDA " + Version(served) + ", this program needs " +
         Version(CUDART_VERSION);
}

}  // namespace

std::string_view GpuResult::text() const {
  return cudaGetErrorString(static_cast<GpuErrorCode>(code));
}

std::optional<GpuDevice> FindGpuDevice(std::string* reason) {
  int index = 0;
  cudaDeviceProp properties;
  GpuErrorCode error = cudaGetDevice(&index);
  int driver = 0;
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, index);
  if (error == cudaSuccess) error = cudaDriverGetVersion(&driver);
  if (error != cudaSuccess) {
    if (reason != nullptr) *reason = NoDeviceReason(error);
    return std::nullopt;
  }
  GpuDevice device;
  device.name = properties.name;
  device.compute_capability = 10 * properties.major + properties.minor;
  device.num_sms = properties.multiProcessorCount;
  device.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  device.l2_bytes = properties.l2CacheSize;
  device.driver = driver;
  return device;
}

}  // namespace longspan
