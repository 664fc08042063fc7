// The sampler against a naive oracle: transforms, masks, log-probabilities, and independence of a
// sequence's tokens from its batch, its slot and its preemptions. Logits here are a hash of the
// tokens so far, a stand-in for a model that is cheap and sensitive to every token.
#include "model/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kernels/random_stream.h"

namespace longspan {
namespace {

constexpr int32_t kVocab = 512;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<TokenId> Tokens(std::initializer_list<int32_t> ids) {
  std::vector<TokenId> tokens;
  for (const int32_t id : ids) tokens.push_back(TokenId{id});
  return tokens;
}

std::vector<float> ModelLogits(std::span<const TokenId> tokens) {
  uint64_t hash = 1;
  for (const TokenId token : tokens)
    hash = hash * 6364136223846793005u + static_cast<uint64_t>(ToInt(token)) + 1;
  std::vector<float> logits(kVocab);
  for (int32_t i = 0; i < kVocab; ++i)
    logits[static_cast<size_t>(i)] = static_cast<float>(6 * UniformAt(hash, 0, i) - 3);
  return logits;
}

AdmittedSequence Admitted(int32_t slot, const SamplingParams& params, int32_t num_prompt_tokens) {
  AdmittedSequence sequence;
  sequence.id = SeqId{slot + 1};
  sequence.slot = slot;
  sequence.sampling = params;
  sequence.num_prompt_tokens = num_prompt_tokens;
  return sequence;
}

// Several sequences that run side by side, as a runner would drive them.
class Batch {
 public:
  explicit Batch(int num_threads = 2) : pool_(num_threads), sampler_(kVocab, 16, num_threads) {}

  // tokens: prompt and, after a preemption, what was generated before.
  void Admit(int32_t slot, const SamplingParams& params, std::vector<TokenId> tokens,
             int32_t num_prompt) {
    const AdmittedSequence sequence = Admitted(slot, params, num_prompt);
    const auto history =
        params.NeedsHistory() ? std::span<const TokenId>(tokens) : std::span<const TokenId>();
    sampler_.Admit(sequence, history);
    running_[slot] = {std::move(tokens), num_prompt};
  }
  void Remove(int32_t slot) { running_.erase(slot); }

  // One token for each running sequence.
  void Step() {
    std::vector<std::vector<float>> logits;
    std::vector<LogitsRow> rows;
    for (auto& [slot, sequence] : running_) logits.push_back(ModelLogits(sequence.tokens));
    size_t next = 0;
    for (auto& [slot, sequence] : running_) {
      rows.push_back({logits[next++], slot,
                      static_cast<int32_t>(sequence.tokens.size()) - sequence.num_prompt});
    }
    std::vector<RowOutcome> outcomes(rows.size());
    sampler_.Run(pool_, rows, outcomes);
    next = 0;
    for (auto& [slot, sequence] : running_) sequence.tokens.push_back(outcomes[next++].token);
  }

  const std::vector<TokenId>& tokens(int32_t slot) const { return running_.at(slot).tokens; }

