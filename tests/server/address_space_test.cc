// The figures behind the sentence; that it comes is asserted over a real limit in
// tests/integration/test_bad_input.py.
#include "server/address_space.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>

namespace longspan {
namespace {

TEST(AddressSpace, Fault_D1_ServingTakesAStackForEachThread) {
  const int64_t one = AddressSpaceToServe(1);
  EXPECT_GT(one, kAddressSpaceToStart);
  EXPECT_GT(AddressSpaceToServe(9), one);
  EXPECT_EQ(AddressSpaceToServe(9) - one, 8 * (AddressSpaceToServe(2) - one));
}

TEST(AddressSpace, Fault_D1_ALimitBelowTheNeedIsRefusedWithBothFigures) {
  constexpr int64_t kLimit = int64_t{1} << 60;  // far above what a process has, a sanitizer's too
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  rlimit lower = before;
  lower.rlim_cur = kLimit;
  if (::setrlimit(RLIMIT_AS, &lower) != 0) GTEST_SKIP() << "the limit here is lower already";
  const Status fits = CheckAddressSpace(kLimit);
  const Status refused = CheckAddressSpace(kLimit + 1);
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_TRUE(fits.ok());
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  for (const int64_t figure : {kLimit, kLimit + 1}) {
    EXPECT_NE(StatusMessage(refused).find(std::to_string(figure)), std::string::npos);
  }
}

}  // namespace
}  // namespace longspan
