// The PTX wrappers against scalar references with a value of its own per element: a wrong fragment
// map, swizzle or rounding is silent everywhere else.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/dtype.h"
#include "kernels/runtime/buffer.h"
#include "kernels/runtime/device.h"
#include "kernels/runtime/stream.h"
#include "tests/kernels/ptx/ptx_probes.h"

namespace longspan {
namespace {

class Ptx : public testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    const auto device = FindGpuDevice(&reason);
    if (!device) GTEST_SKIP() << "no GPU: " << reason;
    if (device->compute_capability != 90) GTEST_SKIP() << device->name << " is not of line 9.0";
  }

  template <typename T>
  T* Device(const std::vector<T>& host) {
    buffers_.push_back(DeviceBuffer::Allocate(host.size() * sizeof(T)).value());
    EXPECT_TRUE(buffers_.back().CopyFrom(std::as_bytes(std::span(host)), nullptr).ok());
    return buffers_.back().as<T>();
  }
  size_t num_buffers() const { return buffers_.size(); }
  // Of the i-th buffer made; waits for the default stream.
  template <typename T>
  std::vector<T> Host(size_t i) {
    std::vector<T> host(buffers_[i].size_bytes() / sizeof(T));
    const GpuResult result = buffers_[i].CopyTo(std::as_writable_bytes(std::span(host)), nullptr);
    EXPECT_TRUE(result.ok()) << result.text();
    return host;
  }

 private:
  std::vector<DeviceBuffer> buffers_;
};

uint32_t Pair(uint32_t low, uint32_t high) { return low | high << 16; }

TEST_F(Ptx, LoadMatrixGivesEachLaneTheElementsThatItsCommentSays) {
  std::vector<uint16_t> tile(32 * 8);
  for (uint32_t i = 0; i < tile.size(); ++i) tile[i] = static_cast<uint16_t>(i + 1);
  auto element = [&](int matrix, int row, int column) {
    return uint32_t{tile[(8 * matrix + row) * 8 + column]};
  };
  const uint16_t* in = Device(tile);
  uint32_t* out = Device(std::vector<uint32_t>(128));
  for (const bool transposed : {false, true}) {
    ProbeLoadMatrix(in, transposed, out);
    const auto r = Host<uint32_t>(1);
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int m = 0; m < 4; ++m) {
        const uint32_t expected = transposed ? Pair(element(m, 2 * t, g), element(m, 2 * t + 1, g))
                                             : Pair(element(m, g, 2 * t), element(m, g, 2 * t + 1));
        ASSERT_EQ(r[4 * lane + m], expected) << "lane " << lane << " matrix " << m;
      }
    }
  }
}

TEST_F(Ptx, MmaMultipliesTheMatricesThatItsFragmentsMean) {
  for (const bool bfloat16 : {true, false}) {
    auto bits = [&](float x) {
      return uint32_t{bfloat16 ? FloatToBFloat16(x) : FloatToFloat16(x)};
    };
    // Small integers: every product and sum is exact.
    auto a = [](int row, int k) { return static_cast<float>((row * 16 + k) % 37 - 18); };
    auto b = [](int k, int column) { return static_cast<float>((k * 8 + column) % 29 - 14); };
    std::vector<uint32_t> fa(128), fb(64);
    std::vector<float> fc(128);
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 4; ++i) {
        const int row = g + 8 * (i % 2), k = 2 * t + 8 * (i / 2);
        fa[4 * lane + i] = Pair(bits(a(row, k)), bits(a(row, k + 1)));
        fc[4 * lane + i] = static_cast<float>(1000 * lane + i);
      }
      for (int i = 0; i < 2; ++i) {
        fb[2 * lane + i] = Pair(bits(b(2 * t + 8 * i, g)), bits(b(2 * t + 1 + 8 * i, g)));
      }
    }
    const size_t base = bfloat16 ? 0 : 3;
    const uint32_t* device_a = Device(fa);
    const uint32_t* device_b = Device(fb);
    ProbeMma(bfloat16, device_a, device_b, Device(fc));
    const auto c = Host<float>(base + 2);
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
        float expected = fc[4 * lane + i];
        for (int k = 0; k < 16; ++k) expected += a(row, k) * b(k, column);
        ASSERT_EQ(c[4 * lane + i], expected) << "lane " << lane << " register " << i;
      }
    }
  }
}

