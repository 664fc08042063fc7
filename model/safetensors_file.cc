// Layout: header length (8 bytes, little-endian), JSON header, data. The header maps each tensor's
// name to dtype, shape and a half-open range of the data.
#include "model/safetensors_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/checked_math.h"
#include "core/json.h"
#include "core/log.h"

namespace longspan {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "the length is copied as it lies in the file");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxRank = 8;

struct DTypeBits {
  std::string_view name;
  int64_t bits;
};
constexpr auto kDTypes = std::to_array<DTypeBits>({
    {"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
    {"U16", 16}, {"F16", 16},    {"BF16", 16},   {"I32", 32},    {"U32", 32},
    {"F32", 32}, {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
});

// Reads one tensor's object; keeps the first problem.
class EntryReader {
 public:
  EntryReader(const std::string& file, const std::string& name, const Json& object)
      : where_(fmt::format("{}: tensor {}", file, Escaped(name))), object_(object) {
    entry_.name = name;
  }

  StatusOr<SafetensorsEntry> Read(int64_t data_bytes) {
    if (!object_.is_object()) {
      return InvalidArgument("{} is {}, wanted an object", where_, JsonShown(object_));
    }
    RETURN_IF_ERROR(ReadShape());
    RETURN_IF_ERROR(ReadRange(data_bytes));
    RETURN_IF_ERROR(CheckSize());
    return std::move(entry_);
  }

 private:
  // A list of integers from 0 to 2^63 - 1 under a key.
  StatusOr<std::vector<int64_t>> Integers(const char* key, size_t min_items, size_t max_items) {
    const auto found = object_.find(key);
    if (found == object_.end()) return InvalidArgument("{} has no {}", where_, key);
    if (!found->is_array() || found->size() < min_items || found->size() > max_items) {
      return InvalidArgument("{} has {} {}, wanted a list of {} to {} integers", where_, key,
                             JsonShown(*found), min_items, max_items);
    }
    std::vector<int64_t> values;
    for (const Json& item : *found) {
      constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
      if (!item.is_number_unsigned() || item.get<uint64_t>() > kMax) {
        return InvalidArgument("{} has {} in {}, wanted an integer from 0 to 2^63 - 1", where_,
                               JsonShown(item), key);
      }
      values.push_back(static_cast<int64_t>(item.get<uint64_t>()));
    }
    return values;
  }

  Status ReadShape() {
    ASSIGN_OR_RETURN(entry_.shape, Integers("shape", 0, kMaxRank));
    return absl::OkStatus();
  }

  Status ReadRange(int64_t data_bytes) {
    ASSIGN_OR_RETURN(const std::vector<int64_t> range, Integers("data_offsets", 2, 2));
    if (range[0] > range[1] || range[1] > data_bytes) {
      return InvalidArgument(
          "{} has data_offsets [{}, {}], wanted an ordered range inside {} bytes", where_, range[0],
          range[1], data_bytes);
    }
    entry_.offset = range[0];
    entry_.size_bytes = range[1] - range[0];
    return absl::OkStatus();
  }

  Status CheckSize() {
    const auto dtype = object_.find("dtype");
    if (dtype == object_.end()) return InvalidArgument("{} has no dtype", where_);
    const auto* known =
        dtype->is_string()
            ? std::ranges::find(kDTypes, dtype->get_ref<const std::string&>(), &DTypeBits::name)
            : kDTypes.end();
    if (known == kDTypes.end()) {
      return InvalidArgument("{} has unknown dtype {}", where_, JsonShown(*dtype));
    }
    entry_.dtype = known->name;
    std::optional<int64_t> bits = 1;
    for (const int64_t extent : entry_.shape) {
      if (bits) bits = CheckedMul(*bits, extent);
    }
    if (bits) bits = CheckedMul(*bits, known->bits);
    if (!bits) return InvalidArgument("{} has a shape of more than 2^63 bits", where_);
    if (*bits % 8 != 0) return InvalidArgument("{} does not fill whole bytes", where_);
    if (*bits / 8 != entry_.size_bytes) {
      return InvalidArgument("{} has {} bytes of data, wanted {} for its shape as {}", where_,
                             entry_.size_bytes, *bits / 8, known->name);
    }
    return absl::OkStatus();
  }

  std::string where_;
  const Json& object_;
  SafetensorsEntry entry_;
};

Status CheckMetadata(const Json& metadata, const std::string& file) {
  if (!metadata.is_object()) {
    return InvalidArgument("{}: __metadata__ is {}, wanted an object of strings", file,
                           JsonShown(metadata));
  }
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) {
      return InvalidArgument("{}: __metadata__ key {} is {}, wanted a string", file, Escaped(key),
                             JsonShown(value));
    }
  }
  return absl::OkStatus();
}

