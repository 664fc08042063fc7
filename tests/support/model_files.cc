// Writes the bytes in the order of the formats' definitions; what a test has claimed instead of the
// truth is put in as it stands, unchecked.
#include "tests/support/model_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/check.h"

namespace longspan::testing {
namespace {

constexpr uint32_t kU32 = 4;
constexpr uint32_t kF32 = 6;
constexpr uint32_t kBool = 7;
constexpr uint32_t kString = 8;
constexpr uint32_t kArray = 9;

}  // namespace

std::string FloatBytes(std::span<const float> values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

std::string GgufString(std::string_view text) {
  return Bytes<uint64_t>(text.size()) + std::string(text);
}

GgufSpec& GgufSpec::Raw(const std::string& name, uint32_t type, std::string value) {
  keys.push_back({name, type, std::move(value)});
  return *this;
}
GgufSpec& GgufSpec::U32(const std::string& name, uint32_t value) {
  return Raw(name, kU32, Bytes(value));
}
GgufSpec& GgufSpec::F32(const std::string& name, float value) {
  return Raw(name, kF32, Bytes(value));
}
GgufSpec& GgufSpec::Bool(const std::string& name, bool value) {
  return Raw(name, kBool, std::string(1, value ? '\1' : '\0'));
}
GgufSpec& GgufSpec::String(const std::string& name, std::string_view value) {
  return Raw(name, kString, GgufString(value));
}
GgufSpec& GgufSpec::Strings(const std::string& name, std::span<const std::string> values) {
  std::string bytes = Bytes(kString) + Bytes<uint64_t>(values.size());
  for (const std::string& value : values) bytes += GgufString(value);
  return Raw(name, kArray, std::move(bytes));
}

GgufSpec& GgufSpec::Tensor(GgufTensorSpec tensor) {
  tensors.push_back(std::move(tensor));
  return *this;
}

GgufSpec& GgufSpec::Set(const std::string& name, uint32_t type, std::string value) {
  const auto key = std::ranges::find(keys, name, &GgufKeySpec::name);
  CHECK(key != keys.end(), "{}", name);
  *key = {name, type, std::move(value)};
  return *this;
}

GgufSpec& GgufSpec::Remove(const std::string& name) {
  const size_t removed =
      std::erase_if(keys, [&](const GgufKeySpec& k) { return k.name == name; }) +
      std::erase_if(tensors, [&](const GgufTensorSpec& t) { return t.name == name; });
  CHECK(removed == 1, "{}", name);
  return *this;
}

GgufTensorSpec& GgufSpec::Find(const std::string& tensor) {
  const auto found = std::ranges::find(tensors, tensor, &GgufTensorSpec::name);
  CHECK(found != tensors.end(), "{}", tensor);
  return *found;
}

std::string GgufSpec::Build() const {
  const auto aligned = [this](uint64_t at) { return (at + alignment - 1) / alignment * alignment; };
  std::string file = magic + Bytes(version);
  file += Bytes(tensor_count.value_or(tensors.size())) + Bytes(key_count.value_or(keys.size()));
  for (const GgufKeySpec& key : keys) file += GgufString(key.name) + Bytes(key.type) + key.value;
  std::string data;
  for (const GgufTensorSpec& tensor : tensors) {
    data.resize(aligned(data.size()), '\0');
    file += GgufString(tensor.name) + Bytes(static_cast<uint32_t>(tensor.dims.size()));
    for (const uint64_t dim : tensor.dims) file += Bytes(dim);
    file += Bytes(tensor.type) + Bytes(tensor.offset.value_or(data.size()));
    data += tensor.data;
  }
  file.resize(aligned(file.size()), '\0');
  return file + data;
}

std::string BuildSafetensors(std::span<const SafetensorsSpec> tensors) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const SafetensorsSpec& tensor : tensors) {
    const size_t end = data.size() + tensor.data.size();
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {data.size(), end}}};
    data += tensor.data;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return BuildSafetensors(text, data);
}

std::string BuildSafetensors(std::string_view header, std::string_view data,
                             std::optional<uint64_t> claimed_header_bytes) {
  return Bytes(claimed_header_bytes.value_or(header.size())) + std::string(header) +
         std::string(data);
}

}  // namespace longspan::testing
