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
