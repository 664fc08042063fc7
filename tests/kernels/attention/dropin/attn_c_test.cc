// The C functions where they can be called without a GPU: answers, null pointers, texts; with one,
// that a device opens. The kernels behind them have tests of their own.
#include "kernels/attention/dropin/attn_c.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace {

TEST(AttnC, EveryStatusHasItsOwnText) {
  std::set<std::string> texts;
  for (int status = 0; status <= LONGSPAN_ATTN_TREE; ++status) {
    texts.insert(longspan_attn_text(status));
  }
  for (const int status : {LONGSPAN_ATTN_NULL, LONGSPAN_ATTN_STRUCT, LONGSPAN_ATTN_NO_DEVICE}) {
    texts.insert(longspan_attn_text(status));
  }
  EXPECT_EQ(texts.size(), 17u);
  EXPECT_FALSE(texts.contains("unknown"));
  EXPECT_STREQ(longspan_attn_text(-1), "unknown");
  EXPECT_STREQ(longspan_attn_text(77), "unknown");
}

TEST(AttnC, NullPointersAreAnAnswer) {
  longspan_attn_call call = {};
  longspan_attn_choice choice;
  longspan_attn_sizes sizes;
  EXPECT_EQ(longspan_attn_choose(nullptr, 90, &choice), LONGSPAN_ATTN_NULL);
  EXPECT_EQ(longspan_attn_choose(&call, 90, nullptr), LONGSPAN_ATTN_NULL);
  EXPECT_EQ(longspan_attn_open(nullptr), LONGSPAN_ATTN_NULL);
  EXPECT_EQ(longspan_attn_measure(nullptr, &call, &sizes), LONGSPAN_ATTN_NULL);
  EXPECT_EQ(longspan_attn_plan(nullptr, &call, nullptr, nullptr, 0, nullptr), LONGSPAN_ATTN_NULL);
  EXPECT_EQ(longspan_attn_append_run(nullptr, &call, nullptr, nullptr, nullptr),
            LONGSPAN_ATTN_NULL);
  EXPECT_EQ(longspan_attn_run(nullptr, &call, nullptr, nullptr, nullptr, 0, nullptr),
            LONGSPAN_ATTN_NULL);
  EXPECT_EQ(longspan_attn_append_bytes(nullptr, nullptr), 0);
  EXPECT_EQ(longspan_attn_compute_capability(nullptr), 0);
  EXPECT_EQ(longspan_attn_tune(nullptr, "longspan-tune 1\n"), LONGSPAN_ATTN_NULL);
  EXPECT_STREQ(longspan_attn_tuning(nullptr), "");
  longspan_attn_close(nullptr);
}

TEST(AttnC, ACallOfAnotherVersionIsRefusedWithAReason) {
  longspan_attn_call call = {};
  longspan_attn_choice choice;
  EXPECT_EQ(longspan_attn_choose(&call, 90, &choice), LONGSPAN_ATTN_STRUCT);
  EXPECT_STRNE(choice.reason, "");
}

TEST(AttnC, ADeviceOpensOrItsAbsenceIsSaid) {
  longspan_attn_device* device = nullptr;
  const int status = longspan_attn_open(&device);
  if (status == LONGSPAN_ATTN_OK) {
    EXPECT_GE(longspan_attn_compute_capability(device), 80);
    EXPECT_STRNE(longspan_attn_tuning(device), "");
    const std::string before = longspan_attn_tuning(device);
    EXPECT_EQ(longspan_attn_tune(device, nullptr), LONGSPAN_ATTN_NULL);
    EXPECT_EQ(longspan_attn_tune(device, "a table of nobody"), LONGSPAN_ATTN_OPTION);
    EXPECT_EQ(longspan_attn_tuning(device), before);
    longspan_attn_close(device);
  } else {
    EXPECT_EQ(device, nullptr);
    GTEST_SKIP() << longspan_attn_text(status);
  }
}

}  // namespace
