// Writes seed inputs for the fuzz targets of model files: FOLDER/gguf, FOLDER/safetensors_header
// and FOLDER/config_json.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/tiny_models.h"

namespace {

namespace fs = std::filesystem;
using longspan::ModelConfig;
using longspan::testing::GgufSpec;

constexpr const char* kModels[] = {"toy_t",
                                   "llama_tied",
                                   "llama_rope_llama3",
                                   "llama_rope_linear",
                                   "llama_rope_yarn",
                                   "mistral_window",
                                   "qwen2",
                                   "qwen3"};

void Write(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

// The smallest model that opens, so that a mutation has a chance to hit its structure.
GgufSpec SmallestGguf(const std::string& name) {
  ModelConfig config = longspan::testing::TinyConfig(name);
  config.vocab_size = 4;
  config.hidden_size = config.intermediate_size = 1;
  config.num_layers = config.num_q_heads = config.num_kv_heads = 1;
  config.head_dim = config.rope.rotary_dim = 16;
  return longspan::testing::TinyGguf(config);
}

void WriteGguf(const fs::path& folder) {
  for (const char* name : {"toy_t", "mistral_window", "qwen2", "qwen3"}) {
    Write(folder / name, SmallestGguf(name).Build());
  }
  GgufSpec yarn = SmallestGguf("toy_t");
  yarn.String("llama.rope.scaling.type", "yarn").F32("llama.rope.scaling.factor", 4.0f);
  yarn.Tensor({"rope_freqs.weight", {8}, 0, std::string(32, '\x3f'), {}});
  Write(folder / "yarn", yarn.Build());
}

void WriteHeaders(const fs::path& folder) {
  const std::string one = R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})";
  const std::string two = R"({"__metadata__":{"format":"pt"},
    "b":{"dtype":"BF16","shape":[3],"data_offsets":[4,10]},
    "a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},
    "c":{"dtype":"F4","shape":[2,3],"data_offsets":[1,4]}})";
  Write(folder / "one", std::string("\x10\x00", 2) + one);
  Write(folder / "two", std::string("\x0a\x00", 2) + two);
  Write(folder / "none", std::string("\x00\x00", 2) + "{}");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_model_seeds FOLDER\n");
    return 2;
  }
  const fs::path folder = argv[1];
  WriteGguf(folder / "gguf");
  WriteHeaders(folder / "safetensors_header");
  for (const char* name : kModels) {
    Write(folder / "config_json" / name, longspan::testing::TinyConfigJson(name).dump(1));
  }
  Write(folder / "config_json" / "generation", R"({"eos_token_id": [1, 2]})");
  Write(folder / "config_json" / "tokenizer",
        R"({"chat_template": [{"name": "default", "template": "x"}]})");
  return 0;
}
