// Every look-up makes a child that knows its path, so that each error can name its place.
#include "tokenizer/json_document.h"

#include <algorithm>

#include "core/log.h"

namespace longspan {

Status JsonNode::Error(std::string_view problem) const {
  return InvalidArgument("{}: {}", place_, problem);
}

Status JsonNode::CheckIsObject() const {
  return value_->is_object() ? absl::OkStatus() : Error("must be an object");
}

Status JsonNode::CheckKeys(std::initializer_list<std::string_view> allowed) const {
  RETURN_IF_ERROR(CheckIsObject());
  for (const auto& [key, value] : value_->items()) {
    if (std::find(allowed.begin(), allowed.end(), key) == allowed.end()) {
      return Error(fmt::format("field \"{}\" is not supported", Escaped(key)));
    }
  }
  return absl::OkStatus();
}

bool JsonNode::Has(std::string_view key) const {
  if (!value_->is_object()) return false;
  const auto at = value_->find(key);
  return at != value_->end() && !at->is_null();
}

StatusOr<JsonNode> JsonNode::Get(std::string_view key) const {
  RETURN_IF_ERROR(CheckIsObject());
  const auto at = value_->find(key);
  if (at == value_->end()) return Error(fmt::format("field \"{}\" is missing", key));
  const bool is_root = place_.find(": ") == std::string::npos;
  return JsonNode(*at, fmt::format("{}{}{}", place_, is_root ? ": " : ".", key));
}

StatusOr<std::string> JsonNode::AsString() const {
  if (!value_->is_string()) return Error("must be a string");
  return value_->get<std::string>();
}

StatusOr<bool> JsonNode::AsBool() const {
  if (!value_->is_boolean()) return Error("must be true or false");
  return value_->get<bool>();
}

StatusOr<int64_t> JsonNode::AsInteger() const {
  const bool fits = value_->is_number_integer() &&
                    (!value_->is_number_unsigned() || value_->get<uint64_t>() <= INT64_MAX);
  if (!fits) return Error("must be an integer");
  return value_->get<int64_t>();
}

Status JsonNode::ForEachItem(const std::function<Status(const JsonNode& item)>& visit) const {
  if (!value_->is_array()) return Error("must be a list");
  for (size_t i = 0; i < value_->size(); ++i) {
    RETURN_IF_ERROR(visit(JsonNode((*value_)[i], fmt::format("{}[{}]", place_, i))));
  }
  return absl::OkStatus();
}

StatusOr<std::string> JsonNode::GetString(std::string_view key) const {
  ASSIGN_OR_RETURN(const JsonNode node, Get(key));
  return node.AsString();
}

StatusOr<bool> JsonNode::GetBool(std::string_view key, bool when_absent) const {
  if (!Has(key)) return when_absent;
  ASSIGN_OR_RETURN(const JsonNode node, Get(key));
  return node.AsBool();
}

}  // namespace longspan
