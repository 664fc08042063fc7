// The options of the table of attention problems, and their values: what each makes of a row.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/attention_table.h"

namespace longspan {

struct AttentionTableValue {
  std::string name;  // a part of rows' names; may be empty
  uint8_t servers;
  std::function<void(AttentionTableRow&)> apply;
};
// A new value is one more entry of its option. Options are applied in order: a later one may look
// at what earlier ones have set.
struct AttentionTableOption {
  const char* name;
  std::vector<AttentionTableValue> values;
};

std::vector<AttentionTableOption> AttentionTableOptionsWithValues();

}  // namespace longspan
