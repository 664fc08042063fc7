// The counterpart of gguf_fields.cc for config.json; it also remembers which keys were asked for,
// so that those without effect can be logged.
#include "model/json_fields.h"

#include <utility>

#include "core/json.h"
#include "core/log.h"

namespace longspan {

JsonFields::JsonFields(const nlohmann::json& object, std::string file, std::string prefix)
    : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

bool JsonFields::Has(const std::string& key) const {
  asked_.insert(key);
  return object_.contains(key);
}

const nlohmann::json* JsonFields::Find(const std::string& key) const {
  asked_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::string JsonFields::Shown(const std::string& key) const {
  return prefix_.empty() ? Escaped(key) : fmt::format("{}.{}", prefix_, Escaped(key));
}

std::string JsonFields::UnusedKeys() const {
  std::string keys;
  for (const auto& [key, value] : object_.items()) {
    if (!asked_.contains(key)) keys += (keys.empty() ? "" : ", ") + Escaped(key);
  }
  return keys;
}

void JsonFields::Fail(const std::string& message) {
  if (status_.ok()) status_ = InvalidArgument("{}: {}", file_, message);
}

void JsonFields::Take(const Status& problem) {
  if (status_.ok()) status_ = problem;
}

void JsonFields::Unwanted(const std::string& key, const std::string& wanted) {
  const nlohmann::json* value = Find(key);
  Fail(fmt::format("{} is {}, wanted {}", Shown(key), value ? JsonShown(*value) : "null", wanted));
}

void JsonFields::Missing(const std::string& key) {
  if (Find(key) == nullptr) Fail(fmt::format("{} is missing", Shown(key)));
}

std::optional<int32_t> JsonFields::Int(const std::string& key, int64_t min, int64_t max) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  // Unsigned values above int64's range are above every max too.
  const bool fits = value->is_number_unsigned()
                        ? value->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)
                        : value->is_number_integer();
  if (!fits || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    Unwanted(key, fmt::format("an integer from {} to {}", min, max));
    return std::nullopt;
  }
  return static_cast<int32_t>(value->get<int64_t>());
}

std::optional<double> JsonFields::Float(const std::string& key) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    Unwanted(key, "a number");
    return std::nullopt;
  }
  return value->get<double>();
}

std::optional<bool> JsonFields::Bool(const std::string& key) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    Unwanted(key, "true or false");
    return std::nullopt;
  }
  return value->get<bool>();
}

std::optional<std::string> JsonFields::String(const std::string& key) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    Unwanted(key, "a text");
    return std::nullopt;
  }
  return value->get<std::string>();
}

int32_t JsonFields::NeedInt(const std::string& key, int64_t min, int64_t max) {
  Missing(key);
  return Int(key, min, max).value_or(0);
}

double JsonFields::NeedFloat(const std::string& key) {
  Missing(key);
  return Float(key).value_or(0.0);
}

}  // namespace longspan
