#include "tokenizer/json_document.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "core/log.h"

namespace longspan {
namespace {

using nlohmann::json;

// The depth of brackets outside strings, without parsing: the parser must never see a deeper text.
bool IsDeeperThan(std::string_view text, int max_depth) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > max_depth) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

// Sees every key while the document is parsed.
class DuplicateKeyFinder {
 public:
  bool operator()(int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) {
      open_objects_.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      open_objects_.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects_.back().insert(key).second && !duplicate_) duplicate_ = key;
    }
    return true;
  }
  const std::optional<std::string>& duplicate() const { return duplicate_; }

 private:
  std::vector<std::unordered_set<std::string>> open_objects_;
  std::optional<std::string> duplicate_;
};

}  // namespace

StatusOr<json> ParseJsonDocument(std::string_view text, std::string_view name, int max_depth) {
  if (IsDeeperThan(text, max_depth)) {
    return InvalidArgument("{}: nested too deep (limit {})", name, max_depth);
  }
  DuplicateKeyFinder finder;
  try {
    json document = json::parse(text, std::ref(finder));
    if (finder.duplicate()) {
      return InvalidArgument("{}: key \"{}\" appears twice in one object", name,
                             Escaped(*finder.duplicate()));
    }
    return document;
  } catch (const json::parse_error& error) {
    return InvalidArgument("{}: not valid JSON (at byte {})", name, error.byte);
  } catch (const json::exception&) {
    return InvalidArgument("{}: not valid JSON (a number out of range)", name);
  }
}

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
