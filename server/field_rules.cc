// Walks a message by reflection along the rows of its table. The constructor compares table and
// message both ways, so that a new field without a row does not start.
#include "server/field_rules.h"

#include <fmt/format.h>
#include <google/protobuf/reflection.h>

#include <cmath>
#include <map>
#include <optional>
#include <string_view>

#include "core/check.h"

namespace longspan {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

using LeafPath = std::vector<const FieldDescriptor*>;

// Every leaf below `descriptor`, by its dotted path.
void CollectLeaves(const Descriptor& descriptor, const std::string& prefix, const LeafPath& above,
                   std::map<std::string, LeafPath>& leaves) {
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor* field = descriptor.field(i);
    LeafPath path = above;
    path.push_back(field);
    const std::string name = prefix + field->name();
    const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (is_message && !field->is_map()) {
      CHECK(!field->is_repeated(), "{}: repeated messages are not supported", name);
      CollectLeaves(*field->message_type(), name + ".", path, leaves);
    } else {
      leaves.emplace(name, std::move(path));
    }
  }
}

std::string RangeText(const FieldRule& rule) {
  return fmt::format("{}{}, {}]", rule.open_min ? "(" : "[", rule.min, rule.max);
}

std::optional<std::string> NumberProblem(const FieldRule& rule, double value) {
  if (!std::isfinite(value)) {
    return fmt::format("is not finite (limit {})", RangeText(rule));
  }
  const bool above_min = rule.open_min ? value > rule.min : value >= rule.min;
  if (above_min && value <= rule.max) return std::nullopt;
  return fmt::format("{} is out of range (limit {})", value, RangeText(rule));
}

std::optional<std::string> IdProblem(int32_t id, int32_t vocab_size) {
  if (id >= 0 && id < vocab_size) return std::nullopt;
  return fmt::format("token id {} is out of range (limit [0, {}])", id, vocab_size - 1);
}

std::optional<std::string> BytesProblem(const FieldRule& rule, size_t bytes) {
  if (bytes >= static_cast<size_t>(rule.min_bytes) &&
      bytes <= static_cast<size_t>(rule.max_bytes)) {
    return std::nullopt;
  }
  return fmt::format("has {} bytes (limit [{}, {}])", bytes, rule.min_bytes, rule.max_bytes);
}

std::optional<double> NumberValue(const Message& message, const FieldDescriptor* field) {
  const Reflection& reflection = *message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.GetFloat(message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.GetDouble(message, field);
    default:
      return std::nullopt;
  }
}

// The first bad item: its name as in "[17]", and what is wrong with it.
struct ItemProblem {
  std::string item;
  std::string problem;
};

std::optional<ItemProblem> RepeatedProblem(const FieldRule& rule, const Message& message,
                                           const FieldDescriptor* field, int32_t vocab_size) {
  const Reflection& reflection = *message.GetReflection();
  const int size = reflection.FieldSize(message, field);
  if (size > rule.max_items) {
    return ItemProblem{"", fmt::format("has {} entries (limit {})", size, rule.max_items)};
  }
  if (rule.kind == FieldKind::kTokenId) {
    const auto ids = reflection.GetRepeatedFieldRef<int32_t>(message, field);
    for (int i = 0; i < size; ++i) {
      if (auto problem = IdProblem(ids.Get(i), vocab_size))
        return ItemProblem{fmt::format("[{}]", i), *problem};
    }
    return std::nullopt;
  }
  for (int i = 0; i < size; ++i) {
    if (rule.kind == FieldKind::kTokenBias) {
      const Message& entry = reflection.GetRepeatedMessage(message, field, i);
      const Descriptor& type = *entry.GetDescriptor();
      const int32_t id = entry.GetReflection()->GetInt32(entry, type.map_key());
      std::optional<std::string> problem = IdProblem(id, vocab_size);
      if (!problem) problem = NumberProblem(rule, *NumberValue(entry, type.map_value()));
      if (problem) return ItemProblem{fmt::format("[{}]", id), *problem};
    } else if (rule.kind == FieldKind::kText) {
      std::string scratch;
      const size_t bytes =
          reflection.GetRepeatedStringReference(message, field, i, &scratch).size();
      if (auto problem = BytesProblem(rule, bytes))
        return ItemProblem{fmt::format("[{}]", i), *problem};
    }
  }
  return std::nullopt;
}

std::optional<std::string> SingleProblem(const FieldRule& rule, const Message& message,
                                         const FieldDescriptor* field) {
  const Reflection& reflection = *message.GetReflection();
  switch (rule.kind) {
    case FieldKind::kNumber:
      return NumberProblem(rule, *NumberValue(message, field));
    case FieldKind::kEnum: {
      const int value = reflection.GetEnumValue(message, field);
      if (field->enum_type()->FindValueByNumber(value) != nullptr) return std::nullopt;
      return fmt::format("{} is not a value of {} (limit [0, {}])", value,
                         field->enum_type()->name(), field->enum_type()->value_count() - 1);
    }
    case FieldKind::kText: {
      std::string scratch;
      return BytesProblem(rule, reflection.GetStringReference(message, field, &scratch).size());
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

FieldTable::FieldTable(const Descriptor& descriptor, std::span<const FieldRule> rules) {
  std::map<std::string, LeafPath> leaves;
  CollectLeaves(descriptor, "", {}, leaves);
  for (const FieldRule& rule : rules) {
    const auto leaf = leaves.find(rule.path);
    CHECK(leaf != leaves.end(), "{} has no field {}, or two rows for it", descriptor.full_name(),
          rule.path);
    const FieldDescriptor* field = leaf->second.back();
    const bool is_list = rule.kind == FieldKind::kTokenId || rule.kind == FieldKind::kTokenBias;
    CHECK(!is_list || field->is_repeated(), "{} is not repeated", rule.path);
    CHECK(rule.kind != FieldKind::kNumber || field->cpp_type() == FieldDescriptor::CPPTYPE_INT32 ||
              field->cpp_type() == FieldDescriptor::CPPTYPE_FLOAT ||
              field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE,
          "{} is not a number that fits a double", rule.path);
    rows_.push_back({rule, leaf->second});
    leaves.erase(leaf);
  }
  CHECK(leaves.empty(), "{}: no row for field {}", descriptor.full_name(), leaves.begin()->first);
}

void FieldTable::Check(const Message& message, int32_t vocab_size, Violations& violations) const {
  for (const Row& row : rows_) {
    const Message* owner = &message;
    bool is_set = true;
    for (size_t i = 0; i + 1 < row.path.size() && is_set; ++i) {
      is_set = owner->GetReflection()->HasField(*owner, row.path[i]);
      if (is_set) owner = &owner->GetReflection()->GetMessage(*owner, row.path[i]);
    }
    if (!is_set) continue;
    const FieldDescriptor* field = row.path.back();
    if (field->is_repeated()) {
      if (auto bad = RepeatedProblem(row.rule, *owner, field, vocab_size)) {
        violations.Add(row.rule.path + bad->item, bad->problem);
      }
    } else if (owner->GetReflection()->HasField(*owner, field)) {
      if (auto problem = SingleProblem(row.rule, *owner, field)) {
        violations.Add(row.rule.path, *problem);
      }
    }
  }
}

}  // namespace longspan
