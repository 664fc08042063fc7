// Start-up with a tiny made-up model: what fits, what does not, and which kind of failure is told.
#include "engine/serving_core.h"

#include <gtest/gtest.h>

#include "tests/support/tiny_models.h"

namespace longspan {
namespace {

// Loads a tiny model with made-up weights and drops it again.
class ServingCoreTest : public ::testing::Test {
 protected:
  ServingCoreTest() {
    folder_.Write("config.json", testing::TinyConfigJson("toy_t").dump());
    options_.model_path = folder_.path();
    options_.dummy_weights = true;
    options_.threads = 1;
    options_.num_blocks = 64;
  }

  Status Load() {
    return ServingCore::Load(options_, clock_, outbox_, observer_, failure_).status();
  }

  class Ignore final : public EngineObserver {
    void OnStats(const EngineStats&) override {}
  };
  testing::TemporaryFolder folder_;
  SteadyClock clock_;
  Outbox outbox_;
  Ignore observer_;
  ServingCoreOptions options_;
  ServingCore::Failure failure_ = ServingCore::Failure::kFiles;
};

TEST_F(ServingCoreTest, WhatFitsLoads) { EXPECT_EQ(Load(), Status()); }

TEST_F(ServingCoreTest, WeightsAndPoolThatFitOnlyAloneAreRefused) {
  options_.memory_limit_bytes = 256 * 1024;  // less than the weights
  const Status status = Load();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(failure_, ServingCore::Failure::kResources);
  EXPECT_NE(StatusMessage(status).find("limit 262144"), std::string::npos) << status;
}

// 64 layers take 10 MB of 13: with 40 % of the limit for the pool it would not fit.
TEST_F(ServingCoreTest, APoolOfItsOwnChoiceFitsBesideTheWeights) {
  nlohmann::json config = testing::TinyConfigJson("toy_t");
  config["num_hidden_layers"] = 64;
  folder_.Write("config.json", config.dump());
  options_.num_blocks = 0;
  options_.engine.scheduler.max_num_seqs = 8;
  options_.engine.scheduler.max_num_batched_tokens = 16;
  options_.memory_limit_bytes = 13'000'000;
  EXPECT_EQ(Load(), Status());
}

TEST_F(ServingCoreTest, WorkspaceThatCannotBeAllocatedIsAResourceError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers end the process when an allocation fails";
#endif
  options_.engine.scheduler.max_num_batched_tokens = 2'000'000'000;
  EXPECT_EQ(Load().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(failure_, ServingCore::Failure::kResources);
}

// The pool is reserved before the weights are read, so what comes before the pool comes before
// both.
TEST_F(ServingCoreTest, ATokenizerThatIsRefusedEndsLoadingBeforeAnythingLarge) {
  options_.num_blocks = 2'000'000'000;  // no machine has them
  EXPECT_EQ(Load().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(failure_, ServingCore::Failure::kResources);
  options_.on_vocabulary = [](const ModelConfig& config, const VocabularyData&) {
    return InvalidArgument("no tokenizer for {} tokens", config.vocab_size);
  };
  EXPECT_EQ(StatusMessage(Load()), "no tokenizer for 512 tokens");
  EXPECT_EQ(failure_, ServingCore::Failure::kFiles);
}

TEST_F(ServingCoreTest, LoadingIsGivenUpWhenItIsCancelled) {
  const std::atomic<bool> cancelled{true};
  options_.cancelled = &cancelled;
  EXPECT_EQ(Load().code(), absl::StatusCode::kCancelled);
}

TEST_F(ServingCoreTest, AnUnknownFaultIsABadOption) {
  options_.fault = "nonsense";
  EXPECT_EQ(Load().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(failure_, ServingCore::Failure::kOptions);
}

TEST(ServingCore, TheMemoryMessageNamesWhatFits) {
  const KvPoolShape pool{.num_layers = 1,
                         .num_kv_heads = 1,
                         .head_dim = 64,
                         .block_size = 4,
                         .num_blocks = 100,
                         .dtype = DType::kFloat16};  // 1,024 bytes a block
  EXPECT_TRUE(CheckMemory(1000, 600, pool, 104000).ok());
  const Status status = CheckMemory(1000, 601, pool, 104000);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(StatusMessage(status),
            "memory: weights 1000, workspace 601 and KV cache 102400 bytes are more than the limit "
            "104000 (at most --kv-blocks 99 fits)");
  EXPECT_NE(StatusMessage(CheckMemory(104000, 600, pool, 104000)).find("no --kv-blocks fits"),
            std::string::npos);
}

TEST(ServingCore, ThePoolIsTheSmallestOfNeedShareOfMemoryAndShareOfTheRest) {
  EXPECT_EQ(ChooseNumBlocks(1000, 16, 4, 64, int64_t{1} << 40, 0), 16);  // 4 sequences of 4 blocks
  EXPECT_EQ(ChooseNumBlocks(1000, 16, 1024, 131072, 1000000, 100000), 400);  // memory decides
  EXPECT_EQ(ChooseNumBlocks(1000, 16, 1024, 131072, 1000000, 700000), 240);  // what is left decides
  EXPECT_EQ(ChooseNumBlocks(1000, 16, 4, 64, 100, 0), 1);                    // never zero
  EXPECT_EQ(ChooseNumBlocks(1000, 16, 4, 64, 100000, 200000), 1);
  EXPECT_EQ(ChooseNumBlocks(1, 1, 4096, 2147483647, int64_t{1} << 50, 0), 2147483647);
}

TEST(ServingCore, AMissingFileIsAFileError) {
  SteadyClock clock;
  Outbox outbox;
  class Ignore final : public EngineObserver {
    void OnStats(const EngineStats&) override {}
  } observer;
  ServingCore::Failure failure = ServingCore::Failure::kOptions;
  ServingCoreOptions options;
  options.model_path = "/nonexistent/model.gguf";
  const auto core = ServingCore::Load(options, clock, outbox, observer, failure);
  EXPECT_FALSE(core.ok());
  EXPECT_EQ(failure, ServingCore::Failure::kFiles);
  EXPECT_NE(StatusMessage(core.status()).find("/nonexistent/model.gguf"), std::string::npos);
}

}  // namespace
}  // namespace longspan