TEST_F(Ptx, PackRoundsToNearestEvenAndUnpackIsExact) {
  std::vector<float> in = {0.0f,      -0.0f,    1.0f,  1.00390625f,     1.01171875f,
                           -3.14159f, 65504.0f, 1e-7f, 1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f,
                           5.9e-8f,   -2.5e-5f};
  uint32_t state = 1;
  for (int i = 0; i < 1000; ++i) {
    state = state * 1664525u + 1013904223u;
    in.push_back(std::ldexp(static_cast<float>(state >> 8) * 0x1p-24f - 0.5f,
                            static_cast<int>(state % 30) - 15));
  }
  const auto num_pairs = static_cast<int32_t>(in.size() / 2);
  const float* device_in = Device(in);
  uint32_t* out = Device(std::vector<uint32_t>(num_pairs));
  float* back = Device(std::vector<float>(in.size()));
  for (const bool bfloat16 : {true, false}) {
    ProbePack(bfloat16, device_in, num_pairs, out, back);
    const auto packed = Host<uint32_t>(1);
    const auto unpacked = Host<float>(2);
    for (size_t i = 0; i < in.size(); ++i) {
      const auto bits = static_cast<uint16_t>(packed[i / 2] >> (16 * (i % 2)));
      ASSERT_EQ(bits, bfloat16 ? FloatToBFloat16(in[i]) : FloatToFloat16(in[i])) << in[i];
      ASSERT_EQ(unpacked[i], bfloat16 ? BFloat16ToFloat(bits) : Float16ToFloat(bits)) << in[i];
    }
  }
}

TEST_F(Ptx, Exp2IsZeroAtMinusInfinityAndNearElsewhere) {
  std::vector<float> in = {-std::numeric_limits<float>::infinity(), 0.0f};
  for (int i = 1; i <= 4000; ++i) in.push_back(-0.03f * static_cast<float>(i));
  const float* device_in = Device(in);
  ProbeExp2(device_in, static_cast<int32_t>(in.size()), Device(std::vector<float>(in.size())));
  const auto out = Host<float>(1);
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_EQ(out[1], 1.0f);
  for (size_t i = 2; i < in.size(); ++i) {
    ASSERT_NEAR(out[i] / std::exp2(static_cast<double>(in[i])), 1.0, 0x1p-21) << in[i];
  }
}

// [block, token, head, d] with three columns of 64, read as the decode kernel reads it.
TEST_F(Ptx, TmaBringsTheBoxThatTheMapDescribesSwizzled) {
  constexpr int kBlocks = 3, kTokens = 32, kHeads = 2, kDim = 192;
  std::vector<uint16_t> pool(kBlocks * kTokens * kHeads * kDim);
  for (size_t i = 0; i < pool.size(); ++i) pool[i] = static_cast<uint16_t>(i);
  TensorMapShape shape;
  shape.base = Device(pool);
  const int64_t extents[] = {64, kTokens, kDim / 64, kHeads, kBlocks};
  const int64_t strides[] = {kHeads * kDim * 2, 128, kDim * 2, kTokens * kHeads * kDim * 2};
  const int32_t box[] = {64, 16, kDim / 64, 1, 1};
  std::copy(std::begin(extents), std::end(extents), shape.extents);
  std::copy(std::begin(strides), std::end(strides), shape.stride_bytes);
  std::copy(std::begin(box), std::end(box), shape.box);
  TensorMap map;
  ASSERT_TRUE(EncodeTensorMap(shape, &map));
  constexpr int kBytes = 64 * 16 * 3 * 2;
  uint8_t* out = Device(std::vector<uint8_t>(kBytes));
  for (const int first : {0, 16, 24}) {  // the last box reaches behind the block: zeros
    ProbeTmaLoad(map, {0, first, 0, 1, 2}, kBytes, out);
    const auto tile = Host<uint8_t>(1);
    for (int column = 0; column < 3; ++column) {
      for (int row = 0; row < 16; ++row) {
        for (int d = 0; d < 64; ++d) {
          const int token = first + row;
          const size_t from = ((2 * kTokens + token) * kHeads + 1) * kDim + 64 * column + d;
          const int chunk = (d / 8) ^ (row % 8);
          uint16_t actual;
          std::memcpy(&actual, &tile[(column * 16 + row) * 128 + chunk * 16 + d % 8 * 2], 2);
          ASSERT_EQ(actual, token < kTokens ? pool[from] : 0)
              << "first " << first << " column " << column << " row " << row << " d " << d;
        }
      }
    }
  }
}

