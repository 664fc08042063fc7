// Sizes at the ends of their types.
#include "core/checked_math.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace longspan {
namespace {

TEST(CheckedMath, OverflowIsNullopt) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(CheckedMul<uint64_t>(kMax, 1), kMax);
  EXPECT_EQ(CheckedMul<uint64_t>(1ull << 32, 1ull << 32), std::nullopt);
  EXPECT_EQ(CheckedMul<int32_t>(std::numeric_limits<int32_t>::min(), -1), std::nullopt);
}

TEST(CheckedMath, CeilDivNearTheTop) {
  EXPECT_EQ(CeilDiv(0, 4), 0);
  EXPECT_EQ(CeilDiv(1, 4), 1);
  EXPECT_EQ(CeilDiv(8, 4), 2);
  EXPECT_EQ(CeilDiv(std::numeric_limits<int32_t>::max(), 2), 1 << 30);
}

}  // namespace
}  // namespace longspan
