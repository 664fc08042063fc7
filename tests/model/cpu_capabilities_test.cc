// What a name of a precision means with and without the processor's help.
#include "model/cpu_capabilities.h"

#include <gtest/gtest.h>

namespace longspan {
namespace {

TEST(CpuCapabilities, BFloat16IsRefusedWhereTheProcessorHasNone) {
  EXPECT_EQ(*ResolveMatmulPrecision("auto", true), MatmulPrecision::kBFloat16);
  EXPECT_EQ(*ResolveMatmulPrecision("auto", false), MatmulPrecision::kFloat32);
  EXPECT_EQ(*ResolveMatmulPrecision("float32", true), MatmulPrecision::kFloat32);
  EXPECT_EQ(*ResolveMatmulPrecision("bfloat16", true), MatmulPrecision::kBFloat16);
  const Status refused = ResolveMatmulPrecision("bfloat16", false).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(StatusMessage(refused).find("--matmul-precision"), std::string::npos);
}

}  // namespace
}  // namespace longspan
