// Owners of memory that kernels work on. Shortage is an answer: no buffer, nothing thrown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "kernels/runtime/gpu_result.h"
#include "kernels/runtime/stream_handle.h"

namespace longspan {

// Memory of the device; not readable by the host. Must not be freed while work on it is enqueued.
class DeviceBuffer {
 public:
  // Contents are undefined. Nothing when the device has no room.
  static std::optional<DeviceBuffer> Allocate(int64_t bytes);

  void* data() const { return memory_.get(); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_.get());
  }
  int64_t size_bytes() const { return bytes_; }

  // Enqueued on the stream; host memory must stay until the stream has come past it.
  GpuResult CopyFrom(std::span<const std::byte> host, GpuStreamHandle stream, int64_t offset = 0);
  GpuResult CopyTo(std::span<std::byte> host, GpuStreamHandle stream, int64_t offset = 0) const;
  GpuResult Fill(uint8_t value, GpuStreamHandle stream);

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  DeviceBuffer(void* memory, int64_t bytes) : memory_(memory), bytes_(bytes) {}
  std::unique_ptr<void, Free> memory_;
  int64_t bytes_;
};

// Host memory that the device copies from and to without the host's help.
class PinnedBuffer {
 public:
  static std::optional<PinnedBuffer> Allocate(int64_t bytes);
  std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(memory_.get()), static_cast<size_t>(bytes_)};
  }

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  PinnedBuffer(void* memory, int64_t bytes) : memory_(memory), bytes_(bytes) {}
  std::unique_ptr<void, Free> memory_;
  int64_t bytes_;
};

}  // namespace longspan
