// Draws arrivals (exponential gaps), lengths and ids from one seeded generator. The order of the
// draws is part of the result: a new draw goes to the end, or old seeds mean other plans.
#include "clients/load_plan.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace longspan {
namespace {

int32_t DrawLength(int32_t length, double ratio, std::mt19937_64& random) {
  const auto low = static_cast<int32_t>(std::ceil(length * (1.0 - ratio)));
  const auto high = static_cast<int32_t>(std::floor(length * (1.0 + ratio)));
  return std::max(1, std::uniform_int_distribution<int32_t>(low, std::max(low, high))(random));
}

}  // namespace

std::vector<PlannedRequest> MakeLoadPlan(const LoadPlanOptions& options) {
  std::mt19937_64 random(options.seed);
  std::uniform_int_distribution<int32_t> token(0, std::max(0, options.vocab_size - 1));
  std::exponential_distribution<double> gap(options.request_rate > 0.0 ? options.request_rate
                                                                       : 1.0);
  std::vector<int32_t> prefix(static_cast<size_t>(options.prefix_len));
  for (int32_t& id : prefix) id = token(random);

  std::vector<PlannedRequest> plan(static_cast<size_t>(options.num_requests));
  double start = 0.0;
  for (PlannedRequest& request : plan) {
    request.start_seconds = start;
    if (options.request_rate > 0.0) start += gap(random);
    request.prompt = prefix;
    const int32_t length = DrawLength(options.input_len, options.range_ratio, random);
    for (int32_t i = 0; i < length; ++i) request.prompt.push_back(token(random));
    request.output_len = DrawLength(options.output_len, options.range_ratio, random);
  }
  return plan;
}

}  // namespace longspan
