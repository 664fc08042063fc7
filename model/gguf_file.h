// The structure of a GGUF file (versions 2 and 3): metadata and the list of tensors, every count,
// length and offset checked against the file before anything is allocated for it. No meaning:
// gguf_config.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/status.h"
#include "kernels/matmul.h"
#include "model/gguf_value.h"
#include "model/input_file.h"

namespace longspan {

struct GgufTensor {
  std::string name;
  WeightFormat format{};
  std::vector<int64_t> shape;  // outermost first: the reverse of the file's order
  int64_t offset = 0;          // from the start of the file
  int64_t size_bytes = 0;
};

// Immutable once opened; keeps the file open.
class GgufFile {
 public:
  static StatusOr<GgufFile> Open(const std::string& path);

  const InputFile& file() const { return file_; }
  // Gives the open file away, for reading tensors; nothing else may be asked for after.
  InputFile TakeFile() && { return std::move(file_); }

  const std::map<std::string, GgufValue>& metadata() const { return metadata_; }
  const GgufValue* Find(const std::string& key) const;  // null: absent
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* FindTensor(const std::string& name) const;  // null: absent

 private:
  explicit GgufFile(InputFile file) : file_(std::move(file)) {}

  InputFile file_;
  std::map<std::string, GgufValue> metadata_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace longspan
