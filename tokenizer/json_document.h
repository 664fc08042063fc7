// Typed access to a JSON document whose errors name the place ("tokenizer.json: model.merges[3]:
// ..."). Parsing is core/json.h.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/status.h"

namespace longspan {

// A value and where it is. Borrows the document.
class JsonNode {
 public:
  // The root's place is the document's name; places below it are "name: a.b[3].c".
  JsonNode(const nlohmann::json& value, std::string place)
      : value_(&value), place_(std::move(place)) {}

  const nlohmann::json& json() const { return *value_; }

  // "<place>: <problem>", INVALID_ARGUMENT.
  Status Error(std::string_view problem) const;

  Status CheckIsObject() const;
  // An object with no other keys than these.
  Status CheckKeys(std::initializer_list<std::string_view> allowed) const;

  bool Has(std::string_view key) const;  // present and not null
  StatusOr<JsonNode> Get(std::string_view key) const;

  StatusOr<std::string> AsString() const;
  StatusOr<bool> AsBool() const;
  StatusOr<int64_t> AsInteger() const;
  Status ForEachItem(const std::function<Status(const JsonNode& item)>& visit) const;

  StatusOr<std::string> GetString(std::string_view key) const;
  StatusOr<bool> GetBool(std::string_view key, bool when_absent) const;

 private:
  const nlohmann::json* value_;
  std::string place_;
};

}  // namespace longspan
