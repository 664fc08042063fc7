// One method per type of value, each with its own complaint (key, what it has, what was wanted). An
// absent key is nullopt, or an error from the Need... methods.
#include "model/gguf_fields.h"

#include <variant>

#include "core/log.h"

namespace longspan {

void GgufFields::Fail(const std::string& message) {
  if (status_.ok()) status_ = InvalidArgument("{}: {}", gguf_.file().path(), message);
}

void GgufFields::WrongType(const std::string& key, const GgufValue& value, const char* wanted) {
  Fail(
      fmt::format("key {} has type {}, wanted {}", Escaped(key), GgufTypeName(value.type), wanted));
}

void GgufFields::Missing(const std::string& key) {
  Fail(fmt::format("key {} is missing", Escaped(key)));
}

std::optional<int32_t> GgufFields::Int(const std::string& key, int64_t min, int64_t max) {
  const GgufValue* value = gguf_.Find(key);
  if (value == nullptr) return std::nullopt;
  int64_t number = 0;
  if (const auto* small = std::get_if<int64_t>(&value->data)) {
    number = *small;
  } else if (const auto* wide = std::get_if<uint64_t>(&value->data)) {
    constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    number = static_cast<int64_t>(std::min(*wide, kMax));
  } else {
    WrongType(key, *value, "an integer");
    return std::nullopt;
  }
  if (number < min || number > max) {
    Fail(fmt::format("key {} is {}, wanted {} to {}", Escaped(key), number, min, max));
    return std::nullopt;
  }
  return static_cast<int32_t>(number);
}

std::optional<double> GgufFields::Float(const std::string& key) {
  const GgufValue* value = gguf_.Find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<double>(&value->data)) return *number;
  if (const auto* integer = std::get_if<int64_t>(&value->data)) {
    return static_cast<double>(*integer);
  }
  WrongType(key, *value, "a number");
  return std::nullopt;
}

std::optional<bool> GgufFields::Bool(const std::string& key) {
  const GgufValue* value = gguf_.Find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* flag = std::get_if<bool>(&value->data)) return *flag;
  WrongType(key, *value, "bool");
  return std::nullopt;
}

std::optional<std::string> GgufFields::String(const std::string& key) {
  const GgufValue* value = gguf_.Find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* text = std::get_if<std::string>(&value->data)) return *text;
  WrongType(key, *value, "string");
  return std::nullopt;
}

const GgufArray* GgufFields::Array(const std::string& key, GgufType element) {
  const GgufValue* value = gguf_.Find(key);
  if (value == nullptr) return nullptr;
  const auto* array = std::get_if<GgufArray>(&value->data);
  if (array == nullptr) {
    WrongType(key, *value, "array");
    return nullptr;
  }
  if (array->element_type != element) {
    Fail(fmt::format("key {} is an array of {}, wanted of {}", Escaped(key),
                     GgufTypeName(array->element_type), GgufTypeName(element)));
    return nullptr;
  }
  return array;
}

int32_t GgufFields::NeedInt(const std::string& key, int64_t min, int64_t max) {
  if (gguf_.Find(key) == nullptr) Missing(key);
  return Int(key, min, max).value_or(0);
}

double GgufFields::NeedFloat(const std::string& key) {
  if (gguf_.Find(key) == nullptr) Missing(key);
  return Float(key).value_or(0.0);
}

std::string GgufFields::NeedString(const std::string& key) {
  if (gguf_.Find(key) == nullptr) Missing(key);
  return String(key).value_or("");
}

}  // namespace longspan
