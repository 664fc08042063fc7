// The C++ fixtures are the models of the reference data: same configs in both spellings, same
// weights.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "model/dummy_model.h"
#include "model/hf_config.h"
#include "tests/support/tiny_models.h"

namespace longspan {
namespace {

using Json = nlohmann::json;

class ReferenceModel : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::ifstream file(std::string(LONGSPAN_REFERENCE_DIR "/tiny_") + GetParam() + ".json");
    data_ = Json::parse(file, nullptr, false);
    ASSERT_TRUE(data_.is_object());
  }
  Json data_;
};

TEST_P(ReferenceModel, BothSpellingsOfItsConfigAreTheFixture) {
  const ModelConfig fixture = testing::TinyConfig(GetParam());
  for (const char* spelling : {"config", "config_as_saved"}) {
    const auto config = ParseHfConfig(data_[spelling].dump(), spelling);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_TRUE(*config == fixture) << spelling;
  }
}

TEST_P(ReferenceModel, WeightsAreTheHash) {
  for (const Json& expected : data_["weights"]) {
    float value = 0.0f;
    FillHashedWeights(expected["tensor"].get<std::string>(), data_["seed"].get<uint64_t>(),
                      expected["index"].get<int64_t>(), {&value, 1});
    EXPECT_EQ(value, expected["value"].get<float>()) << expected;
  }
}

INSTANTIATE_TEST_SUITE_P(, ReferenceModel,
                         ::testing::Values("toy_t", "llama_untied", "llama_tied",
                                           "llama_rope_llama3", "llama_rope_linear",
                                           "llama_rope_yarn", "mistral_window", "qwen2", "qwen3"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace longspan
