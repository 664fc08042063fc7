// The table of attention problems that the sm_80 line is held against the oracle with: every pair
// of values of two properties is in some row.
#pragma once

#include <string>
#include <vector>

#include "tests/support/paged_attention.h"

namespace longspan {

struct Sm80Case {
  std::string name;  // says all properties; letters, digits and underscores
  bool decode = false;
  int32_t num_ctas = 0;  // of decode; 0: one per SM
  AttentionCase spec;
};

// The same list on every machine.
std::vector<Sm80Case> Sm80Cases();

}  // namespace longspan
