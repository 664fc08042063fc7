// The runner as the engine sees it: steps in, tokens and log-probabilities out. Slots come and go,
// blocks are copied, samples stay behind, and one sequence's broken logits end that sequence alone.
#include "model/decoder_runner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/check.h"
#include "tests/support/reference_model.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_models.h"

namespace longspan::testing {
namespace {

constexpr int32_t kBlockSize = 4;
constexpr int32_t kNumBlocks = 256;
constexpr DecoderOptions kOptions{
    .threads = 2, .max_num_seqs = 8, .max_num_batched_tokens = 256, .max_model_len = 256};

std::vector<TokenId> Prompt(int32_t count, int32_t first = 1) {
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(TokenId{(first + i * 7) % 512});
  return tokens;
}

SamplingParams Greedy() {
  SamplingParams params;
  params.temperature = 0.0f;
  return params;
}

// Toy T behind a runner; plays the scheduler for single sequences.
class RunnerTest : public ::testing::Test {
 protected:
  void Open(const std::vector<SafetensorsSpec>& tensors, DType kv_dtype = DType::kFloat32) {
    WriteModelFolder(folder_, TinyConfigJson("toy_t"), tensors);
    auto source = OpenModel(folder_.path());
    ASSERT_TRUE(source.ok()) << source.status();
    source_ = *std::move(source);
    pool_ = *KvPool::Create(KvPoolShapeOf(source_->config(), kv_dtype, kBlockSize, kNumBlocks));
    for (int32_t b = 0; b < kNumBlocks; ++b) pool_->Poison(BlockId{b});
    Restart();
  }
  void SetUp() override { Open(TinyTensors(TinyConfig("toy_t"))); }

  void Restart() {
    auto runner = MakeCpuRunner(*source_, kOptions, *pool_);
    ASSERT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
    next_block_ = 0;
  }

  // The next unused block; odd strides keep neighbours apart.
  BlockId NewBlock() { return BlockId{(next_block_++ * 37) % kNumBlocks}; }

  static void Admit(SchedulerOutput& output, int32_t slot, const SamplingParams& params,
                    const std::vector<TokenId>& tokens, int32_t num_prompt_tokens) {
    AdmittedSequence sequence{.id = SeqId{slot + 1}, .slot = slot, .sampling = params};
    sequence.num_prompt_tokens = num_prompt_tokens;
    if (params.NeedsHistory()) {
      sequence.num_history_tokens = static_cast<int32_t>(tokens.size());
      output.history.insert(output.history.end(), tokens.begin(), tokens.end());
    }
    output.admitted.push_back(sequence);
  }

  // Schedules tokens [computed, computed + ids.size()); num_ids 0 leaves the token to the runner.
  void Schedule(SchedulerOutput& output, int32_t slot, int32_t computed,
                const std::vector<TokenId>& ids, bool samples, int32_t num_logits = -1,
                bool send_ids = true) {
    ScheduledSequence s{.id = SeqId{slot + 1}, .slot = slot};
    s.num_computed_tokens = computed;
    s.num_scheduled_tokens = static_cast<int32_t>(ids.size());
    s.num_token_ids = send_ids ? s.num_scheduled_tokens : 0;
    s.num_logits = num_logits >= 0 ? num_logits : (samples ? 1 : 0);
    s.samples = samples;
    const int32_t held = (computed + kBlockSize - 1) / kBlockSize;
    for (int32_t b = held; b * kBlockSize < computed + s.num_scheduled_tokens; ++b) {
      output.new_blocks.push_back(NewBlock());
      ++s.num_new_blocks;
    }
    if (send_ids) output.token_ids.insert(output.token_ids.end(), ids.begin(), ids.end());
    output.scheduled.push_back(s);
  }

  StepResult Run(const SchedulerOutput& output) {
    StepResult result;
    runner_->Launch(output);
    CHECK(runner_->Collect(result).ok());
    return result;
  }

