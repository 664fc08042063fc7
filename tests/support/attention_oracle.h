// Attention as its definition says, in double, one key at a time: what every attention kernel is
// compared with. Slow on purpose, and shares no code with any kernel.
#pragma once

#include <string>
#include <vector>

#include "kernels/attention/attention_params.h"

namespace longspan {

struct OracleOutput {
  std::vector<double> o;    // [total_q, num_q_heads, head_dim]
  std::vector<double> lse;  // [total_q, num_q_heads], natural log, without the sink
};

// Reads host memory through the same pointers and strides as the kernel; params.o and lse are not
// used.
OracleOutput AttentionOracle(const AttentionParams& params);

// Empty when params.o (and params.lse, if given) equals the oracle: the same non-finite values at
// the same places, and |difference| <= tolerance * (1 + |expected|). Else one line about the worst
// element.
std::string CompareWithOracle(const AttentionParams& params, const OracleOutput& expected,
                              double o_tolerance, double lse_tolerance);

}  // namespace longspan
