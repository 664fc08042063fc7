// The bound on undelivered tokens, with both sides racing (for ThreadSanitizer too), and the
// outbox.
#include "engine/token_stream.h"

#include <gtest/gtest.h>

#include <thread>

namespace longspan {
namespace {

TEST(TokenStream, PausesPastItsBoundAndResumesBelowHalf) {
  TokenStream stream(8);
  stream.AddPending(8);
  EXPECT_FALSE(stream.PauseIfBehind());
  stream.AddPending(1);
  EXPECT_TRUE(stream.PauseIfBehind());
  EXPECT_FALSE(stream.TakeDelivered(4));  // 5 left: more than half
  EXPECT_TRUE(stream.TakeDelivered(1));
  EXPECT_FALSE(stream.TakeDelivered(1));  // said once
}

// Whatever the interleaving, a paused reader that takes everything is reported exactly once per
// pause.
TEST(TokenStream, NoPauseIsForgotten) {
  TokenStream stream(4);
  constexpr int kTokens = 20000;
  std::atomic<bool> paused{false};
  std::thread reader([&] {
    int64_t taken = 0;
    while (taken < kTokens) {
      const int64_t pending = stream.pending_tokens();
      if (pending == 0) {
        std::this_thread::yield();
        continue;
      }
      taken += pending;
      if (stream.TakeDelivered(pending)) paused.store(false);
    }
  });
  for (int i = 0; i < kTokens; ++i) {
    while (paused.load()) std::this_thread::yield();
    stream.AddPending(1);
    // Set before asking: the reader may answer before PauseIfBehind returns.
    paused.store(true);
    if (!stream.PauseIfBehind()) paused.store(false);
  }
  reader.join();
  EXPECT_EQ(stream.pending_tokens(), 0);
}

TEST(Outbox, PopReturnsWhatIsLeftAfterClose) {
  Outbox outbox;
  std::vector<StreamEvent> events(2);
  outbox.Push(events);
  EXPECT_TRUE(events.empty());
  outbox.Close();
  EXPECT_TRUE(outbox.Pop(events));
  EXPECT_EQ(events.size(), 2u);
  EXPECT_FALSE(outbox.Pop(events));
}

}  // namespace
}  // namespace longspan