  // Prompt in chunks, then decoding with or without the ids sent back. Everything that came out.
  struct Generated {
    std::vector<TokenId> tokens;
    std::vector<Logprobs> logprobs;
    std::vector<Logprobs> prompt_logprobs;
  };
  Generated Generate(int32_t slot, const SamplingParams& params, const std::vector<TokenId>& prompt,
                     int32_t chunk, int steps, bool send_ids = true) {
    Generated out;
    const int32_t length = static_cast<int32_t>(prompt.size());
    const bool prompt_logprobs = params.num_prompt_logprobs >= 0;
    const auto take = [&](StepResult result) {
      out.tokens.insert(out.tokens.end(), result.token_ids.begin(), result.token_ids.end());
      for (auto& l : result.logprobs) out.logprobs.push_back(l);
      for (auto& l : result.prompt_logprobs) out.prompt_logprobs.push_back(l);
    };
    for (int32_t first = 0; first < length; first += chunk) {
      SchedulerOutput output;
      if (first == 0) {
        output.released_slots.push_back(slot);
        Admit(output, slot, params, prompt, length);
      }
      const int32_t end = std::min(length, first + chunk);
      Schedule(output, slot, first, {prompt.begin() + first, prompt.begin() + end}, end == length,
               prompt_logprobs ? end - first : -1);
      take(Run(output));
    }
    for (int step = 1; step < steps; ++step) {
      SchedulerOutput output;
      Schedule(output, slot, length + step - 1, {out.tokens.back()}, true, -1, send_ids);
      take(Run(output));
    }
    return out;
  }

  TemporaryFolder folder_;
  std::unique_ptr<WeightSource> source_;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<DecoderRunner> runner_;
  int32_t next_block_ = 0;
};

void ExpectSameBits(const std::vector<Logprobs>& a, const std::vector<Logprobs>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].token, b[i].token);
    EXPECT_EQ(a[i].logprob, b[i].logprob);
    EXPECT_EQ(a[i].top_ids, b[i].top_ids);
    EXPECT_EQ(a[i].top_logprobs, b[i].top_logprobs);
  }
}

TEST_F(RunnerTest, GreedyTokensAndLogprobsAreTheNaiveModels) {
  SamplingParams params = Greedy();
  params.num_logprobs = 0;
  const std::vector<TokenId> prompt = Prompt(30);
  const Generated got = Generate(2, params, prompt, 16, 12);
  ASSERT_EQ(got.tokens.size(), 12u);
  ASSERT_EQ(got.logprobs.size(), 12u);
  std::vector<TokenId> tokens = prompt;
  const ReferenceModel reference(*source_);
  for (size_t i = 0; i < got.tokens.size(); ++i) {
    const std::vector<double> logits = reference.Logits(tokens).back();
    const auto best = std::max_element(logits.begin(), logits.end());
    ASSERT_EQ(ToInt(got.tokens[i]), best - logits.begin());
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit - *best);
    EXPECT_NEAR(got.logprobs[i].logprob, -std::log(sum), 1e-4);
    tokens.push_back(got.tokens[i]);
  }
}

TEST_F(RunnerTest, TheSlotsLastSampleStandsInForIdsThatWereNotSent) {
  SamplingParams params;
  params.seed = 5;
  params.num_logprobs = 3;
  const Generated sent = Generate(0, params, Prompt(9), 9, 20);
  const Generated kept = Generate(1, params, Prompt(9), 9, 20, false);
  EXPECT_EQ(sent.tokens, kept.tokens);
  ExpectSameBits(sent.logprobs, kept.logprobs);
}

