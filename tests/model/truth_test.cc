// The real model against what transformers computed from the same weights, teacher-forced: every
// step's log-probability and arg-max, once by decoding token by token and once by prefilling the
// whole text. Skipped where the model file is absent; prints the figures that the bars are about.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/check.h"
#include "model/decoder_runner.h"
#include "tests/support/test_model.h"

namespace longspan {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr int32_t kChunk = 512;
constexpr int32_t kMaxLength = 7900 + 64;

// Two, or one where the process is pinned to one processor.
int NumThreads() {
  cpu_set_t allowed;
  CHECK(sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
  return std::min(2, CPU_COUNT(&allowed));
}

struct Step {
  TokenId token{};  // the reference's arg-max
  double logprob = 0.0;
  double margin = 0.0;
};

struct TruthPrompt {
  std::vector<TokenId> tokens;
  std::vector<Step> steps;
};

std::vector<TruthPrompt> LoadTruth() {
  std::ifstream file(LONGSPAN_REFERENCE_DIR "/truth_smollm2.json");
  CHECK(file.good());
  const nlohmann::json truth = nlohmann::json::parse(file);
  std::vector<TruthPrompt> prompts;
  for (const nlohmann::json& entry : truth["prompts"]) {
    TruthPrompt& prompt = prompts.emplace_back();
    const nlohmann::json& document = truth["documents"][entry["document"].get<std::string>()];
    const size_t start = entry["start"], length = entry["length"];
    for (size_t i = start; i < start + length; ++i) prompt.tokens.push_back(TokenId{document[i]});
    for (size_t i = 0; i < entry["ids"].size(); ++i) {
      prompt.steps.push_back({TokenId{entry["ids"][i]}, entry["logprobs"][i], entry["margins"][i]});
    }
  }
  return prompts;
}

// Differences to the reference over all steps.
struct Figures {
  int num_steps = 0;
  double sum = 0.0;
  double max = 0.0;
  int num_flips = 0;
  double max_flip_margin = 0.0;  // of a step where another token was the arg-max

  void Add(const Step& step, const Logprobs& got) {
    double logprob = -INFINITY;
    for (size_t i = 0; i < got.top_ids.size(); ++i) {
      if (got.top_ids[i] == step.token) logprob = got.top_logprobs[i];
    }
    const double difference = std::abs(logprob - step.logprob);
    ++num_steps;
    sum += difference;
    max = std::max(max, difference);
    if (got.top_ids[0] == step.token) return;
    ++num_flips;
    max_flip_margin = std::max(max_flip_margin, step.margin);
  }
  double mean() const { return sum / num_steps; }
};

// One sequence at a time through the runner.
class Forced {
 public:
  Forced(WeightSource& source, MatmulPrecision precision, DType kv_dtype) {
    const int32_t num_blocks = (kMaxLength + kBlockSize - 1) / kBlockSize;
    pool_ = *KvPool::Create(KvPoolShapeOf(source.config(), kv_dtype, kBlockSize, num_blocks));
    auto runner = MakeCpuRunner(source,
                                {.threads = NumThreads(),
                                 .matmul_precision = precision,
                                 .max_num_seqs = 1,
                                 .max_num_batched_tokens = kChunk,
                                 .max_model_len = kMaxLength},
                                *pool_);
    CHECK(runner.ok(), "{}", StatusMessage(runner.status()));
    runner_ = *std::move(runner);
  }

  // Log-probabilities of every step, feeding the reference's token after each.
  std::vector<Logprobs> Decode(const TruthPrompt& prompt) {
    std::vector<Logprobs> out;
    admit_ = true;
    computed_ = 0;
    for (size_t first = 0; first < prompt.tokens.size(); first += kChunk) {
      const size_t end = std::min(prompt.tokens.size(), first + kChunk);
      const bool samples = end == prompt.tokens.size();
      Run({prompt.tokens.data() + first, end - first}, samples ? 1 : 0, samples);
    }
    out.push_back(result_.logprobs.at(0));
    for (size_t i = 0; i + 1 < prompt.steps.size(); ++i) {
      Run({&prompt.steps[i].token, 1}, 1, true);
      out.push_back(result_.logprobs.at(0));
    }
    return out;
  }

  // The same once more, after Decode, as one chunk over cached keys and values: the prompt's last
  // token and all steps' tokens, whose log-probabilities are those of given tokens.
  std::vector<Logprobs> PrefillSteps(const TruthPrompt& prompt) {
    std::vector<TokenId> tokens = {prompt.tokens.back()};
    for (const Step& step : prompt.steps) tokens.push_back(step.token);
    computed_ = static_cast<int32_t>(prompt.tokens.size()) - 1;
    Run(tokens, static_cast<int32_t>(tokens.size()), false);
    return result_.prompt_logprobs;
  }

 private:
  void Run(std::span<const TokenId> tokens, int32_t num_logits, bool samples) {
    SchedulerOutput output;
    if (admit_) {
      output.released_slots.push_back(0);
      AdmittedSequence sequence;
      sequence.id = SeqId{1};
      sequence.sampling.temperature = 0.0f;
      sequence.sampling.num_logprobs = 20;
      sequence.sampling.num_prompt_logprobs = 20;
      output.admitted.push_back(sequence);
      admit_ = false;
      blocks_held_ = 0;
    }
    ScheduledSequence s{.id = SeqId{1}};
    s.num_computed_tokens = computed_;
    s.num_scheduled_tokens = s.num_token_ids = static_cast<int32_t>(tokens.size());
    s.num_logits = num_logits;
    s.samples = samples;
    for (; blocks_held_ * kBlockSize < computed_ + s.num_scheduled_tokens; ++blocks_held_) {
      output.new_blocks.push_back(BlockId{blocks_held_});
      ++s.num_new_blocks;
    }
    output.token_ids.assign(tokens.begin(), tokens.end());
    output.scheduled.push_back(s);
    runner_->Launch(output);
    CHECK(runner_->Collect(result_).ok());
    computed_ += s.num_scheduled_tokens;
  }

  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<DecoderRunner> runner_;
  StepResult result_;
  bool admit_ = false;
  int32_t computed_ = 0;
  int32_t blocks_held_ = 0;
};

struct Bars {
  MatmulPrecision precision;
  double mean, max, margin;
};

class Truth : public ::testing::TestWithParam<Bars> {};

TEST_P(Truth, EveryReferenceStepIsWithinTheBars) {
  const Bars& bars = GetParam();
  const std::string path = testing::TestModelPath();
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << path << " is absent: run scripts/fetch-model or set LONGSPAN_TEST_MODEL";
  }
  const bool bfloat16 = bars.precision == MatmulPrecision::kBFloat16;
  if (bfloat16 && !CpuHasBFloat16()) GTEST_SKIP() << "no bfloat16 products on this processor";
  auto source = OpenModel(path);
  ASSERT_TRUE(source.ok()) << source.status();
  Forced forced(**source, bars.precision, DType::kFloat16);
  Figures figures;
  int different_bits = 0;
  for (const TruthPrompt& prompt : LoadTruth()) {
    const std::vector<Logprobs> decoded = forced.Decode(prompt);
    const std::vector<Logprobs> prefilled = forced.PrefillSteps(prompt);
    ASSERT_EQ(decoded.size(), prompt.steps.size());
    ASSERT_EQ(prefilled.size(), prompt.steps.size());
    for (size_t i = 0; i < prompt.steps.size(); ++i) {
      figures.Add(prompt.steps[i], decoded[i]);
      different_bits += decoded[i].top_ids != prefilled[i].top_ids ||
                        decoded[i].top_logprobs != prefilled[i].top_logprobs;
    }
  }
  std::printf(
      "%s: %d steps, |logprob difference| mean %.5f max %.4f, %d other arg-max, largest "
      "margin %.4f\n",
      bfloat16 ? "bfloat16" : "float32", figures.num_steps, figures.mean(), figures.max,
      figures.num_flips, figures.max_flip_margin);
  EXPECT_GE(figures.num_steps, 1500);
  EXPECT_LE(figures.mean(), bars.mean);
  EXPECT_LE(figures.max, bars.max);
  EXPECT_LT(figures.max_flip_margin, bars.margin);
  EXPECT_EQ(different_bits, 0) << "decoding and prefilling differ";
}

INSTANTIATE_TEST_SUITE_P(Model, Truth,
                         ::testing::Values(Bars{MatmulPrecision::kFloat32, 0.001, 0.02, 0.02},
                                           Bars{MatmulPrecision::kBFloat16, 0.012, 0.15, 0.12}),
                         [](const auto& bars) {
                           return bars.param.precision == MatmulPrecision::kFloat32 ? "float32"
                                                                                    : "bfloat16";
                         });

}  // namespace
}  // namespace longspan