 private:
  struct Running {
    std::vector<TokenId> tokens;
    int32_t num_prompt = 0;
  };
  ThreadPool pool_;
  Sampler sampler_;
  std::map<int32_t, Running> running_;
};

std::vector<TokenId> Generate(Batch& batch, int32_t slot, int steps) {
  for (int i = 0; i < steps; ++i) batch.Step();
  return batch.tokens(slot);
}

// One row, one outcome.
RowOutcome SampleOnce(const SamplingParams& params, std::span<const float> logits,
                      int32_t position = 0, std::span<const TokenId> history = {},
                      int32_t num_prompt = 0) {
  ThreadPool pool(1);
  Sampler sampler(static_cast<int32_t>(logits.size()), 1, 1);
  sampler.Admit(Admitted(0, params, num_prompt), history);
  const LogitsRow row{logits, 0, position};
  std::vector<RowOutcome> outcomes(1);
  sampler.Run(pool, {&row, 1}, outcomes);
  return outcomes[0];
}

SamplingParams Greedy() {
  SamplingParams params;
  params.temperature = 0.0f;
  return params;
}

TEST(Sampler, Case_030_ASeededSequenceIsTheSameInEveryCompany) {
  SamplingParams seeded;
  seeded.seed = 42;
  seeded.temperature = 0.8f;
  SamplingParams other;
  other.seed = 7;
  const std::vector<TokenId> prompt = Tokens({5, 6, 7});
  constexpr int kSteps = 16;

  Batch alone(1);
  alone.Admit(0, seeded, prompt, 3);
  const std::vector<TokenId> expected = Generate(alone, 0, kSteps);

  for (const int32_t slot : {0, 7, 15}) {
    for (const int threads : {1, 2, 4}) {
      Batch batch(threads);
      for (int32_t neighbour = 0; neighbour < 16; ++neighbour) {
        other.seed = static_cast<uint64_t>(neighbour);
        batch.Admit(neighbour, neighbour == slot ? seeded : other, prompt, 3);
      }
      EXPECT_EQ(Generate(batch, slot, kSteps), expected) << slot << ' ' << threads;
    }
  }

  Batch twins;
  twins.Admit(2, seeded, prompt, 3);
  twins.Admit(9, seeded, prompt, 3);
  EXPECT_EQ(Generate(twins, 2, kSteps), expected);
  EXPECT_EQ(twins.tokens(9), expected);

  Batch preempted;  // leaves after six tokens, another takes the slot, then it comes back elsewhere
  preempted.Admit(4, seeded, prompt, 3);
  const std::vector<TokenId> so_far = Generate(preempted, 4, 6);
  preempted.Admit(4, other, prompt, 3);
  preempted.Step();
  preempted.Admit(11, seeded, so_far, 3);
  EXPECT_EQ(Generate(preempted, 11, kSteps - 6), expected);
}

TEST(Sampler, SequencesOfOneRequestDrawDifferentStreams) {
  SamplingParams params;
  params.seed = 42;
  Batch batch;
  for (int32_t i = 0; i < 8; ++i) {
    params.sequence_index = i;
    batch.Admit(i, params, Tokens({1, 2}), 2);
  }
  for (int step = 0; step < 12; ++step) batch.Step();
  for (int32_t i = 0; i < 8; ++i) {
    for (int32_t j = 0; j < i; ++j) EXPECT_NE(batch.tokens(i), batch.tokens(j));
  }
}

// Greedy decoding with penalties as the definition says, recomputed from the whole text each time.
std::vector<TokenId> PenalizedOracle(const SamplingParams& params, std::vector<TokenId> tokens,
                                     int num_prompt, int steps) {
  for (int step = 0; step < steps; ++step) {
    const std::vector<float> logits = ModelLogits(tokens);
    std::vector<double> penalized(logits.begin(), logits.end());
    for (int32_t id = 0; id < kVocab; ++id) {
      const auto all = std::count(tokens.begin(), tokens.end(), TokenId{id});
      const auto generated = std::count(tokens.begin() + num_prompt, tokens.end(), TokenId{id});
      double& logit = penalized[static_cast<size_t>(id)];
      if (all > 0)
        logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
      if (generated > 0)
        logit -=
            params.presence_penalty + params.frequency_penalty * static_cast<double>(generated);
    }
    const auto best = std::max_element(penalized.begin(), penalized.end());
    tokens.push_back(TokenId{static_cast<int32_t>(best - penalized.begin())});
  }
  return tokens;
}

TEST(Sampler, Case_033_PenaltiesSeePromptAndGeneratedAlsoAfterPreemption) {
  const std::vector<TokenId> prompt = Tokens({7, 7, 7, 7, 7, 300, 11});
  struct Penalties {
    float repetition, presence, frequency;
  };
  for (const Penalties& p : {Penalties{1.3f, 0, 0},
                             {0.5f, 0, 0},
                             {1.0f, 1.5f, 0},
                             {1.0f, 0, -2.0f},
                             {1.2f, -1.0f, 0.7f}}) {
    SamplingParams params = Greedy();
    params.repetition_penalty = p.repetition;
    params.presence_penalty = p.presence;
    params.frequency_penalty = p.frequency;
    const std::vector<TokenId> expected = PenalizedOracle(params, prompt, 7, 40);
    Batch cold;
    cold.Admit(0, params, prompt, 7);
    EXPECT_EQ(Generate(cold, 0, 40), expected)
        << p.repetition << ' ' << p.presence << ' ' << p.frequency;
    Batch preempted;
    preempted.Admit(0, params, prompt, 7);
    const std::vector<TokenId> so_far = Generate(preempted, 0, 13);
    preempted.Remove(0);
    preempted.Admit(5, params, so_far, 7);
    EXPECT_EQ(Generate(preempted, 5, 27), expected);
  }
}

TEST(Sampler, Case_027_BiasReachesTheLastIdAndStaysFinite) {
  const std::vector<float> logits = ModelLogits(Tokens({1}));
  SamplingParams params = Greedy();
  params.logit_bias = {{TokenId{511}, 100.0f}};
  EXPECT_EQ(SampleOnce(params, logits).token, TokenId{511});
  params.temperature = 1.0f;
  params.logit_bias = {{TokenId{3}, std::numeric_limits<float>::max()},
                       {TokenId{3}, std::numeric_limits<float>::max()}};
  const RowOutcome outcome = SampleOnce(params, logits);
  EXPECT_TRUE(outcome.finite);
  EXPECT_EQ(outcome.token, TokenId{3});
}

TEST(Sampler, Fault_R5_AnExtremePenaltyMakesNoInfinities) {
  std::vector<float> logits(kVocab, -5.0f);
  logits[9] = 3.0f;
  SamplingParams params;
  params.repetition_penalty = std::numeric_limits<float>::denorm_min();
  const std::vector<TokenId> history = Tokens({9});
  const RowOutcome outcome = SampleOnce(params, logits, 0, history, 1);
  EXPECT_TRUE(outcome.finite);
  EXPECT_EQ(outcome.token, TokenId{9});
}

TEST(Sampler, OnlyAllowedTokensAreDrawn) {
  SamplingParams params;
  params.temperature = 50.0f;
  params.allowed_token_ids = Tokens({4, 4, 200, 511});
  params.logit_bias = {{TokenId{8}, 100.0f}};
  const std::vector<float> logits = ModelLogits(Tokens({1}));
  std::map<TokenId, int> seen;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    params.seed = seed;
    ++seen[SampleOnce(params, logits).token];
  }
  EXPECT_EQ(seen.size(), 3u);
  EXPECT_TRUE(seen.contains(TokenId{4}) && seen.contains(TokenId{200}) &&
              seen.contains(TokenId{511}));
}

TEST(Sampler, BadWordsOfSeveralTokensAreNotCompleted) {
  std::vector<float> logits(kVocab, 0.0f);
  logits[30] = 9.0f;
  logits[31] = 8.0f;
  SamplingParams params = Greedy();
  params.bad_words = {Tokens({10, 20, 30})};
  const auto next = [&](std::initializer_list<int32_t> history) {
    const std::vector<TokenId> tokens = Tokens(history);
    return ToInt(SampleOnce(params, logits, 0, tokens, 1).token);
  };
  EXPECT_EQ(next({10, 20}), 31);
  EXPECT_EQ(next({20, 10, 20}), 31);
  EXPECT_EQ(next({20}), 30);
  EXPECT_EQ(next({10, 20, 5}), 30);
  EXPECT_EQ(next({20, 10}), 30);
  params.bad_words = {Tokens({30}), Tokens({99, 31})};
  EXPECT_EQ(next({1}), 31);
  EXPECT_EQ(next({99}), 0);
  params.bad_words = {{}};
  EXPECT_EQ(next({1}), 30);
}

TEST(Sampler, BadWordsMatchAcrossGeneratedTokens) {
  SamplingParams params = Greedy();
  Batch plain;
  plain.Admit(0, params, Tokens({3}), 1);
  const std::vector<TokenId> free = Generate(plain, 0, 6);
  params.bad_words = {{free[3], free[4], free[5]}};
  Batch avoiding;
  avoiding.Admit(0, params, Tokens({3}), 1);
  const std::vector<TokenId> avoided = Generate(avoiding, 0, 6);
  EXPECT_TRUE(std::equal(free.begin(), free.begin() + 5, avoided.begin()));
  EXPECT_NE(avoided[5], free[5]);
}

TEST(Sampler, StopIdsAreMaskedUntilMinTokens) {
  std::vector<float> logits(kVocab, 0.0f);
  logits[2] = 9.0f;
  logits[17] = 8.0f;
  logits[40] = 7.0f;
  SamplingParams params = Greedy();
  params.stop_token_ids = Tokens({2, 17});
  params.min_tokens = 3;
  EXPECT_EQ(SampleOnce(params, logits, 0).token, TokenId{40});
  EXPECT_EQ(SampleOnce(params, logits, 2).token, TokenId{40});
  EXPECT_EQ(SampleOnce(params, logits, 3).token, TokenId{2});
}

TEST(Sampler, Fault_R5_WhenEverythingIsMaskedTheBestAllowedTokenIsTaken) {
  std::vector<float> logits = ModelLogits(Tokens({1}));
  SamplingParams params;
  params.allowed_token_ids = Tokens({100, 101, 102});
  params.bad_words = {Tokens({100}), Tokens({101}), Tokens({101})};
  params.stop_token_ids = Tokens({102, 100});
  params.min_tokens = 1;
  logits[101] = 2.9f;
  logits[100] = logits[102] = 1.0f;
  const RowOutcome outcome = SampleOnce(params, logits);
  EXPECT_TRUE(outcome.finite);
  EXPECT_EQ(outcome.token, TokenId{101});
}

TEST(Sampler, Fault_R9_ANonFiniteRowIsReportedAndItsNeighboursKeepTheirBits) {
  constexpr int32_t kRows = 6;
  SamplingParams params;
  params.num_logprobs = 3;
  const auto run = [&](float bad, int32_t at) {
    ThreadPool pool(2);
    Sampler sampler(kVocab, kRows, 2);
    std::vector<std::vector<float>> logits;
    std::vector<LogitsRow> rows;
    for (int32_t slot = 0; slot < kRows; ++slot) {
      params.seed = static_cast<uint64_t>(slot);
      sampler.Admit(Admitted(slot, params, 1), {});
      logits.push_back(ModelLogits(Tokens({slot})));
    }
    if (at >= 0) logits[3][static_cast<size_t>(at)] = bad;
    for (int32_t slot = 0; slot < kRows; ++slot)
      rows.push_back({logits[static_cast<size_t>(slot)], slot, 0});
    std::vector<RowOutcome> outcomes(kRows);
    sampler.Run(pool, rows, outcomes);
    return outcomes;
  };
  const std::vector<RowOutcome> clean = run(0, -1);
  for (const float bad :
       {kNan, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (const int32_t at : {0, 100, 511}) {
      const std::vector<RowOutcome> outcomes = run(bad, at);
      for (size_t i = 0; i < kRows; ++i) {
        EXPECT_EQ(outcomes[i].finite, i != 3);
        if (i == 3) continue;
        EXPECT_EQ(outcomes[i].token, clean[i].token);
        EXPECT_EQ(outcomes[i].logprobs.logprob, clean[i].logprobs.logprob);
        EXPECT_EQ(outcomes[i].logprobs.top_logprobs, clean[i].logprobs.top_logprobs);
      }
    }
  }
}

TEST(Sampler, LogprobsAreOfTheModelsDistributionBeforeTransforms) {
  const std::vector<float> logits = ModelLogits(Tokens({8, 9}));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  const double log_sum = std::log(sum);
  std::vector<int32_t> order(kVocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  for (const int32_t k : {-1, 0, 1, 5, 20}) {
    SamplingParams params;
    params.temperature = 0.3f;
    params.top_k = 2;
    params.num_logprobs = k;
    params.logit_bias = {{TokenId{77}, 100.0f}};
    const RowOutcome outcome = SampleOnce(params, logits);
    EXPECT_EQ(outcome.token, TokenId{77});
    if (k < 0) {
      EXPECT_TRUE(outcome.logprobs.top_ids.empty());
      continue;
    }
    EXPECT_EQ(outcome.logprobs.token, TokenId{77});
    EXPECT_NEAR(outcome.logprobs.logprob, logits[77] - log_sum, 2e-6);
    ASSERT_EQ(outcome.logprobs.top_ids.size(), static_cast<size_t>(k));
    for (size_t i = 0; i < static_cast<size_t>(k); ++i) {
      EXPECT_EQ(ToInt(outcome.logprobs.top_ids[i]), order[i]);
      EXPECT_NEAR(outcome.logprobs.top_logprobs[i], logits[static_cast<size_t>(order[i])] - log_sum,
                  2e-6);
    }
  }
}

TEST(Sampler, AGivenTokenGetsItsPromptLogprobAndNothingIsDrawn) {
  const std::vector<float> logits = ModelLogits(Tokens({8}));
  SamplingParams params;
  params.num_prompt_logprobs = 2;
  params.presence_penalty = 1.0f;  // a given token is not a generated one: nothing is remembered
  ThreadPool pool(1);
  Sampler sampler(kVocab, 1, 1);
  sampler.Admit(Admitted(0, params, 2), Tokens({8, 300}));
  const LogitsRow row{logits, 0, 0, TokenId{300}};
  std::vector<RowOutcome> outcomes(1);
  sampler.Run(pool, {&row, 1}, outcomes);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  EXPECT_EQ(outcomes[0].token, TokenId{300});
  EXPECT_EQ(outcomes[0].logprobs.token, TokenId{300});
  EXPECT_NEAR(outcomes[0].logprobs.logprob, logits[300] - std::log(sum), 2e-6);
  EXPECT_EQ(outcomes[0].logprobs.top_ids.size(), 2u);
}

TEST(TokenHistory, CountsDistinctTokensThroughManyRehashes) {
  TokenHistory history;
  for (int round = 0; round < 2; ++round) {
    history.Reset(3);
    for (int32_t i = 0; i < 5000; ++i) history.Append(TokenId{(i * 37) % 1009 * 48}, i >= 1000);
    ASSERT_EQ(history.counts().size(), 1009u);
    int32_t generated = 0;
    for (const TokenHistory::Count& count : history.counts()) generated += count.num_generated;
    EXPECT_EQ(generated, 4000);
    EXPECT_TRUE(history.EndsWith({}));
    const TokenId last{(4999 * 37) % 1009 * 48};
    EXPECT_TRUE(history.EndsWith({&last, 1}));
  }
}

}  // namespace
}  // namespace longspan