TEST_F(RunnerTest, Case_009_PromptLogprobsAreTheSameForEveryChunkSize) {
  SamplingParams params = Greedy();
  params.num_prompt_logprobs = 3;
  const std::vector<TokenId> prompt = Prompt(50);
  const Generated whole = Generate(0, params, prompt, 50, 2);
  ASSERT_EQ(whole.prompt_logprobs.size(), 49u);  // the first token has none
  const auto logits = ReferenceModel(*source_).Logits(prompt);
  for (size_t i = 0; i < 49; ++i) {
    double sum = 0;
    for (const double logit : logits[i]) sum += std::exp(logit);
    EXPECT_EQ(whole.prompt_logprobs[i].token, prompt[i + 1]);
    EXPECT_NEAR(whole.prompt_logprobs[i].logprob,
                logits[i][static_cast<size_t>(ToInt(prompt[i + 1]))] - std::log(sum), 1e-4);
    EXPECT_EQ(whole.prompt_logprobs[i].top_ids.size(), 3u);
  }
  for (const int32_t chunk : {1, 16, 25, 49}) {
    const Generated parts = Generate(3, params, prompt, chunk, 2);
    ExpectSameBits(parts.prompt_logprobs, whole.prompt_logprobs);
    EXPECT_EQ(parts.tokens, whole.tokens);
  }
}

TEST_F(RunnerTest, ACancelledPromptLeavesNothingForTheNextInItsSlot) {
  SamplingParams params = Greedy();
  params.num_prompt_logprobs = 0;
  const Generated expected = Generate(0, params, Prompt(20, 3), 10, 1);
  // Two chunks of another prompt, then its slot is given away at a border where a row was kept.
  SchedulerOutput output;
  Admit(output, 4, params, {}, 50);
  Schedule(output, 4, 0, Prompt(10), false, 10);
  Run(output);
  const Generated after = Generate(4, params, Prompt(20, 3), 10, 1);
  ExpectSameBits(after.prompt_logprobs, expected.prompt_logprobs);
}

TEST_F(RunnerTest, Case_010_RecomputeAfterPreemptionGoesOnWithTheSameTokens) {
  SamplingParams params;
  params.seed = 99;
  params.repetition_penalty = 1.3f;
  params.num_logprobs = 0;
  const std::vector<TokenId> prompt = Prompt(20);
  const Generated alone = Generate(0, params, prompt, 16, 30);
  Generated first = Generate(1, params, prompt, 16, 13);
  std::vector<TokenId> tokens = prompt;
  tokens.insert(tokens.end(), first.tokens.begin(), first.tokens.end());
  SchedulerOutput output;  // all 33 tokens again, in another slot
  output.released_slots = {1};
  Admit(output, 6, params, tokens, 20);
  Schedule(output, 6, 0, tokens, true);
  StepResult result = Run(output);
  for (int step = 0; step < 17; ++step) {
    first.tokens.push_back(result.token_ids.at(0));
    first.logprobs.push_back(result.logprobs.at(0));
    SchedulerOutput next;
    Schedule(next, 6, 33 + step, {first.tokens.back()}, true);
    result = Run(next);
  }
  EXPECT_EQ(first.tokens, alone.tokens);
  ExpectSameBits(first.logprobs, alone.logprobs);
}

TEST_F(RunnerTest, SequencesThatShareThePromptsBlocksDivergeFromACopy) {
  SamplingParams params;
  params.seed = 3;
  const std::vector<TokenId> prompt = Prompt(10);  // two full blocks and half a block
  params.sequence_index = 1;
  const Generated expected = Generate(0, params, prompt, 10, 8);
  params.sequence_index = 0;
  const Generated other = Generate(1, params, prompt, 10, 8);
  ASSERT_NE(expected.tokens, other.tokens);

  // The parent computes the prompt; the child gets its full blocks, a copy of the partial one, and
  // computes the last prompt token itself.
  SchedulerOutput output;
  Admit(output, 2, params, {}, 10);
  Schedule(output, 2, 0, prompt, true);
  const std::vector<BlockId> blocks = output.new_blocks;
  std::vector<TokenId> parent = {Run(output).token_ids.at(0)};
  SchedulerOutput fork;
  params.sequence_index = 1;
  Admit(fork, 5, params, {}, 10);
  const BlockId copy = NewBlock();
  fork.copies.push_back({blocks[2], copy, 1});
  Schedule(fork, 2, 10, {parent.back()}, true);
  ScheduledSequence child{.id = SeqId{6}, .slot = 5, .num_computed_tokens = 9};
  child.num_scheduled_tokens = child.num_token_ids = child.num_logits = 1;
  child.samples = true;
  child.num_new_blocks = 3;
  fork.new_blocks.insert(fork.new_blocks.end(), {blocks[0], blocks[1], copy});
  fork.token_ids.push_back(prompt[9]);
  fork.scheduled.push_back(child);
  StepResult result = Run(fork);
  std::vector<TokenId> forked;
  for (int step = 0; step < 7; ++step) {
    parent.push_back(result.token_ids.at(0));
    forked.push_back(result.token_ids.at(1));
    SchedulerOutput next;
    Schedule(next, 2, 11 + step, {parent.back()}, true);
    Schedule(next, 5, 10 + step, {forked.back()}, true);
    result = Run(next);
  }
  forked.push_back(result.token_ids.at(1));
  EXPECT_EQ(parent, other.tokens);
  EXPECT_EQ(forked, expected.tokens);
}

