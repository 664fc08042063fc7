// Names of values, and the limits that the edge asks for before a request exists.
#include "scheduler/request.h"

#include <algorithm>

#include "scheduler/scheduler.h"

namespace longspan {

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAborted:
      return "aborted";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kNonFinite:
      return "nonfinite";
    case FinishReason::kSlowReader:
      return "slow_reader";
    case FinishReason::kDrained:
      return "drained";
  }
  return "unknown";
}

int64_t MaxFittingTokens(int32_t num_blocks, int32_t block_size) {
  return static_cast<int64_t>(num_blocks) * block_size;
}

int32_t MaxNewTokens(int32_t num_prompt_tokens, int32_t max_model_len, int32_t num_blocks,
                     int32_t block_size) {
  const int64_t total = std::min<int64_t>(max_model_len, MaxFittingTokens(num_blocks, block_size));
  return static_cast<int32_t>(std::max<int64_t>(0, total - num_prompt_tokens));
}

}  // namespace longspan
