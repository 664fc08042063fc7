// Builders of GGUF and safetensors files, right ones and wrong ones: every claim in a file (counts,
// lengths, offsets) can be made to differ from what follows. They know layout only; tiny_models.h
// has models.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace longspan::testing {

// The bytes of a value as it lies in little-endian files.
template <typename T>
std::string Bytes(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}
std::string FloatBytes(std::span<const float> values);

// A GGUF string: length, then text.
std::string GgufString(std::string_view text);

struct GgufTensorSpec {
  std::string name;
  std::vector<uint64_t> dims;  // innermost first, as in the file
  uint32_t type = 0;           // F32
  std::string data;
  std::optional<uint64_t> offset;  // instead of the next aligned one
};

struct GgufKeySpec {
  std::string name;
  uint32_t type = 0;
  std::string value;  // bytes after the type
};

// A file in parts; Build puts them together.
struct GgufSpec {
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::optional<uint64_t> tensor_count;  // instead of the true one
  std::optional<uint64_t> key_count;
  uint64_t alignment = 32;  // used for layout; stated only by a key
  std::vector<GgufKeySpec> keys;
  std::vector<GgufTensorSpec> tensors;

  GgufSpec& U32(const std::string& name, uint32_t value);
  GgufSpec& F32(const std::string& name, float value);
  GgufSpec& Bool(const std::string& name, bool value);
  GgufSpec& String(const std::string& name, std::string_view value);
  GgufSpec& Strings(const std::string& name, std::span<const std::string> values);
  GgufSpec& Raw(const std::string& name, uint32_t type, std::string value);
  GgufSpec& Tensor(GgufTensorSpec tensor);

  // Replaces or removes a key or tensor that is there.
  GgufSpec& Set(const std::string& name, uint32_t type, std::string value);
  GgufSpec& Remove(const std::string& name);
  GgufTensorSpec& Find(const std::string& tensor);

  std::string Build() const;
};

struct SafetensorsSpec {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string data;
};

// A right file, tensors in the given order.
std::string BuildSafetensors(std::span<const SafetensorsSpec> tensors);
// Any header text in front of any data.
std::string BuildSafetensors(std::string_view header, std::string_view data,
                             std::optional<uint64_t> claimed_header_bytes = {});

}  // namespace longspan::testing
