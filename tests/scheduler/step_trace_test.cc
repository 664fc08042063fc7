// Recording loses nothing, and a replayed trace drives the model as the scheduler did.
#include "tests/support/step_trace.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "tests/scheduler/scheduler_harness.h"

namespace longspan {
namespace {

TEST(StepTrace, KeepsEveryFieldOfAnOutput) {
  SchedulerOutput output;
  output.step = StepId{int64_t{1} << 40};
  AdmittedSequence admitted;
  admitted.id = SeqId{7};
  admitted.slot = 3;
  admitted.sampling.temperature = 0.1f;
  admitted.sampling.seed = std::numeric_limits<uint64_t>::max();
  admitted.sampling.logit_bias = {{TokenId{5}, -1e-7f}};
  admitted.sampling.bad_words = {{TokenId{1}, TokenId{2}}, {}};
  admitted.num_history_tokens = 2;
  output.admitted = {admitted};
  output.scheduled = {{SeqId{7}, 3, 16, 1, 0, 1, true, 1}};
  output.copies = {{BlockId{1}, BlockId{2}, 3}};
  output.token_ids = {TokenId{-1}};
  output.history = {TokenId{8}, TokenId{9}};
  output.new_blocks = {BlockId{4}};
  output.released_slots = {0, 1};
  const std::string line = WriteOutputLine(output);
  SchedulerOutput read;
  ASSERT_TRUE(ReadOutputLine(line, read)) << line;
  EXPECT_EQ(WriteOutputLine(read), line);
  EXPECT_EQ(read.step, output.step);
  EXPECT_EQ(read.admitted[0].sampling.seed, admitted.sampling.seed);
  EXPECT_EQ(read.admitted[0].sampling.temperature, 0.1f);
  EXPECT_EQ(read.admitted[0].sampling.logit_bias, admitted.sampling.logit_bias);
  EXPECT_EQ(read.admitted[0].sampling.bad_words, admitted.sampling.bad_words);
  EXPECT_TRUE(read.scheduled[0].samples);
  EXPECT_EQ(read.released_slots, output.released_slots);
}

TEST(StepTrace, KeepsEveryFieldOfAResult) {
  StepResult result;
  result.step = StepId{9};
  result.num_tokens = {1, 0};
  result.token_ids = {TokenId{3}};
  result.logprobs = {{TokenId{3}, -0.3f, {TokenId{4}}, {-std::numeric_limits<float>::infinity()}}};
  result.num_prompt_logprobs = {0, 1};
  result.prompt_logprobs = {{TokenId{6}, -1.5f, {}, {}}};
  result.nonfinite = {SeqId{2}};
  result.kv_bytes_read = 123456789012;
  result.attention_seconds = 0.1;
  result.attention_splits = 7;
  const std::string line = WriteResultLine(result);
  StepResult read;
  ASSERT_TRUE(ReadResultLine(line, read)) << line;
  EXPECT_EQ(WriteResultLine(read), line);
  EXPECT_EQ(read.logprobs[0].logprob, -0.3f);
  EXPECT_EQ(read.logprobs[0].top_logprobs[0], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(read.attention_seconds, 0.1);
  EXPECT_EQ(read.attention_splits, 7);
}

TEST(StepTrace, RefusesWhatIsNotALineOfItsKind) {
  SchedulerOutput output;
  const std::string line = WriteOutputLine(output);
  EXPECT_TRUE(ReadOutputLine(line, output));
  StepResult result;
  EXPECT_FALSE(ReadResultLine(line, result));
  for (size_t length = 0; length < line.size(); ++length) {
    EXPECT_FALSE(ReadOutputLine(std::string_view(line).substr(0, length), output)) << length;
  }
  for (const char* bad : {" 0", "x", " "}) EXPECT_FALSE(ReadOutputLine(line + bad, output));
  EXPECT_FALSE(ReadOutputLine("output 1 99999999999999999 0", output));
  EXPECT_FALSE(ReadOutputLine("output 1 -1 0 0 0 0 0 0", output));
}

TEST(StepTrace, AReplayedTraceGivesTheSameResults) {
  HarnessConfig config;
  config.kv.num_blocks = 30;
  SchedulerHarness harness(config);
  ScriptedModel replay(config.kv.num_blocks, config.kv.block_size, config.vocab_size);
  for (int i = 0; i < 6; ++i) {
    SequenceParams params = Request(Prompt(20, 30 * i), 20);
    params.n = i == 0 ? 3 : 1;
    const SeqId first = harness.Submit(params);
    for (int32_t k = 0; k < params.n; ++k) replay.Register(SeqId{ToInt(first) + k}, params, k);
  }
  std::vector<std::string> lines;
  std::multimap<int64_t, BlockId> freed;  // by the number of steps launched before
  harness.kv.set_freed_listener([&](BlockId block) {
    harness.model.Poison(block);
    freed.emplace(harness.num_steps(), block);
  });
  while (harness.Step()) lines.push_back(WriteOutputLine(harness.last_output()));
  EXPECT_GT(harness.scheduler.stats().num_preemptions, 0);
  EXPECT_GT(harness.model.num_copies(), 0);

  int64_t num_tokens = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto [begin, end] = freed.equal_range(static_cast<int64_t>(i));
    for (auto it = begin; it != end; ++it) replay.Poison(it->second);
    SchedulerOutput output;
    ASSERT_TRUE(ReadOutputLine(lines[i], output));
    replay.Launch(output);  // checks every read
    num_tokens += static_cast<int64_t>(replay.Collect().token_ids.size());
  }
  EXPECT_EQ(num_tokens, 8 * 20);
}

}  // namespace
}  // namespace longspan