TEST_F(RunnerTest, ResultsFollowTheScheduledOrderNotTheSlots) {
  const SamplingParams params = Greedy();
  std::vector<std::vector<TokenId>> alone;
  for (int32_t i = 0; i < 3; ++i)
    alone.push_back(Generate(i, params, Prompt(6 + i, 40 * i), 32, 1).tokens);
  SchedulerOutput output;
  output.released_slots = {0, 1, 2};
  for (const int32_t i : {2, 0, 1}) {
    Admit(output, 7 - i, params, {}, 6 + i);
    Schedule(output, 7 - i, 0, Prompt(6 + i, 40 * i), true);
  }
  const StepResult result = Run(output);
  EXPECT_EQ(result.num_tokens, (std::vector<int32_t>{1, 1, 1}));
  EXPECT_EQ(result.token_ids, (std::vector<TokenId>{alone[2][0], alone[0][0], alone[1][0]}));
}

TEST_F(RunnerTest, StepsWithoutTokensOrWithoutLogitsAreLegal) {
  SchedulerOutput empty;
  empty.step = StepId{7};
  empty.released_slots = {3};
  const StepResult nothing = Run(empty);
  EXPECT_EQ(nothing.step, StepId{7});
  EXPECT_TRUE(nothing.token_ids.empty());
  SchedulerOutput middle;
  Admit(middle, 0, Greedy(), {}, 40);
  Schedule(middle, 0, 0, Prompt(16), false);
  const StepResult result = Run(middle);
  EXPECT_EQ(result.num_tokens, std::vector<int32_t>{0});
  EXPECT_TRUE(result.token_ids.empty() && result.logprobs.empty() &&
              result.prompt_logprobs.empty());
  // Keys and values of one token in one layer; the last of the two layers has no rows to attend.
  EXPECT_EQ(result.kv_bytes_read, 16 * pool_->shape().BytesPerToken() / 2);
}

TEST_F(RunnerTest, SplitsAreThoseOfTheLayerThatIsCutMost) {
  DecoderOptions options = kOptions;
  options.max_num_batched_tokens = options.max_model_len = 600;
  options.num_splits = 4;
  runner_ = *MakeCpuRunner(*source_, options, *pool_);
  SchedulerOutput middle;
  Admit(middle, 0, Greedy(), {}, 700);
  Schedule(middle, 0, 0, Prompt(600), false);
  EXPECT_EQ(Run(middle).attention_splits, 2);  // 600 tokens have two parts; the last layer no rows
}

