// Prefix reuse seen from outside: what is found, that it changes no token, and who may find it.
#include <gtest/gtest.h>

#include <random>

#include "tests/scheduler/scheduler_harness.h"

namespace longspan {
namespace {

HarnessConfig Config(int32_t block_size) {
  HarnessConfig config;
  config.kv.block_size = block_size;
  config.kv.num_blocks = 256 / block_size;
  return config;
}

class SchedulerPrefixCache : public testing::TestWithParam<int32_t> {};  // block size

TEST_P(SchedulerPrefixCache, Case_001_AHitAndAMissInOneBatch) {
  SchedulerHarness harness(Config(GetParam()));
  harness.Submit(Request(Prompt(32), 8));
  harness.RunUntilIdle();
  std::vector<TokenId> extended = Prompt(32);
  extended.push_back(TokenId{100});
  const SeqId hit = harness.Submit(Request(extended, 8));
  const SeqId miss = harness.Submit(Request(Prompt(41, 200), 8));
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(hit).num_cached_tokens, 32);
  EXPECT_EQ(harness.outcome(miss).num_cached_tokens, 0);
  EXPECT_EQ(harness.outcome(hit).started_step, harness.outcome(miss).started_step);
  EXPECT_EQ(harness.outcome(hit).tokens, harness.ExpectedTokens(hit));
  EXPECT_EQ(harness.outcome(miss).tokens, harness.ExpectedTokens(miss));
}

TEST_P(SchedulerPrefixCache, Case_002_AFullyCachedPromptComputesAtLeastOneToken) {
  const int32_t block_size = GetParam();
  for (const int32_t length : {15, 16, 17, 31, 32, 33, 1, block_size, block_size + 1}) {
    SchedulerHarness harness(Config(block_size));
    std::vector<TokenId> first_run;
    int64_t blocks_after_second = 0;
    for (int run = 1; run <= 3; ++run) {
      const SeqId id = harness.Submit(Request(Prompt(length), 3));
      const int64_t computed = harness.model.num_tokens_computed();
      harness.RunUntilIdle();
      const int32_t cached = run == 1 ? 0 : block_size * ((length - 1) / block_size);
      EXPECT_EQ(harness.outcome(id).num_cached_tokens, cached) << length;
      EXPECT_EQ(harness.model.num_tokens_computed() - computed, length - cached + 2);
      EXPECT_EQ(harness.outcome(id).tokens, harness.ExpectedTokens(id));
      const KvCacheStats stats = harness.scheduler.stats().kv;
      if (run == 2) blocks_after_second = stats.num_evictable;
      if (run == 3) {
        EXPECT_EQ(stats.num_evictable, blocks_after_second);
      }
      EXPECT_EQ(stats.num_held, 0);
    }
    std::vector<TokenId> longer = Prompt(length);
    longer.push_back(TokenId{400});
    const SeqId next = harness.Submit(Request(longer, 3));
    harness.RunUntilIdle();
    EXPECT_EQ(harness.outcome(next).num_cached_tokens, block_size * (length / block_size));
    EXPECT_EQ(harness.outcome(next).tokens, harness.ExpectedTokens(next));
  }
}

TEST_P(SchedulerPrefixCache, Case_006_ACanaryStaysTheSameForAThousandRequests) {
  HarnessConfig config = Config(GetParam());
  config.kv.num_blocks = std::max(2, 160 / GetParam());  // 160 tokens: eviction all the time
  config.check_invariants = false;
  SchedulerHarness harness(config);
  std::mt19937 rng(6);
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(rng);
  };
  std::vector<std::vector<TokenId>> templates;
  for (int i = 0; i < 20; ++i) {
    // One to three shared parts, aligned to blocks or not.
    std::vector<TokenId> prompt;
    for (int part = 0, parts = draw(1, 3); part < parts; ++part) {
      const std::vector<TokenId> piece = Prompt(draw(0, 1) ? 16 : draw(3, 21), 40 * draw(0, 3));
      prompt.insert(prompt.end(), piece.begin(), piece.end());
    }
    templates.push_back(prompt);
  }
  const SequenceParams canary = Request(Prompt(20), 8);
  std::vector<TokenId> answer;
  std::vector<SeqId> ids;
  for (int i = 0; i < 1000; ++i) {
    ids.push_back(
        harness.Submit(Request(templates[static_cast<size_t>(draw(0, 19))], draw(1, 12))));
    for (int steps = draw(0, 4); steps > 0; --steps) harness.Step();
    if (draw(0, 9) == 0) {
      harness.scheduler.Abort(ids[static_cast<size_t>(draw(0, i))], FinishReason::kCancelled);
    }
    if (i % 20 != 0) continue;
    const SeqId id = harness.Submit(canary);
    while (!harness.outcome(id).finished) ASSERT_TRUE(harness.Step());
    EXPECT_EQ(harness.outcome(id).tokens, harness.ExpectedTokens(id));
    if (answer.empty()) answer = harness.outcome(id).tokens;
    EXPECT_EQ(harness.outcome(id).tokens, answer);
  }
  harness.RunUntilIdle();
  harness.scheduler.CheckInvariants();
  const KvCacheStats stats = harness.scheduler.stats().kv;
  EXPECT_GT(stats.hit_tokens, 0);
  EXPECT_GT(stats.evicted_blocks, 0);
  EXPECT_EQ(stats.num_held, 0);
}

