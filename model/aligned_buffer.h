// Uninitialised memory on a cache-line boundary, for activations and workspaces: pages that no step
// touches cost nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

namespace longspan {

class AlignedBuffer {
 public:
  static constexpr std::align_val_t kAlignment{64};

  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t size_bytes)
      : memory_(
            static_cast<std::byte*>(::operator new(static_cast<size_t>(size_bytes), kAlignment))),
        size_bytes_(size_bytes) {}

  int64_t size_bytes() const { return size_bytes_; }
  std::span<std::byte> bytes() const { return {memory_.get(), static_cast<size_t>(size_bytes_)}; }
  float* floats() const { return reinterpret_cast<float*>(memory_.get()); }

 private:
  struct Delete {
    void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
  };
  std::unique_ptr<std::byte, Delete> memory_;
  int64_t size_bytes_ = 0;
};

}  // namespace longspan
