// Allocation, copies and release of device and pinned memory.
#include "kernels/runtime/buffer.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/gpu.h"

namespace longspan {
namespace {

GpuNativeStream Native(GpuStreamHandle stream) { return static_cast<GpuNativeStream>(stream); }

}  // namespace

void DeviceBuffer::Free::operator()(void* memory) const { (void)cudaFree(memory); }

std::optional<DeviceBuffer> DeviceBuffer::Allocate(int64_t bytes) {
  void* memory = nullptr;
  if (bytes < 0 || cudaMalloc(&memory, std::max<int64_t>(bytes, 1)) != cudaSuccess) {
    (void)cudaGetLastError();  // a shortage is not an error of the calls that follow
    return std::nullopt;
  }
  return DeviceBuffer(memory, bytes);
}

GpuResult DeviceBuffer::CopyFrom(std::span<const std::byte> host, GpuStreamHandle stream,
                                 int64_t offset) {
  CHECK(offset >= 0 && offset + static_cast<int64_t>(host.size()) <= bytes_, "{} + {} of {}",
        offset, host.size(), bytes_);
  return {cudaMemcpyAsync(as<std::byte>() + offset, host.data(), host.size(),
                          cudaMemcpyHostToDevice, Native(stream))};
}

GpuResult DeviceBuffer::CopyTo(std::span<std::byte> host, GpuStreamHandle stream,
                               int64_t offset) const {
  CHECK(offset >= 0 && offset + static_cast<int64_t>(host.size()) <= bytes_, "{} + {} of {}",
        offset, host.size(), bytes_);
  return {cudaMemcpyAsync(host.data(), as<std::byte>() + offset, host.size(),
                          cudaMemcpyDeviceToHost, Native(stream))};
}

GpuResult DeviceBuffer::Fill(uint8_t value, GpuStreamHandle stream) {
  return {cudaMemsetAsync(data(), value, static_cast<size_t>(bytes_), Native(stream))};
}

void PinnedBuffer::Free::operator()(void* memory) const { (void)cudaFreeHost(memory); }

std::optional<PinnedBuffer> PinnedBuffer::Allocate(int64_t bytes) {
  void* memory = nullptr;
  if (bytes < 0 || cudaMallocHost(&memory, std::max<int64_t>(bytes, 1)) != cudaSuccess) {
    (void)cudaGetLastError();
    return std::nullopt;
  }
  return PinnedBuffer(memory, bytes);
}

}  // namespace longspan