// The tensors, in order of their ranges, cover [0, data_bytes) exactly once.
Status CheckCover(const std::vector<SafetensorsEntry>& entries, int64_t data_bytes,
                  const std::string& file) {
  int64_t expected = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.offset != expected) {
      return InvalidArgument("{}: tensor {} begins at byte {} of the data, wanted {} ({})", file,
                             Escaped(entry.name), entry.offset, expected,
                             entry.offset < expected ? "it overlaps another" : "a hole before it");
    }
    expected += entry.size_bytes;
  }
  if (expected != data_bytes) {
    return InvalidArgument("{}: has {} bytes of data, wanted {} as its header says", file,
                           data_bytes, expected);
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(std::string_view header,
                                                               int64_t data_bytes,
                                                               const std::string& file) {
  ASSIGN_OR_RETURN(const Json root, ParseJson(header, file));
  if (!root.is_object()) {
    return InvalidArgument("{}: the header is {}, wanted an object", file, JsonShown(root));
  }
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__") {
      RETURN_IF_ERROR(CheckMetadata(value, file));
      continue;
    }
    ASSIGN_OR_RETURN(SafetensorsEntry entry, EntryReader(file, name, value).Read(data_bytes));
    entries.push_back(std::move(entry));
  }
  std::ranges::sort(entries, {}, [](const SafetensorsEntry& e) {
    return std::pair(e.offset, e.size_bytes);  // an empty tensor comes before what begins there
  });
  RETURN_IF_ERROR(CheckCover(entries, data_bytes, file));
  return entries;
}

StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(InputFile input, InputFile::Open(path));
  SafetensorsFile result(std::move(input));
  const InputFile& file = result.file_;
  uint64_t header_bytes = 0;
  if (file.size() < static_cast<int64_t>(sizeof(header_bytes))) {
    return InvalidArgument("{}: has {} bytes, wanted a safetensors file of at least 8", file.path(),
                           file.size());
  }
  RETURN_IF_ERROR(file.Read(0, std::as_writable_bytes(std::span(&header_bytes, 1))));
  const auto rest = static_cast<uint64_t>(file.size()) - sizeof(header_bytes);
  if (header_bytes == 0 || header_bytes > std::min(rest, kMaxHeaderBytes)) {
    return InvalidArgument("{}: claims a header of {} bytes, wanted 1 to {}", file.path(),
                           header_bytes, std::min(rest, kMaxHeaderBytes));
  }
  std::string header(header_bytes, '\0');
  RETURN_IF_ERROR(file.Read(sizeof(header_bytes), std::as_writable_bytes(std::span(header))));
  ASSIGN_OR_RETURN(
      result.entries_,
      ParseSafetensorsHeader(header, static_cast<int64_t>(rest - header_bytes), file.path()));
  const auto data_start = static_cast<int64_t>(sizeof(header_bytes) + header_bytes);
  for (SafetensorsEntry& entry : result.entries_) entry.offset += data_start;
  return result;
}

}  // namespace longspan
