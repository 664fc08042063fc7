// The machine's figures exist. Their values are the machine's, so nothing more can be claimed.
#include "core/machine.h"

#include <gtest/gtest.h>

namespace longspan {
namespace {

TEST(Machine, ReportsPositiveFigures) {
  EXPECT_GT(MemoryLimitBytes(), 0);
  EXPECT_GT(ResidentMemoryBytes(), 0);
  EXPECT_LE(ResidentMemoryBytes(), MemoryLimitBytes());
  EXPECT_GE(AvailableCores(), 1);
}

}  // namespace
}  // namespace longspan