INSTANTIATE_TEST_SUITE_P(BlockSizes, SchedulerPrefixCache, testing::Values(1, 4, 16, 32));

TEST(SchedulerPrefixCacheRules, AConversationFindsWhatItGenerated) {
  SchedulerHarness harness;
  const SeqId first = harness.Submit(Request(Prompt(18), 15));
  harness.RunUntilIdle();
  std::vector<TokenId> next = Prompt(18);
  const auto& reply = harness.outcome(first).tokens;
  next.insert(next.end(), reply.begin(), reply.end());
  const SeqId second = harness.Submit(Request(next, 3));
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(second).num_cached_tokens, 32);  // 32 of the 33 tokens were computed
  EXPECT_EQ(harness.outcome(second).tokens, harness.ExpectedTokens(second));
}

TEST(SchedulerPrefixCacheRules, Fault_I1_SaltsShareNothing) {
  SchedulerHarness harness;
  SequenceParams params = Request(Prompt(40), 4);
  std::map<std::string, int32_t> cached;
  for (const char* salt : {"a", "b", "", "a", "b"}) {
    params.cache_salt = salt;
    const SeqId id = harness.Submit(params);
    harness.RunUntilIdle();
    const int32_t expected = cached.contains(salt) ? 36 : 0;
    EXPECT_EQ(harness.outcome(id).num_cached_tokens, expected) << salt;
    EXPECT_EQ(harness.outcome(id).tokens, harness.ExpectedTokens(id));
    cached[salt] = 36;
  }
}

BlockHash OneHash(const BlockHash&, std::span<const TokenId>) { return {1, 1}; }

TEST(SchedulerPrefixCacheRules, Fault_I7_CollidingHashesShareNoBlock) {
  HarnessConfig config;
  config.kv.hash = &OneHash;
  SchedulerHarness harness(config);
  // Different prompts, and one whose second block equals another's second block.
  std::vector<TokenId> twin = Prompt(20);
  for (size_t i = 0; i < 4; ++i) twin[i] = TokenId{400};
  for (const auto& prompt : {Prompt(20), Prompt(20, 100), twin}) {
    SequenceParams params = Request(prompt, 4);
    for (const char* salt : {"", "other"}) {
      params.cache_salt = salt;
      const SeqId id = harness.Submit(params);
      harness.RunUntilIdle();
      EXPECT_EQ(harness.outcome(id).num_cached_tokens, 0);
      EXPECT_EQ(harness.outcome(id).tokens, harness.ExpectedTokens(id));
    }
  }
  const SeqId again = harness.Submit(Request(Prompt(20), 4));
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(again).num_cached_tokens, 16);
}

