// Conversions of 8-bit elements against the scalar ones of core/dtype.h: every code in every byte
// of a word, beside every kind of neighbour.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/dtype.h"
#include "kernels/runtime/buffer.h"
#include "kernels/runtime/device.h"
#include "tests/kernels/ptx/eight_bit_probes.h"

namespace longspan {
namespace {

class EightBit : public testing::TestWithParam<EightBitProbe> {};

INSTANTIATE_TEST_SUITE_P(Conversions, EightBit,
                         testing::Values(EightBitProbe::kFloat8E4M3, EightBitProbe::kFloat8E4M3Bits,
                                         EightBitProbe::kSignedInt8));

TEST_P(EightBit, EveryCodeInEveryByteIsExact) {
  std::string reason;
  const auto found = FindGpuDevice(&reason);
  if (!found) GTEST_SKIP() << "no GPU: " << reason;
  if (found->compute_capability < 80) GTEST_SKIP() << found->name << " is older than 8.0";
  std::vector<uint32_t> words;
  for (const uint32_t neighbour : {0x00u, 0x7fu, 0x80u, 0xffu, 0x01u, 0x95u}) {
    for (uint32_t code = 0; code < 256; ++code) {
      for (int byte = 0; byte < 4; ++byte) {
        const uint32_t others = neighbour * 0x01010101u & ~(0xffu << (8 * byte));
        words.push_back(others | code << (8 * byte));
      }
    }
  }
  std::vector<float> out(words.size() * 4);
  const auto bytes = static_cast<int64_t>(words.size() * 4);
  auto device_words = DeviceBuffer::Allocate(bytes).value();
  auto device_out = DeviceBuffer::Allocate(4 * bytes).value();
  ASSERT_TRUE(device_words.CopyFrom(std::as_bytes(std::span(words)), nullptr).ok());
  ProbeEightBit(GetParam(), device_words.as<uint32_t>(), static_cast<int>(words.size()),
                device_out.as<float>());
  const GpuResult result = device_out.CopyTo(std::as_writable_bytes(std::span(out)), nullptr);
  ASSERT_TRUE(result.ok()) << result.text();
  constexpr int kBytes[] = {0, 2, 1, 3};
  for (size_t i = 0; i < words.size(); ++i) {
    for (int j = 0; j < 4; ++j) {
      const auto code = static_cast<uint8_t>(words[i] >> (8 * kBytes[j]));
      const float expected = GetParam() == EightBitProbe::kSignedInt8
                                 ? static_cast<float>(static_cast<int8_t>(code))
                                 : Float8E4M3ToFloat(code);
      const float got = out[4 * i + j];
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(got)) << "code " << int{code} << " of word " << words[i];
      } else {
        ASSERT_EQ(got, expected) << "code " << int{code} << " of word " << words[i];
      }
    }
  }
}

}  // namespace
}  // namespace longspan
