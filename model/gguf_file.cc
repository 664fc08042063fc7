// Layout: magic, version, tensor count, metadata count; metadata (key, type, value); tensor list
// (name, dimensions, type, offset); padding to the alignment; data. Little-endian throughout.
#include "model/gguf_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "core/checked_math.h"
#include "core/log.h"

namespace longspan {
namespace {

static_assert(std::endian::native == std::endian::little,
              "fields are copied as they lie in the file");

// Far above every published model; they bound memory and time for files whose size is no bound
// (sparse files may claim terabytes).
constexpr uint64_t kMaxTensors = 1 << 16;
constexpr uint64_t kMaxKeys = 1 << 16;
constexpr uint64_t kMaxKeyBytes = 1 << 16;
constexpr uint64_t kMaxTensorNameBytes = 256;
constexpr uint64_t kMaxStringBytes = 16 << 20;
constexpr int64_t kMaxArrayElements = 4 << 20;  // of the whole file
constexpr int64_t kMaxMetadataBytes = 256 << 20;
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr uint64_t kDefaultAlignment = 32;
constexpr int kMaxArrayDepth = 4;

struct TensorType {
  uint32_t id;
  std::string_view name;
  std::optional<WeightFormat> format;  // nullopt: known by name, not supported
};

constexpr auto kTensorTypes = std::to_array<TensorType>({
    {0, "F32", WeightFormat::kF32},
    {1, "F16", WeightFormat::kF16},
    {2, "Q4_0", WeightFormat::kQ4_0},
    {3, "Q4_1", WeightFormat::kQ4_1},
    {6, "Q5_0", WeightFormat::kQ5_0},
    {7, "Q5_1", WeightFormat::kQ5_1},
    {8, "Q8_0", WeightFormat::kQ8_0},
    {9, "Q8_1", {}},
    {10, "Q2_K", {}},
    {11, "Q3_K", {}},
    {12, "Q4_K", WeightFormat::kQ4_K},
    {13, "Q5_K", WeightFormat::kQ5_K},
    {14, "Q6_K", WeightFormat::kQ6_K},
    {15, "Q8_K", {}},
    {16, "IQ2_XXS", {}},
    {17, "IQ2_XS", {}},
    {18, "IQ3_XXS", {}},
    {19, "IQ1_S", {}},
    {20, "IQ4_NL", {}},
    {21, "IQ3_S", {}},
    {22, "IQ2_S", {}},
    {23, "IQ4_XS", {}},
    {24, "I8", {}},
    {25, "I16", {}},
    {26, "I32", {}},
    {27, "I64", {}},
    {28, "F64", {}},
    {29, "IQ1_M", {}},
    {30, "BF16", WeightFormat::kBF16},
    {34, "TQ1_0", {}},
    {35, "TQ2_0", {}},
    {39, "MXFP4", {}},
});
constexpr std::string_view kSupportedTypes =
    "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K";

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

// Reads the part before the data, front to back, through one buffer. The first problem stays and
// every later read yields zero, so that a caller may check once after several reads.
class HeaderReader {
 public:
  explicit HeaderReader(const InputFile& file)
      : file_(file), end_(std::min(file.size(), kMaxMetadataBytes)) {}

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  int64_t position() const { return position_; }
  uint64_t remaining() const { return static_cast<uint64_t>(end_ - position_); }

  template <typename... Args>
  void Fail(fmt::format_string<Args...> format, Args&&... args) {
    if (!ok()) return;
    status_ =
        InvalidArgument("{}: {}", file_.path(), fmt::format(format, std::forward<Args>(args)...));
  }

  template <typename T>
  T Number(std::string_view what) {
    T value{};
    Bytes(&value, sizeof(T), what);
    return value;
  }

  // A length and that many bytes.
  std::string String(uint64_t max_bytes, std::string_view what) {
    const auto length = Number<uint64_t>(what);
    if (ok() && length > std::min(remaining(), max_bytes)) {
      Fail("{} claims {} bytes, wanted at most {} (what is left of the file)", what, length,
           std::min(remaining(), max_bytes));
    }
    if (!ok()) return {};
    std::string text(length, '\0');
    Bytes(text.data(), length, what);
    return text;
  }

 private:
  void Bytes(void* out, uint64_t bytes, std::string_view what) {
    if (!ok()) return;
    if (bytes > remaining()) return Fail("ends at byte {} inside {}", end_, what);
    auto* to = static_cast<std::byte*>(out);
    while (bytes > 0) {
      const int64_t buffered = buffer_start_ + static_cast<int64_t>(buffer_.size()) - position_;
      if (buffered <= 0) {
        if (!FillBuffer()) return;
        continue;
      }
      const uint64_t part = std::min<uint64_t>(bytes, static_cast<uint64_t>(buffered));
      std::memcpy(to, buffer_.data() + (position_ - buffer_start_), part);
      to += part;
      bytes -= part;
      position_ += static_cast<int64_t>(part);
    }
  }