// The scripted model poisons every block that the listener names, and refuses to read poison.
TEST(SchedulerPrefixCacheRules, Fault_I3_NothingStaleIsReadFromPoisonedBlocks) {
  for (const bool prefix_cache : {true, false}) {
    HarnessConfig config;
    config.kv.num_blocks = 20;
    config.kv.enable_prefix_cache = prefix_cache;
    SchedulerHarness harness(config);
    std::vector<SeqId> ids;
    for (int i = 0; i < 60; ++i) {
      ids.push_back(harness.Submit(Request(Prompt(5 + i % 30, 7 * (i % 5)), 1 + i % 20)));
    }
    harness.RunUntilIdle();
    for (const SeqId id : ids) EXPECT_EQ(harness.outcome(id).tokens, harness.ExpectedTokens(id));
  }
}

TEST(SchedulerPrefixCacheRules, BypassNeitherReadsNorWrites) {
  SchedulerHarness harness;
  SequenceParams params = Request(Prompt(20), 4);
  params.use_prefix_cache = false;
  harness.Submit(params);
  harness.RunUntilIdle();
  EXPECT_EQ(harness.scheduler.stats().kv.num_evictable, 0);
  harness.Submit(Request(Prompt(20), 4));
  harness.RunUntilIdle();
  const SeqId id = harness.Submit(params);
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(id).num_cached_tokens, 0);
  EXPECT_EQ(harness.scheduler.stats().kv.hit_tokens, 0);
}

TEST(SchedulerPrefixCacheRules, OfTwoThatComputeAPrefixAtOnceOnePublishes) {
  SchedulerHarness harness;
  for (int i = 0; i < 2; ++i) harness.Submit(Request(Prompt(13), 4));
  harness.Step();
  EXPECT_EQ(harness.scheduler.stats().kv.num_held, 8);  // each has its own four
  harness.RunUntilIdle();
  EXPECT_EQ(harness.scheduler.stats().kv.num_evictable, 4);
}

TEST(SchedulerPrefixCacheRules, CachedTokensAreThoseOfTheFirstAdmission) {
  HarnessConfig config;
  config.scheduler.max_num_seqs = 1;
  SchedulerHarness harness(config);
  const SeqId low = harness.Submit(Request(Prompt(21), 10));
  for (int i = 0; i < 5; ++i) harness.Step();
  SequenceParams high = Request(Prompt(5, 90), 2);
  high.priority = 1;
  harness.Submit(high);
  const int64_t computed = harness.model.num_tokens_computed();
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(low).num_preemptions, 1);
  EXPECT_EQ(harness.outcome(low).num_cached_tokens, 0);
  // It found its own blocks again: far less than prompt and output was computed anew.
  EXPECT_LT(harness.model.num_tokens_computed() - computed, 6 + 15);
  EXPECT_EQ(harness.scheduler.stats().kv.hit_tokens, 0);
}

// Fewer full blocks than a hash walk would like: a prompt that waits is not hashed in every step.
int64_t g_num_hashes = 0;
BlockHash CountingHash(const BlockHash& parent, std::span<const TokenId> tokens) {
  ++g_num_hashes;
  return PrefixCache::DefaultHash(parent, tokens);
}

TEST(SchedulerPrefixCacheRules, HashesABlockOnceToFindAndOnceToPublishIt) {
  HarnessConfig config;
  config.kv.hash = &CountingHash;
  SchedulerHarness harness(config);
  g_num_hashes = 0;
  harness.Submit(Request(Prompt(100), 20));
  harness.RunUntilIdle();
  EXPECT_EQ(g_num_hashes, 1 + 119 / 4);  // the first miss, then each full block
  g_num_hashes = 0;
  harness.Submit(Request(Prompt(100), 1));
  harness.RunUntilIdle();
  EXPECT_EQ(g_num_hashes, 24 + 1);  // 24 found, the 25th is computed again
}