// A NaN in one row of the output matrix breaks every sequence's logits; in one row of the
// embedding, only sequences that hold that token.
TEST_F(RunnerTest, Fault_R9_ANanInTheEmbeddingEndsOnlyTheSequenceThatUsesIt) {
  std::vector<SafetensorsSpec> tensors = TinyTensors(TinyConfig("toy_t"));
  Generated expected = Generate(0, Greedy(), Prompt(12), 12, 10);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (SafetensorsSpec& tensor : tensors) {
    if (tensor.name != "model.embed_tokens.weight") continue;
    std::memcpy(tensor.data.data() + 500 * 64 * sizeof(float), &nan, sizeof(nan));
  }
  TemporaryFolder folder;
  WriteModelFolder(folder, TinyConfigJson("toy_t"), tensors);
  source_ = *OpenModel(folder.path());
  Restart();
  std::vector<TokenId> tokens;
  for (int step = 0; step < 10; ++step) {
    SchedulerOutput output;
    const int32_t computed = step == 0 ? 0 : 11 + step;
    if (step == 0) Admit(output, 2, Greedy(), {}, 12);
    Admit(output, 1, Greedy(), {}, 2);
    Schedule(output, 1, 0, {TokenId{3}, TokenId{500}}, true);
    Schedule(output, 2, computed, step == 0 ? Prompt(12) : std::vector<TokenId>{tokens.back()},
             true);
    const StepResult result = Run(output);
    EXPECT_EQ(result.nonfinite, std::vector<SeqId>{SeqId{2}});
    EXPECT_EQ(result.num_tokens, (std::vector<int32_t>{0, 1}));
    tokens.push_back(result.token_ids.at(0));
  }
  EXPECT_EQ(tokens, expected.tokens);
}

TEST_F(RunnerTest, Fault_R9_ANanInTheOutputMatrixEndsEverySequenceAndTheRunnerLives) {
  std::vector<SafetensorsSpec> tensors = TinyTensors(TinyConfig("toy_t"));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (SafetensorsSpec& tensor : tensors) {
    if (tensor.name == "lm_head.weight") std::memcpy(tensor.data.data(), &nan, sizeof(nan));
  }
  TemporaryFolder folder;
  WriteModelFolder(folder, TinyConfigJson("toy_t"), tensors);
  source_ = *OpenModel(folder.path());
  Restart();
  SamplingParams params;
  params.num_prompt_logprobs = 1;
  for (int repeat = 0; repeat < 3; ++repeat) {
    SchedulerOutput output;
    output.released_slots = {0, 1};
    Admit(output, 0, params, {}, 5);
    Admit(output, 1, Greedy(), {}, 5);
    Schedule(output, 0, 0, Prompt(5), true, 5);
    Schedule(output, 1, 0, Prompt(5), true);
    const StepResult result = Run(output);
    EXPECT_EQ(result.nonfinite, (std::vector<SeqId>{SeqId{1}, SeqId{2}}));
    EXPECT_TRUE(result.token_ids.empty() && result.prompt_logprobs.empty());
  }
  auto checked = kOptions;
  checked.check_weights = true;
  const Status status = MakeCpuRunner(*source_, checked, *pool_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(StatusMessage(status).find("lm_head.weight"), std::string::npos) << status;
}

TEST_F(RunnerTest, CountsItsMemory) {
  // 2 layers, hidden 64, 4 / 2 heads of 16, intermediate 128, vocabulary 512, untied, float32.
  const int64_t floats =
      2 * 512 * 64 + 64 + 2 * (2 * 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128);
  EXPECT_GE(runner_->weights_bytes(), floats * 4);
  EXPECT_LE(runner_->weights_bytes(), floats * 4 * 11 / 10);
  EXPECT_GT(runner_->workspace_bytes(), 0);
  EXPECT_EQ(KvPoolShapeOf(source_->config(), DType::kFloat16, 1, 1).BytesPerToken(),
            2 * 2 * 2 * 16 * 2);
}

TEST(MakeCpuRunner, OptionsBelowOneAreRefusedByName) {
  TemporaryFolder folder;
  WriteTinyModel(folder, "toy_t");
  const auto source = *OpenModel(folder.path());
  const auto pool = *KvPool::Create(KvPoolShapeOf(source->config(), DType::kFloat32, 4, 4));
  for (int32_t DecoderOptions::*field :
       {&DecoderOptions::max_num_seqs, &DecoderOptions::max_num_batched_tokens,
        &DecoderOptions::max_model_len}) {
    DecoderOptions options = kOptions;
    options.*field = 0;
    EXPECT_EQ(MakeCpuRunner(*source, options, *pool).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace longspan::testing
