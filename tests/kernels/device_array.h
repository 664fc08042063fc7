// Arrays on a device with guard words around them, and numbers of any element type: what tests of
// small GPU kernels share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/dtype.h"
#include "kernels/runtime/buffer.h"
#include "kernels/runtime/device.h"
#include "kernels/runtime/stream.h"

namespace longspan {

// Skips, saying why, without a device of line 8.0 or newer.
class GpuKernel : public testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    const auto device = FindGpuDevice(&reason);
    if (!device) GTEST_SKIP() << "no GPU: " << reason;
    if (device->compute_capability < 80) GTEST_SKIP() << device->name << " is older than 8.0";
  }
};

// On the default stream; Bytes waits for it. shift: bytes by which the data misses the alignment of
// 256 bytes that allocations have.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::span<const std::byte> host, int64_t shift = 0)
      : begin_(kGuard + shift), size_(static_cast<int64_t>(host.size())) {
    image_.assign(static_cast<size_t>(begin_ + size_ + kGuard), kCanary);
    std::copy(host.begin(), host.end(), image_.begin() + begin_);
    auto buffer = DeviceBuffer::Allocate(static_cast<int64_t>(image_.size()));
    CHECK(buffer.has_value(), "no {} bytes of device memory", image_.size());
    buffer_ = std::move(buffer);
    const GpuResult copied = buffer_->CopyFrom(image_, nullptr);
    EXPECT_TRUE(copied.ok()) << copied.text();
  }

  std::byte* data() const { return buffer_->as<std::byte>() + begin_; }
  // What the device holds now; a changed guard word fails the test.
  std::vector<std::byte> Bytes(const std::string& name) {
    const GpuResult copied = buffer_->CopyTo(image_, nullptr);
    EXPECT_TRUE(copied.ok()) << name << ": " << copied.text();
    const auto canary = [](std::byte b) { return b == kCanary; };
    EXPECT_TRUE(std::all_of(image_.begin(), image_.begin() + begin_, canary))
        << name << ": written before its begin";
    EXPECT_TRUE(std::all_of(image_.end() - kGuard, image_.end(), canary))
        << name << ": written past its end";
    return {image_.begin() + begin_, image_.begin() + begin_ + size_};
  }
  void Set(std::span<const std::byte> host) {
    const GpuResult copied = buffer_->CopyFrom(host, nullptr, begin_);
    EXPECT_TRUE(copied.ok()) << copied.text();
  }

 private:
  static constexpr int64_t kGuard = 256;
  static constexpr std::byte kCanary{0xa5};
  int64_t begin_, size_;
  std::vector<std::byte> image_;
  std::optional<DeviceBuffer> buffer_;
};

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& host, int64_t shift = 0)
      : bytes_(std::as_bytes(std::span(host)), shift) {}
  T* data() const { return reinterpret_cast<T*>(bytes_.data()); }
  std::vector<T> Host(const std::string& name) {
    const std::vector<std::byte> bytes = bytes_.Bytes(name);
    std::vector<T> host(bytes.size() / sizeof(T));
    if (!host.empty()) std::memcpy(host.data(), bytes.data(), bytes.size());
    return host;
  }
  void Set(const std::vector<T>& host) { bytes_.Set(std::as_bytes(std::span(host))); }

 private:
  DeviceBytes bytes_;
};

inline constexpr DType kFloatTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// Floats as elements of float32, float16 or bfloat16, and back.
inline std::vector<std::byte> Encoded(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(DTypeBytes(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kFloat32) {
      std::memcpy(&bytes[4 * i], &values[i], 4);
      continue;
    }
    const uint16_t bits =
        dtype == DType::kFloat16 ? FloatToFloat16(values[i]) : FloatToBFloat16(values[i]);
    std::memcpy(&bytes[2 * i], &bits, 2);
  }
  return bytes;
}
inline std::vector<float> Decoded(DType dtype, const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / static_cast<size_t>(DTypeBytes(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kFloat32) {
      std::memcpy(&values[i], &bytes[4 * i], 4);
      continue;
    }
    uint16_t bits;
    std::memcpy(&bits, &bytes[2 * i], 2);
    values[i] = dtype == DType::kFloat16 ? Float16ToFloat(bits) : BFloat16ToFloat(bits);
  }
  return values;
}
// What the values are once they have been stored as dtype.
inline std::vector<float> Stored(DType dtype, const std::vector<float>& values) {
  return Decoded(dtype, Encoded(dtype, values));
}

inline std::vector<float> NormalFloats(size_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) x = normal(rng);
  return values;
}

// How far a result, computed in float32 with relative error `error` and rounded once to dtype, may
// lie from the reference: half a last place at the worst mantissa, or half the least denormal.
inline double RoundingTolerance(DType dtype, double reference, double error) {
  const double half_place = dtype == DType::kFloat32   ? 0.0
                            : dtype == DType::kFloat16 ? 0x1p-11
                                                       : 0x1p-8;
  const double least = dtype == DType::kFloat16 ? 0x1p-25 : 1e-37;
  return std::fabs(reference) * (half_place + error) * (1 + 0x1p-7) + least;
}

// Fails at the first element that lies further from its reference than allowed.
template <typename Tolerance>
void ExpectClose(const std::vector<float>& got, const std::vector<float>& expected,
                 Tolerance tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double off = std::fabs(double{got[i]} - double{expected[i]});
    const bool same = got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i]));
    ASSERT_TRUE(same || off <= tolerance(expected[i]))
        << "element " << i << ": " << got[i] << ", not " << expected[i] << " within "
        << tolerance(expected[i]);
  }
}

// Empty, or the first index where two arrays of bytes differ.
inline std::string FirstDifference(const std::vector<std::byte>& got,
                                   const std::vector<std::byte>& expected, int element_bytes) {
  if (got.size() != expected.size()) return "sizes differ";
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    return "element " + std::to_string(i / static_cast<size_t>(element_bytes)) + ": byte " +
           std::to_string(static_cast<int>(got[i])) + ", not " +
           std::to_string(static_cast<int>(expected[i]));
  }
  return "";
}

}  // namespace longspan
