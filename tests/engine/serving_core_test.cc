#include "engine/serving_core.h"

#include <gtest/gtest.h>

namespace longspan {
namespace {

TEST(ServingCore, ThePoolIsTheSmallerOfNeedAndFortyPercent) {
  EXPECT_EQ(ChooseNumBlocks(1000, 16, 4, 64, int64_t{1} << 40), 16);  // 4 sequences of 4 blocks
  EXPECT_EQ(ChooseNumBlocks(1000, 16, 1024, 131072, 1000000), 400);   // memory decides
  EXPECT_EQ(ChooseNumBlocks(1000, 16, 4, 64, 100), 1);                // never zero
  EXPECT_EQ(ChooseNumBlocks(1, 1, 4096, 2147483647, int64_t{1} << 50), 2147483647);
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
