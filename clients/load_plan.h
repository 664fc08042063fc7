// What a load test sends and when: a pure function of its options and seed, so that two runs
// compare.
#pragma once

#include <cstdint>
#include <vector>

namespace longspan {

struct LoadPlanOptions {
  int32_t num_requests = 100;
  double request_rate = 0.0;  // requests per second, Poisson arrivals; 0: all at once
  int32_t input_len = 512;    // tokens, without the shared prefix
  int32_t output_len = 128;
  double range_ratio = 0.0;  // lengths are uniform in [len (1 - r), len (1 + r)]
  int32_t prefix_len = 0;    // tokens that all prompts share at their beginning
  int32_t vocab_size = 0;    // prompt ids are uniform in [0, vocab_size)
  uint64_t seed = 0;
};

struct PlannedRequest {
  double start_seconds = 0.0;  // since the beginning of the test
  std::vector<int32_t> prompt;
  int32_t output_len = 0;
};

std::vector<PlannedRequest> MakeLoadPlan(const LoadPlanOptions& options);

}  // namespace longspan