// Small integers: every product and sum is exact.
float Small(int i, int j) { return static_cast<float>((i * 31 + j * 7) % 23 - 11); }

TEST_F(Ptx, WgmmaMultipliesTheRowsThatItsDescriptorsMean) {
  for (const bool bfloat16 : {true, false}) {
    for (const int columns : {64, 128, 256}) {
      std::vector<uint16_t> a(64 * 64), b(columns * 64);
      auto bits = [&](float x) { return bfloat16 ? FloatToBFloat16(x) : FloatToFloat16(x); };
      for (int i = 0; i < 64 * 64; ++i) a[i] = bits(Small(i / 64, i % 64));
      for (int i = 0; i < columns * 64; ++i) b[i] = bits(Small(i / 64 + 5, i % 64 + 3));
      const uint16_t* device_a = Device(a);
      const uint16_t* device_b = Device(b);
      for (int step = 0; step < 4; ++step) {
        float* device_c = Device(std::vector<float>(64 * columns, 1000.0f));
        ProbeWgmma(bfloat16, columns, device_a, device_b, step, device_c);
        const auto c = Host<float>(num_buffers() - 1);
        for (int row = 0; row < 64; ++row) {
          for (int column = 0; column < columns; ++column) {
            float expected = 0.0f;
            for (int k = 16 * step; k < 16 * step + 16; ++k) {
              expected += Small(row, k) * Small(column + 5, k + 3);
            }
            ASSERT_EQ(c[row * columns + column], expected)
                << "columns " << columns << " step " << step << " at " << row << ", " << column;
          }
        }
      }
    }
  }
}

TEST_F(Ptx, WgmmaAddsWhatATransposedDescriptorMeans) {
  for (const bool bfloat16 : {true, false}) {
    for (const int columns : {64, 128, 256}) {
      std::vector<uint16_t> a(64 * 16), b(64 * columns);
      auto bits = [&](float x) { return bfloat16 ? FloatToBFloat16(x) : FloatToFloat16(x); };
      for (int i = 0; i < 64 * 16; ++i) a[i] = bits(Small(i / 16, i % 16));
      for (int i = 0; i < 64 * columns; ++i) b[i] = bits(Small(i / columns + 5, i % columns + 3));
      const uint16_t* device_a = Device(a);
      const uint16_t* device_b = Device(b);
      for (int step = 0; step < 4; ++step) {
        float* device_c = Device(std::vector<float>(64 * columns, 1000.0f));
        ProbeWgmmaTransposed(bfloat16, columns, device_a, device_b, step, device_c);
        const auto c = Host<float>(num_buffers() - 1);
        for (int row = 0; row < 64; ++row) {
          for (int column = 0; column < columns; ++column) {
            float expected = 1000.0f;
            for (int k = 0; k < 16; ++k) {
              expected += Small(row, k) * Small(16 * step + k + 5, column + 3);
            }
            ASSERT_EQ(c[row * columns + column], expected)
                << "columns " << columns << " step " << step << " at " << row << ", " << column;
          }
        }
      }
    }
  }
}

TEST_F(Ptx, StoredMatricesReachTheBoxThatTheMapDescribes) {
  constexpr int kRows = 150, kHeads = 2;
  TensorMapShape shape;
  shape.base = Device(std::vector<uint16_t>(kRows * kHeads * 64, 0xffff));
  const int64_t extents[] = {64, kRows, 1, kHeads, 1};
  const int64_t strides[] = {kHeads * 128, 128, 128, 128};
  const int32_t box[] = {64, 64, 1, 1, 1};
  std::copy(std::begin(extents), std::end(extents), shape.extents);
  std::copy(std::begin(strides), std::end(strides), shape.stride_bytes);
  std::copy(std::begin(box), std::end(box), shape.box);
  TensorMap map;
  ASSERT_TRUE(EncodeTensorMap(shape, &map));
  std::vector<uint16_t> tile(64 * 64);
  for (size_t i = 0; i < tile.size(); ++i) tile[i] = static_cast<uint16_t>(i + 1);
  ProbeTmaStore(map, {0, 70, 0, 1, 0}, Device(tile));
  const auto out = Host<uint16_t>(0);
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < kHeads * 64; ++i) {
      const bool inside = row >= 70 && row < 134 && i >= 64;
      ASSERT_EQ(out[row * kHeads * 64 + i], inside ? tile[(row - 70) * 64 + i - 64] : 0xffff)
          << row << ", " << i;
    }
  }
}

}  // namespace
}  // namespace longspan
