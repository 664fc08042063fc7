// What kernels are chosen by: the card that the calling thread uses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace longspan {

struct GpuDevice {
  std::string name;
  int32_t compute_capability = 0;  // 90: 9.0
  int32_t num_sms = 0;
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;
  int32_t driver = 0;  // CUDA version that it serves; 13000: 13.0
};

// Nothing when the machine has no device or no driver; reason, when given, then says which.
std::optional<GpuDevice> FindGpuDevice(std::string* reason = nullptr);

}  // namespace longspan
