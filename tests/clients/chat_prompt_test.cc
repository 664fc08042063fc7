// ChatML templates are wrapped, all others are left alone.
#include "clients/chat_prompt.h"

#include <gtest/gtest.h>

namespace longspan {
namespace {

constexpr const char* kTemplate =
    "{% for m in messages %}<|im_start|>{{ m.role }}...<|im_end|>{% endfor %}";

TEST(ChatPrompt, WrapsOneUserTurn) {
  EXPECT_EQ(ChatMlPrompt(kTemplate, "", "Hi"),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(ChatMlPrompt(kTemplate, "Be brief.", "Hi"),
            "<|im_start|>system\nBe "
            "brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatPrompt, OtherTemplatesAreNotGuessed) {
  EXPECT_FALSE(ChatMlPrompt("[INST] {{ content }} [/INST]", "", "Hi").has_value());
  EXPECT_FALSE(ChatMlPrompt("", "", "Hi").has_value());
}

}  // namespace
}  // namespace longspan
