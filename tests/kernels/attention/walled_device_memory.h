// Device memory that ends where nothing is mapped: a read behind it is an error of the device, not
// a neighbour's bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/runtime/gpu_result.h"
#include "kernels/runtime/stream_handle.h"

namespace longspan {

class WalledDeviceMemory {
 public:
  // A copy of the bytes whose end is less than 16 bytes before the wall (at it, when their number
  // is a multiple of 16). Nothing where the driver cannot map memory piece by piece.
  static std::optional<WalledDeviceMemory> CopyOf(std::span<const std::byte> bytes);
  WalledDeviceMemory(WalledDeviceMemory&& other) noexcept;
  ~WalledDeviceMemory();

  void* data() const { return data_; }

 private:
  WalledDeviceMemory() = default;

  uint64_t reserved_ = 0;  // address
  size_t mapped_bytes_ = 0, reserved_bytes_ = 0;
  uint64_t handle_ = 0;
  void* data_ = nullptr;
};

}  // namespace longspan
