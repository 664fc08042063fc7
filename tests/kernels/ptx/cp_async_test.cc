// Asynchronous copies against what their comments promise, with values unique per byte.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/runtime/buffer.h"
#include "kernels/runtime/device.h"
#include "tests/kernels/ptx/cp_async_probes.h"

namespace longspan {
namespace {

class CopyAsync : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Widths, CopyAsync, testing::Values(4, 8, 16));

TEST_P(CopyAsync, GroupsArriveInOrderAndSkippedBytesAreZeros) {
  std::string reason;
  const auto found = FindGpuDevice(&reason);
  if (!found) GTEST_SKIP() << "no GPU: " << reason;
  if (found->compute_capability < 80) GTEST_SKIP() << found->name << " is older than 8.0";
  constexpr int kLanes = 4 * 64, kBytes = 16;
  std::vector<uint8_t> from(kLanes * kBytes), num_bytes(kLanes), out(from.size());
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(1 + i * 7 % 251);
  for (size_t i = 0; i < num_bytes.size(); ++i) num_bytes[i] = static_cast<uint8_t>(i % 5 * 4);
  auto device_from = DeviceBuffer::Allocate(static_cast<int64_t>(from.size())).value();
  auto device_bytes = DeviceBuffer::Allocate(static_cast<int64_t>(num_bytes.size())).value();
  auto device_out = DeviceBuffer::Allocate(static_cast<int64_t>(out.size())).value();
  ASSERT_TRUE(device_from.CopyFrom(std::as_bytes(std::span(from)), nullptr).ok());
  ASSERT_TRUE(device_bytes.CopyFrom(std::as_bytes(std::span(num_bytes)), nullptr).ok());
  ProbeCopyAsync(GetParam(), device_from.as<uint8_t>(), device_bytes.as<uint8_t>(),
                 device_out.as<uint8_t>());
  const GpuResult result = device_out.CopyTo(std::as_writable_bytes(std::span(out)), nullptr);
  ASSERT_TRUE(result.ok()) << result.text();
  for (int at = 0; at < kLanes; ++at) {
    const int copied = at ^ 1;  // seen by the neighbour
    for (int i = 0; i < kBytes; ++i) {
      const uint8_t expected = i < num_bytes[copied] ? from[copied * kBytes + i] : 0;
      ASSERT_EQ(out[at * kBytes + i], expected)
          << "group " << at / 64 << " lane " << copied % 64 << " byte " << i;
    }
  }
}

}  // namespace
}  // namespace longspan
