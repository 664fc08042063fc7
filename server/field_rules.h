// Ranges of request fields as one table per message: path, range, finiteness, item and byte limits.
// A field without a row, or a row without a field, ends the process when the table is built (a unit
// test builds all of them). Says nothing about how fields depend on each other: request_validator.h
// does.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "server/error_details.h"

namespace longspan {

enum class FieldKind : uint8_t {
  kAny,        // every value is legal (flags, a seed, text that is checked by what uses it)
  kNumber,     // in [min, max]
  kEnum,       // a value that the proto names
  kText,       // string or bytes of min_bytes..max_bytes
  kTokenId,    // in [0, vocab_size)
  kTokenBias,  // map: key a token id, value in [min, max]
};

// One leaf field. Limits hold for each item of a repeated field.
struct FieldRule {
  const char* path;  // as in the proto: "sampling.top_p"
  FieldKind kind = FieldKind::kAny;
  double min = 0.0;
  double max = 0.0;
  bool open_min = false;  // (min, max]
  int32_t max_items = 1;  // of a repeated field or map
  int32_t min_bytes = 0;
  int32_t max_bytes = 0;
};

constexpr double kInt32Max = std::numeric_limits<int32_t>::max();
constexpr int32_t kNoItemLimit = std::numeric_limits<int32_t>::max();

constexpr FieldRule Any(const char* path) { return {.path = path}; }
constexpr FieldRule Number(const char* path, double min, double max) {
  return {.path = path, .kind = FieldKind::kNumber, .min = min, .max = max};
}
// (min, max]
constexpr FieldRule NumberAbove(const char* path, double min, double max) {
  return {.path = path, .kind = FieldKind::kNumber, .min = min, .max = max, .open_min = true};
}
constexpr FieldRule Enum(const char* path) { return {.path = path, .kind = FieldKind::kEnum}; }
constexpr FieldRule Text(const char* path, int32_t min_bytes, int32_t max_bytes,
                         int32_t max_items = 1) {
  return {.path = path,
          .kind = FieldKind::kText,
          .max_items = max_items,
          .min_bytes = min_bytes,
          .max_bytes = max_bytes};
}
constexpr FieldRule TokenIdList(const char* path, int32_t max_items) {
  return {.path = path, .kind = FieldKind::kTokenId, .max_items = max_items};
}
constexpr FieldRule TokenBias(const char* path, double min, double max, int32_t max_items) {
  return {
      .path = path, .kind = FieldKind::kTokenBias, .min = min, .max = max, .max_items = max_items};
}

// Immutable after construction, so any thread may check.
class FieldTable {
 public:
  FieldTable(const google::protobuf::Descriptor& descriptor, std::span<const FieldRule> rules);

  // Adds a violation for every set field outside its limits (of a list the first bad item). Takes
  // time in proportion to items below their limit, and no memory.
  void Check(const google::protobuf::Message& message, int32_t vocab_size,
             Violations& violations) const;

 private:
  struct Row {
    FieldRule rule;
    std::vector<const google::protobuf::FieldDescriptor*> path;  // sub-messages, then the leaf
  };
  std::vector<Row> rows_;
};

}  // namespace longspan
