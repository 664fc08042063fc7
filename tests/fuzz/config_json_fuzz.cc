// config.json and its companions from arbitrary text: what is accepted is a config that every later
// step may rely on.
#include <spdlog/spdlog.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/check.h"
#include "model/config_check.h"
#include "model/hf_config.h"
#include "model/weight_names.h"

using namespace longspan;

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  spdlog::set_level(spdlog::level::off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto config = ParseHfConfig(text, "config.json");
  if (!config.ok()) {
    CHECK(config.status().message().size() < 1000 &&
          config.status().message().find('\n') == std::string::npos);
    config = ModelConfig();
  } else {
    CHECK(CheckModelConfig(*config, "config.json").ok());
    CHECK(WantedWeights(*config, WeightNaming::kHuggingFace).size() >= 11);
  }
  // Answers do not matter here, only that there are some.
  ApplyGenerationConfig(text, "generation_config.json", *config).IgnoreError();
  ApplyTokenizerConfig(text, "tokenizer_config.json", *config).IgnoreError();
  return 0;
}
