// Where weights come from: one view over GGUF and safetensors, by role instead of by file name.
// Opened files are fully checked before the first tensor is read; data are read, not mapped, so a
// file that changes later has no effect.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "kernels/matmul.h"
#include "model/model_config.h"
#include "model/vocabulary_data.h"

namespace longspan {

enum class WeightRole : uint8_t {
  kTokenEmbedding,   // [vocab, hidden]
  kOutput,           // [vocab, hidden]; absent when embeddings are tied
  kOutputNorm,       // [hidden]
  kAttentionNorm,    // [hidden], per layer, as all below
  kQuery,            // [num_q_heads * head_dim, hidden]
  kKey,              // [num_kv_heads * head_dim, hidden]
  kValue,            // [num_kv_heads * head_dim, hidden]
  kAttentionOutput,  // [hidden, num_q_heads * head_dim]
  kQueryBias,
  kKeyBias,
  kValueBias,
  kAttentionOutputBias,
  kQueryNorm,  // [head_dim]
  kKeyNorm,    // [head_dim]
  kMlpNorm,    // [hidden]
  kGate,       // [intermediate, hidden]
  kUp,         // [intermediate, hidden]
  kDown,       // [hidden, intermediate]
};

struct WeightTensor {
  std::string name;  // as in the file, for messages
  WeightRole role{};
  int32_t layer = -1;  // -1: not of a layer
  WeightFormat format{};
  std::vector<int64_t> shape;  // outermost first: [rows, cols] or [n]
  int64_t size_bytes = 0;
};

// Not thread-safe; used while loading only.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const VocabularyData& vocabulary() const = 0;
  // Null when the file has no such tensor and the config does not ask for it. Every tensor the
  // config asks for is present with the right shape: that was checked on opening.
  virtual const WeightTensor* Find(WeightRole role, int32_t layer) const = 0;
  // Reads a tensor's bytes in the file's layout; out.size() == size_bytes.
  virtual Status Read(const WeightTensor& tensor, std::span<std::byte> out) = 0;
};

// path: a .gguf file, or a folder with config.json, *.safetensors and tokenizer.json. Errors are
// kInvalidArgument (unsupported or inconsistent) or kNotFound (missing file), one sentence with the
// file, the key, what was found and what is needed.
StatusOr<std::unique_ptr<WeightSource>> OpenModel(const std::string& path);

// The same folder with made-up weights: only config.json (and tokenizer.json) are read.
StatusOr<std::unique_ptr<WeightSource>> OpenDummyModel(const std::string& path);

}  // namespace longspan
