// A GGUF metadata value as it lies in the file, before anybody gives it meaning.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

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

// "u32", "string", ...: for messages.
std::string_view GgufTypeName(GgufType type);

}  // namespace longspan
