// The wrappers that 8-bit keys and values need, against scalar references. Skips, saying why,
// without a device of line 9.0.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "kernels/runtime/buffer.h"
#include "kernels/runtime/device.h"
#include "tests/kernels/ptx/narrow_probes.h"

namespace longspan {
namespace {

class NarrowPtx : public testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    const auto device = FindGpuDevice(&reason);
    if (!device) GTEST_SKIP() << "no GPU: " << reason;
    if (device->compute_capability != 90) GTEST_SKIP() << device->name << " is not of line 9.0";
  }

  template <typename T>
  static DeviceBuffer Device(const std::vector<T>& host) {
    DeviceBuffer buffer = DeviceBuffer::Allocate(host.size() * sizeof(T)).value();
    EXPECT_TRUE(buffer.CopyFrom(std::as_bytes(std::span(host)), nullptr).ok());
    return buffer;
  }
  template <typename T>
  static std::vector<T> Host(const DeviceBuffer& buffer) {
    std::vector<T> host(buffer.size_bytes() / sizeof(T));
    const GpuResult result = buffer.CopyTo(std::as_writable_bytes(std::span(host)), nullptr);
    EXPECT_TRUE(result.ok()) << result.text();
    return host;
  }
};

// Every code at every place of a register, exactly, with the sign of zero.
TEST_F(NarrowPtx, Trap_16_EveryCodeBecomesItsFloat16) {
  std::vector<uint32_t> in;
  for (uint32_t code = 0; code < 256; ++code) {
    in.push_back(code | (code * 7 + 3) % 256 << 8 | (code * 11 + 5) % 256 << 16 |
                 (code * 13 + 9) % 256 << 24);
  }
  const DeviceBuffer device_in = Device(in);
  for (const bool is_int8 : {false, true}) {
    DeviceBuffer out = Device(std::vector<uint32_t>(4 * in.size()));
    ProbeNarrow(is_int8, device_in.as<uint32_t>(), static_cast<int32_t>(in.size()),
                out.as<uint32_t>());
    const auto halves = Host<uint32_t>(out);
    for (size_t i = 0; i < in.size(); ++i) {
      auto expect = [&](size_t at, int low_byte, int high_byte) {
        for (const bool high : {false, true}) {
          const auto code = static_cast<uint8_t>(in[i] >> 8 * (high ? high_byte : low_byte));
          const float expected =
              is_int8 ? static_cast<float>(static_cast<int8_t>(code)) : Float8E4M3ToFloat(code);
          const float actual = Float16ToFloat(static_cast<uint16_t>(halves[at] >> (high ? 16 : 0)));
          if (std::isnan(expected)) {
            EXPECT_TRUE(std::isnan(actual)) << int{code};
          } else {
            EXPECT_EQ(actual, expected) << int{code} << " int8 " << is_int8;
            EXPECT_EQ(std::signbit(actual), std::signbit(expected)) << int{code};
          }
        }
      };
      expect(4 * i, 0, 1);
      expect(4 * i + 1, 2, 3);
      expect(4 * i + 2, 0, 2);
      expect(4 * i + 3, 1, 3);
    }
  }
}

TEST_F(NarrowPtx, TransposeMatrixExchangesRowsAndColumns) {
  auto element = [](int row, int column) { return static_cast<uint32_t>(8 * row + column + 1); };
  std::vector<uint32_t> in(32);
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    in[lane] = element(g, 2 * t) | element(g, 2 * t + 1) << 16;
  }
  const DeviceBuffer from = Device(in);
  DeviceBuffer out = Device(std::vector<uint32_t>(32));
  ProbeTransposeMatrix(from.as<uint32_t>(), out.as<uint32_t>());
  const auto transposed = Host<uint32_t>(out);
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    EXPECT_EQ(transposed[lane], element(2 * t, g) | element(2 * t + 1, g) << 16) << lane;
  }
}

TEST_F(NarrowPtx, Log2AndReciprocalAreClose) {
  std::vector<float> in;
  for (int exponent = -125; exponent <= 125; ++exponent) {
    for (const float mantissa : {1.0f, 1.0001f, 1.37f, 1.9999f}) {
      in.push_back(std::ldexp(mantissa, exponent));
    }
  }
  const auto num = static_cast<int32_t>(in.size());
  const DeviceBuffer from = Device(in);
  DeviceBuffer log2 = Device(std::vector<float>(in.size()));
  DeviceBuffer reciprocal = Device(std::vector<float>(in.size()));
  ProbeLog2AndReciprocal(from.as<float>(), num, log2.as<float>(), reciprocal.as<float>());
  const auto logs = Host<float>(log2), inverses = Host<float>(reciprocal);
  for (size_t i = 0; i < in.size(); ++i) {
    const double expected = std::log2(double{in[i]});
    EXPECT_NEAR(logs[i], expected, 5e-7 * (1.0 + std::fabs(expected))) << in[i];
    EXPECT_NEAR(inverses[i] * double{in[i]}, 1.0, 3e-7) << in[i];
  }
}

TEST_F(NarrowPtx, ABarrierWaitsForCopiesOfFourBytes) {
  const DeviceBuffer from = Device(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
  DeviceBuffer out = Device(std::vector<float>(8));
  ProbeCopiesOnABarrier(from.as<float>(), out.as<float>());
  EXPECT_EQ(Host<float>(out), (std::vector<float>{1, 0, 3, 0, 5, 0, 7, 0}));
}

}  // namespace
}  // namespace longspan
