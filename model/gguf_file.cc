// Layout: magic, version, tensor count, metadata count; metadata (key, type, value); tensor list
// (name, dimensions, type, offset); padding to the alignment; data. Little-endian throughout.
#include "model/gguf_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>

#include "core/checked_math.h"
#include "core/log.h"
#include "model/gguf_metadata.h"
#include "model/gguf_reader.h"

namespace longspan {
namespace {

// Far above every known model; they bound memory and time for files whose size is no bound
// (sparse files may claim terabytes).
constexpr uint64_t kMaxTensors = 1 << 16;
constexpr uint64_t kMaxKeys = 1 << 16;
constexpr uint64_t kMaxTensorNameBytes = 256;
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr uint64_t kDefaultAlignment = 32;

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

struct Counts {
  uint64_t tensors = 0;
  uint64_t keys = 0;
};

Counts ReadPreamble(GgufReader& in) {
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

uint64_t ReadAlignment(GgufReader& in, const std::map<std::string, GgufValue>& metadata) {
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
void ReadShape(GgufReader& in, const std::string& what, GgufTensor& tensor) {
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

void ReadFormat(GgufReader& in, const std::string& what, GgufTensor& tensor) {
  const auto id = in.Number<uint32_t>(what);
  if (!in.ok()) return;
  const auto* type = std::ranges::find(kTensorTypes, id, &TensorType::id);
  if (type == kTensorTypes.end()) {
    return in.Fail("{} has unknown type {}, wanted {}", what, id, kSupportedTypes);
  }
  if (!type->format) return in.Fail("{} has type {}, wanted {}", what, type->name, kSupportedTypes);
  tensor.format = *type->format;
}

void ComputeSize(GgufReader& in, const std::string& what, GgufTensor& tensor) {
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
void ReadTensors(GgufReader& in, uint64_t count, uint64_t alignment,
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

void CheckNames(GgufReader& in, const std::vector<GgufTensor>& tensors) {
  std::vector<std::string_view> names;
  for (const GgufTensor& tensor : tensors) names.push_back(tensor.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) in.Fail("tensor {} is listed twice", Escaped(*twice));
}

// Turns offsets into file positions; each tensor must lie inside the file and none on another.
void PlaceTensors(GgufReader& in, int64_t file_size, uint64_t alignment,
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
  GgufReader in(gguf.file_);
  const Counts counts = ReadPreamble(in);
  ReadGgufMetadata(in, counts.keys, gguf.metadata_);
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

}  // namespace longspan
