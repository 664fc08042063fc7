// One reader for all value types, nested arrays included (to depth 4). A count is compared with
// what the rest of the file could hold before anything grows; elements are counted over the whole
// file.
#include "model/gguf_metadata.h"

#include <algorithm>
#include <array>
#include <limits>

#include "core/log.h"

namespace longspan {
namespace {

constexpr uint64_t kMaxKeyBytes = 1 << 16;
constexpr uint64_t kMaxStringBytes = 16 << 20;
constexpr int64_t kMaxArrayElements = 4 << 20;  // of the whole file
constexpr int kMaxArrayDepth = 4;

// Bytes of one value in the file, the least for strings and arrays.
uint64_t MinValueBytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kArray:
      return 12;
    default:
      return 8;
  }
}

// Reads metadata values; counts array elements over the whole file.
class ValueReader {
 public:
  explicit ValueReader(GgufReader& in) : in_(in) {}

  GgufValue Read(const std::string& what) {
    GgufValue value;
    value.type = Type(what);
    if (!in_.ok()) return value;
    switch (value.type) {
      case GgufType::kBool:
        value.data = Bool(what);
        break;
      case GgufType::kString:
        value.data = in_.String(kMaxStringBytes, what);
        break;
      case GgufType::kArray:
        value.data = Array(what, 1);
        break;
      case GgufType::kFloat32:
      case GgufType::kFloat64:
        value.data = Float(value.type, what);
        break;
      case GgufType::kUint64:
        value.data = in_.Number<uint64_t>(what);
        break;
      default:
        value.data = Integer(value.type, what);
    }
    return value;
  }

 private:
  GgufType Type(const std::string& what) {
    const auto type = in_.Number<uint32_t>(what);
    if (type > static_cast<uint32_t>(GgufType::kFloat64)) {
      in_.Fail("{} has value type {}, wanted 0 to 12", what, type);
    }
    return static_cast<GgufType>(type);
  }

  bool Bool(const std::string& what) {
    const auto byte = in_.Number<uint8_t>(what);
    if (byte > 1) in_.Fail("{} is a boolean of value {}, wanted 0 or 1", what, byte);
    return byte != 0;
  }

  double Float(GgufType type, const std::string& what) {
    return type == GgufType::kFloat32 ? static_cast<double>(in_.Number<float>(what))
                                      : in_.Number<double>(what);
  }

  int64_t Integer(GgufType type, const std::string& what) {
    switch (type) {
      case GgufType::kUint8:
        return in_.Number<uint8_t>(what);
      case GgufType::kInt8:
        return in_.Number<int8_t>(what);
      case GgufType::kUint16:
        return in_.Number<uint16_t>(what);
      case GgufType::kInt16:
        return in_.Number<int16_t>(what);
      case GgufType::kUint32:
        return in_.Number<uint32_t>(what);
      case GgufType::kInt32:
        return in_.Number<int32_t>(what);
      default:
        return in_.Number<int64_t>(what);
    }
  }

  GgufArray Array(const std::string& what, int depth) {
    GgufArray array;
    array.element_type = Type(what);
    const auto count = in_.Number<uint64_t>(what);
    if (depth > kMaxArrayDepth) in_.Fail("{} nests arrays deeper than {}", what, kMaxArrayDepth);
    if (!in_.ok()) return array;
    const uint64_t fitting = in_.remaining() / MinValueBytes(array.element_type);
    const uint64_t limit = std::min<uint64_t>(fitting, kMaxArrayElements - num_elements_);
    if (count > limit) {
      in_.Fail("{} claims {} elements, wanted at most {} here", what, count, limit);
      return array;
    }
    array.count = static_cast<int64_t>(count);
    num_elements_ += array.count;
    for (int64_t i = 0; i < array.count && in_.ok(); ++i) Element(array, what, depth);
    return array;
  }

  void Element(GgufArray& array, const std::string& what, int depth) {
    switch (array.element_type) {
      case GgufType::kBool:
        array.integers.push_back(Bool(what) ? 1 : 0);
        break;
      case GgufType::kString:
        array.strings.push_back(in_.String(kMaxStringBytes, what));
        break;
      case GgufType::kArray:
        Array(what, depth + 1);
        break;
      case GgufType::kFloat32:
      case GgufType::kFloat64:
        array.floats.push_back(Float(array.element_type, what));
        break;
      case GgufType::kUint64: {
        const auto value = in_.Number<uint64_t>(what);
        if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
          in_.Fail("{} holds {}, wanted less than 2^63", what, value);
        }
        array.integers.push_back(static_cast<int64_t>(value));
        break;
      }
      default:
        array.integers.push_back(Integer(array.element_type, what));
    }
  }

  GgufReader& in_;
  int64_t num_elements_ = 0;
};

}  // namespace

void ReadGgufMetadata(GgufReader& in, uint64_t count, std::map<std::string, GgufValue>& metadata) {
  ValueReader values(in);
  for (uint64_t i = 0; i < count && in.ok(); ++i) {
    std::string key = in.String(kMaxKeyBytes, fmt::format("the name of metadata key {}", i));
    if (!in.ok()) return;
    if (key.empty()) return in.Fail("metadata key {} has an empty name", i);
    const std::string what = fmt::format("key {}", Escaped(key));
    if (metadata.contains(key)) return in.Fail("{} is given twice", what);
    GgufValue value = values.Read(what);
    if (in.ok()) metadata.emplace(std::move(key), std::move(value));
  }
}

std::string_view GgufTypeName(GgufType type) {
  constexpr std::array<std::string_view, 13> kNames = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                       "i32", "f32", "bool", "string", "array",
                                                       "u64", "i64", "f64"};
  const auto index = static_cast<size_t>(type);
  return index < kNames.size() ? kNames[index] : "unknown";
}

}  // namespace longspan