TEST(SchedulerPrefixCacheRules, AWaitingPromptIsNotHashedInEveryStep) {
  HarnessConfig config;
  config.kv.hash = &CountingHash;
  SchedulerHarness harness(config);
  harness.Submit(Request(Prompt(100), 0));  // cached, so that the lookup has a long way to go
  harness.RunUntilIdle();
  const SeqId running = harness.Submit(Request(Prompt(60, 300), 120));
  harness.Step();
  std::vector<TokenId> prompt = Prompt(200, 100);
  for (int i = 0; i < 100; ++i) prompt[static_cast<size_t>(i)] = TokenId{1 + i};
  const SeqId waiting = harness.Submit(Request(prompt, 4));  // 50 blocks, 49 are there
  for (int i = 0; i < 4; ++i) harness.Step();
  g_num_hashes = 0;
  int64_t steps = 0;
  while (!harness.outcome(running).finished) {
    EXPECT_FALSE(harness.outcome(waiting).started);
    harness.Step();
    ++steps;
  }
  ASSERT_GT(steps, 100);
  EXPECT_LE(g_num_hashes,
            (steps / 16 + 1) * 26 + steps / 4 + 1);  // lookups, and what was published
  harness.RunUntilIdle();
  EXPECT_EQ(harness.outcome(waiting).tokens, harness.ExpectedTokens(waiting));
}

// All the work that time to first token is made of: steps, tokens and hashes of a prompt that
// another salt has cached are those of a prompt that nobody has.
TEST(SchedulerPrefixCacheRules, Fault_I1_AnotherSaltsCacheChangesNoWork) {
  struct Work {
    int64_t steps, tokens, hashes, hits;
    bool operator==(const Work&) const = default;
  };
  HarnessConfig config;
  config.kv.hash = &CountingHash;
  config.kv.num_blocks = 4096;
  for (const int32_t length : {1, 4, 5, 40, 200}) {
    SchedulerHarness harness(config);
    const auto run = [&](std::vector<TokenId> prompt, const char* salt) {
      SequenceParams params = Request(std::move(prompt), 1);
      params.cache_salt = salt;
      const Work before{harness.num_steps(), harness.model.num_tokens_computed(), g_num_hashes,
                        harness.scheduler.stats().kv.hit_tokens};
      const SeqId id = harness.Submit(params);
      harness.RunUntilIdle();
      EXPECT_EQ(harness.outcome(id).tokens, harness.ExpectedTokens(id));
      return Work{harness.num_steps() - before.steps,
                  harness.model.num_tokens_computed() - before.tokens, g_num_hashes - before.hashes,
                  harness.scheduler.stats().kv.hit_tokens - before.hits};
    };
    const Work first = run(Prompt(length), "a");
    const Work across = run(Prompt(length), "b");
    EXPECT_EQ(across, first) << length;
    EXPECT_EQ(run(Prompt(length, 300), "b"), first) << length;
    EXPECT_EQ(run(Prompt(length), "a") == first, length <= 4) << "a hit would show";
  }
}

TEST(SchedulerPrefixCacheRules, Fault_C2_ACancelledPrefillLeavesWholeBlocksOnly) {
  for (int chunks = 1; chunks <= 12; ++chunks) {
    for (const int32_t chunk : {16, 7}) {
      HarnessConfig config;
      config.scheduler.max_prefill_chunk = chunk;
      SchedulerHarness harness(config);
      const SeqId id = harness.Submit(Request(Prompt(200), 5));
      for (int i = 0; i < chunks; ++i) harness.Step();
      EXPECT_TRUE(harness.scheduler.Abort(id, FinishReason::kCancelled));
      const int64_t computed = harness.model.num_tokens_computed();
      EXPECT_EQ(computed, chunks * chunk);
      EXPECT_FALSE(harness.Step());  // not one chunk more
      EXPECT_EQ(harness.model.num_tokens_computed(), computed);
      EXPECT_TRUE(harness.outcome(id).tokens.empty());
      const KvCacheStats stats = harness.scheduler.stats().kv;
      EXPECT_EQ(stats.num_held, 0);
      EXPECT_EQ(stats.num_evictable, computed / 4);  // the complete ones
      const SeqId again = harness.Submit(Request(Prompt(200), 5));
      harness.RunUntilIdle();
      EXPECT_EQ(harness.outcome(again).num_cached_tokens, computed / 4 * 4);
      EXPECT_EQ(harness.outcome(again).tokens, harness.ExpectedTokens(again));
    }
  }
}

