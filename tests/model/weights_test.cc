// Loading weights can be given up between two tensors. What they hold is tested by what the decoder
// computes with them (decoder_test.cc).
#include "model/weights.h"

#include <gtest/gtest.h>

#include "tests/support/tiny_models.h"

namespace longspan {
namespace {

// A source whose reads are counted; at the stop_at-th one somebody asks for the end.
class CountedSource final : public WeightSource {
 public:
  CountedSource(WeightSource& inner, int stop_at) : inner_(inner), stop_at_(stop_at) {}
  const ModelConfig& config() const override { return inner_.config(); }
  const VocabularyData& vocabulary() const override { return inner_.vocabulary(); }
  const WeightTensor* Find(WeightRole role, int32_t layer) const override {
    return inner_.Find(role, layer);
  }
  Status Read(const WeightTensor& tensor, std::span<std::byte> out) override {
    if (++num_reads == stop_at_) cancelled.store(true);
    return inner_.Read(tensor, out);
  }

  std::atomic<bool> cancelled{false};
  int num_reads = 0;

 private:
  WeightSource& inner_;
  const int stop_at_;
};

TEST(Weights, LoadingEndsBeforeTheNextTensorWhenItIsCancelled) {
  const testing::TemporaryFolder folder;
  testing::WriteTinyModel(folder, "toy_t");
  const auto model = OpenModel(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  for (const int stop_at : {1, 5}) {
    CountedSource source(**model, stop_at);
    const auto weights = LoadWeights(source, MatmulPrecision::kFloat32, false, &source.cancelled);
    EXPECT_EQ(weights.status().code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(source.num_reads, stop_at);
  }
  CountedSource whole(**model, -1);
  EXPECT_TRUE(LoadWeights(whole, MatmulPrecision::kFloat32, false, &whole.cancelled).ok());
  EXPECT_GT(whole.num_reads, 5);
}

}  // namespace
}  // namespace longspan