  bool FillBuffer() {
    constexpr int64_t kBufferBytes = 64 << 10;
    buffer_start_ = position_;
    buffer_.resize(static_cast<size_t>(std::min(kBufferBytes, end_ - position_)));
    status_ = file_.Read(buffer_start_, buffer_);
    return ok();
  }

  const InputFile& file_;
  const int64_t end_;
  int64_t position_ = 0;
  int64_t buffer_start_ = 0;
  std::vector<std::byte> buffer_;
  Status status_;
};

// Reads metadata values; counts array elements over the whole file.
class ValueReader {
 public:
  explicit ValueReader(HeaderReader& in) : in_(in) {}

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
      in_.Fail("{} claims {} elements, wanted at most {} (what is left of the file)", what, count,
               limit);
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

  HeaderReader& in_;
  int64_t num_elements_ = 0;
};

struct Counts {
  uint64_t tensors = 0;
  uint64_t keys = 0;
};

Counts ReadPreamble(HeaderReader& in) {
  const auto magic = in.Number<uint32_t>("the magic number");
  if (in.ok() && magic != 0x46554747u) in.Fail("is not a GGUF file (its first bytes are not GGUF)");
  const auto version = in.Number<uint32_t>("the version");
  if (in.ok() && version != 2 && version != 3) {
    if (version != 0 && (version & 0xffffu) == 0) {
      in.Fail("is a big-endian GGUF file, wanted little-endian");
    } else {
      in.Fail("has GGUF version {}, wanted 2 or 3", version);
    }
  }
  Counts counts;
  counts.tensors = in.Number<uint64_t>("the tensor count");
  counts.keys = in.Number<uint64_t>("the metadata count");
  // The least a tensor takes: name length, name of one byte, one dimension, type, offset.
  constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;
  constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;
  const uint64_t max_tensors = std::min(kMaxTensors, in.remaining() / kMinTensorBytes);
  const uint64_t max_keys = std::min(kMaxKeys, in.remaining() / kMinKeyBytes);
  if (in.ok() && counts.tensors > max_tensors) {
    in.Fail("claims {} tensors, wanted at most {} in a file of its size", counts.tensors,
            max_tensors);
  }
  if (in.ok() && counts.keys > max_keys) {
    in.Fail("claims {} metadata keys, wanted at most {} in a file of its size", counts.keys,
            max_keys);
  }
  return counts;
}

void ReadMetadata(HeaderReader& in, uint64_t count, std::map<std::string, GgufValue>& metadata) {
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

uint64_t ReadAlignment(HeaderReader& in, const std::map<std::string, GgufValue>& metadata) {
  const auto found = metadata.find("general.alignment");
  if (found == metadata.end()) return kDefaultAlignment;
  const auto* value = std::get_if<int64_t>(&found->second.data);
  if (value == nullptr || found->second.type != GgufType::kUint32) {
    in.Fail("key general.alignment has type {}, wanted u32", GgufTypeName(found->second.type));
    return kDefaultAlignment;
  }
  const auto alignment = static_cast<uint64_t>(*value);
  if (!std::has_single_bit(alignment) || alignment > kMaxAlignment) {
    in.Fail("key general.alignment is {}, wanted a power of two up to {}", alignment,
            kMaxAlignment);
    return kDefaultAlignment;
  }
  return alignment;
}

// Dimensions in the file's order (innermost first) become the shape, outermost first.
void ReadShape(HeaderReader& in, const std::string& what, GgufTensor& tensor) {
  const auto num_dims = in.Number<uint32_t>(what);
  if (in.ok() && (num_dims < 1 || num_dims > 4)) {
    in.Fail("{} has {} dimensions, wanted 1 to 4", what, num_dims);
  }
  for (uint32_t d = 0; d < num_dims && in.ok(); ++d) {
    const auto extent = in.Number<uint64_t>(what);
    if (in.ok() && (extent < 1 || extent > (uint64_t{1} << 62))) {
      in.Fail("{} has a dimension of {}, wanted 1 to 2^62", what, extent);
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(extent));
  }
}

void ReadFormat(HeaderReader& in, const std::string& what, GgufTensor& tensor) {
  const auto id = in.Number<uint32_t>(what);
  if (!in.ok()) return;
  const auto* type = std::ranges::find(kTensorTypes, id, &TensorType::id);
  if (type == kTensorTypes.end()) {
    return in.Fail("{} has unknown type {}, wanted {}", what, id, kSupportedTypes);
  }
  if (!type->format) return in.Fail("{} has type {}, wanted {}", what, type->name, kSupportedTypes);
  tensor.format = *type->format;
}

void ComputeSize(HeaderReader& in, const std::string& what, GgufTensor& tensor) {
  std::optional<int64_t> elements = 1;
  for (const int64_t extent : tensor.shape) {
    if (elements) elements = CheckedMul(*elements, extent);
  }
  const int block = WeightBlockElements(tensor.format);
  if (tensor.shape.back() % block != 0) {
    return in.Fail("{} has rows of {} elements, wanted a multiple of {} for {}", what,
                   tensor.shape.back(), block, WeightFormatName(tensor.format));
  }
  std::optional<int64_t> bytes;
  if (elements) {
    bytes = CheckedMul<int64_t>(*elements / block, WeightBlockBytes(tensor.format));
  }
  if (!bytes) return in.Fail("{} has more bytes than 63 bits can count", what);
  tensor.size_bytes = *bytes;
}

// Leaves offsets as in the file: from the start of the data part.
void ReadTensors(HeaderReader& in, uint64_t count, uint64_t alignment,
                 std::vector<GgufTensor>& tensors) {
  for (uint64_t i = 0; i < count && in.ok(); ++i) {
    GgufTensor tensor;
    tensor.name = in.String(kMaxTensorNameBytes, fmt::format("the name of tensor {}", i));
    if (in.ok() && tensor.name.empty()) in.Fail("tensor {} has an empty name", i);
    const std::string what = fmt::format("tensor {}", Escaped(tensor.name));
    ReadShape(in, what, tensor);
    ReadFormat(in, what, tensor);
    const auto offset = in.Number<uint64_t>(what);
    if (!in.ok()) return;
    ComputeSize(in, what, tensor);
    if (offset % alignment != 0) {
      in.Fail("{} has offset {}, wanted a multiple of {}", what, offset, alignment);
    }
    if (offset > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      in.Fail("{} has offset {}, beyond the end of the file", what, offset);
    }
    tensor.offset = static_cast<int64_t>(offset);
    tensors.push_back(std::move(tensor));
  }
}

void CheckNames(HeaderReader& in, const std::vector<GgufTensor>& tensors) {
  std::vector<std::string_view> names;
  for (const GgufTensor& tensor : tensors) names.push_back(tensor.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) in.Fail("tensor {} is listed twice", Escaped(*twice));
}

// Turns offsets into file positions; each tensor must lie inside the file and none on another.
void PlaceTensors(HeaderReader& in, int64_t file_size, uint64_t alignment,
                  std::vector<GgufTensor>& tensors) {
  const auto align = static_cast<int64_t>(alignment);
  const int64_t data_start = CeilDiv(in.position(), align) * align;
  const int64_t data_bytes = std::max<int64_t>(0, file_size - data_start);
  std::vector<GgufTensor*> by_offset;
  for (GgufTensor& tensor : tensors) {
    if (tensor.offset > data_bytes || tensor.size_bytes > data_bytes - tensor.offset) {
      return in.Fail(
          "tensor {} takes bytes {} to {} of the data, wanted at most {} (cut short?)",
          Escaped(tensor.name), tensor.offset,
          static_cast<uint64_t>(tensor.offset) + static_cast<uint64_t>(tensor.size_bytes),
          data_bytes);
    }
    by_offset.push_back(&tensor);
  }
  std::ranges::sort(by_offset, {}, &GgufTensor::offset);
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const GgufTensor& before = *by_offset[i - 1];
    if (before.offset + before.size_bytes > by_offset[i]->offset) {
      return in.Fail("tensor {} overlaps tensor {}", Escaped(by_offset[i]->name),
                     Escaped(before.name));
    }
  }
  for (GgufTensor& tensor : tensors) tensor.offset += data_start;
}

}  // namespace

StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(InputFile input, InputFile::Open(path));
  GgufFile gguf(std::move(input));
  HeaderReader in(gguf.file_);
  const Counts counts = ReadPreamble(in);
  ReadMetadata(in, counts.keys, gguf.metadata_);
  const uint64_t alignment = ReadAlignment(in, gguf.metadata_);
  ReadTensors(in, counts.tensors, alignment, gguf.tensors_);
  CheckNames(in, gguf.tensors_);
  if (in.ok()) PlaceTensors(in, gguf.file_.size(), alignment, gguf.tensors_);
  RETURN_IF_ERROR(in.status());
  return gguf;
}

const GgufValue* GgufFile::Find(const std::string& key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

const GgufTensor* GgufFile::FindTensor(const std::string& name) const {
  const auto found = std::ranges::find(tensors_, name, &GgufTensor::name);
  return found == tensors_.end() ? nullptr : &*found;
}

std::string_view GgufTypeName(GgufType type) {
  constexpr std::array<std::string_view, 13> kNames = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                       "i32", "f32", "bool", "string", "array",
                                                       "u64", "i64", "f64"};
  const auto index = static_cast<size_t>(type);
  return index < kNames.size() ? kNames[index] : "unknown";
}

}  // namespace longspan