// Random streams, penalties and stop ids are functions of the tokens, whatever the way there.
TEST(SchedulerPrefixCacheRules, Case_033_HistoryIsTheSameColdWarmPreemptedAndChunked) {
  SequenceParams params = Request(Prompt(26), 8);
  for (size_t i = 3; i < 8; ++i) params.prompt[i] = TokenId{7};
  params.sampling.repetition_penalty = 1.3f;
  const std::vector<TokenId> expected = ScriptedModel::Expected(params, 0, 512, 256);
  for (const int32_t chunk : {1, 5, 16, 64}) {
    HarnessConfig config;
    config.scheduler.max_prefill_chunk = chunk;
    config.scheduler.max_num_seqs = 1;
    SchedulerHarness harness(config);
    std::vector<SeqId> ids = {harness.Submit(params)};  // cold
    harness.RunUntilIdle();
    ids.push_back(harness.Submit(params));  // warm, full hit
    harness.RunUntilIdle();
    SequenceParams partly = params;
    partly.cache_salt = "partly";
    partly.prompt.resize(13);
    partly.max_tokens = 0;
    harness.Submit(partly);
    harness.RunUntilIdle();
    partly = params;
    partly.cache_salt = "partly";
    const SeqId partial = harness.Submit(partly);  // warm, partial hit
    harness.RunUntilIdle();
    EXPECT_EQ(harness.outcome(partial).num_cached_tokens, 12);
    EXPECT_EQ(harness.outcome(partial).tokens, harness.ExpectedTokens(partial));
    ids.push_back(harness.Submit(params));  // preempted after four tokens
    while (harness.outcome(ids.back()).tokens.size() < 4) ASSERT_TRUE(harness.Step());
    SequenceParams high = Request(Prompt(3, 300), 1);
    high.priority = 1;
    harness.Submit(high);
    harness.RunUntilIdle();
    EXPECT_EQ(harness.outcome(ids.back()).num_preemptions, 1);
    for (const SeqId id : ids) EXPECT_EQ(harness.outcome(id).tokens, expected) << chunk;
  }
}

// What the sampler is told is the same for a seeded request in any company.
TEST(SchedulerPrefixCacheRules, Case_030_ASeededRequestIsTheSameInAnyCompany) {
  SequenceParams seeded = Request(Prompt(14), 16);
  seeded.sampling.temperature = 0.8f;
  seeded.sampling.seed = 42;
  const std::vector<TokenId> expected = ScriptedModel::Expected(seeded, 0, 512, 256);
  for (int place = 0; place < 8; ++place) {
    for (const int32_t num_blocks : {64, 24}) {  // with and without preemption
      HarnessConfig config;
      config.kv.num_blocks = num_blocks;
      SchedulerHarness harness(config);
      std::vector<SeqId> copies;
      for (int i = 0; i < 8; ++i) {
        SequenceParams other = Request(Prompt(10 + i, 20 * i), 16);
        other.sampling.temperature = 1.0f;
        other.sampling.seed = i % 2 == 0 ? 7 : 1000 + static_cast<uint64_t>(i);
        if (i == place || i == 7) {
          copies.push_back(harness.Submit(seeded));
        } else {
          harness.Submit(other);
        }
      }
      harness.RunUntilIdle();
      for (const SeqId id : copies) EXPECT_EQ(harness.outcome(id).tokens, expected);
    }
  }
}

}  // namespace
}  // namespace longspan
