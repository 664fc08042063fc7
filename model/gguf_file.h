// The structure of a GGUF file (versions 2 and 3): metadata and the list of tensors, every count,
// length and offset checked against the file before anything is allocated for it. No meaning:
// gguf_config.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "core/status.h"
#include "kernels/matmul.h"
#include "model/input_file.h"

namespace longspan {

// Type numbers as in the file.
enum class GgufType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64
};

// Elements of one kind; only the vector of the element type is filled. Arrays of arrays are checked
// and skipped: no key that matters holds one.
struct GgufArray {
  GgufType element_type{};
  int64_t count = 0;
  std::vector<int64_t> integers;  // booleans too
  std::vector<double> floats;
  std::vector<std::string> strings;
};

struct GgufValue {
  GgufType type{};
  std::variant<bool, uint64_t, int64_t, double, std::string, GgufArray> data;
};

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

// "u32", "string", ...: for messages.
std::string_view GgufTypeName(GgufType type);

}  // namespace longspan
