// From a parsed request to what the engine takes, or to INVALID_ARGUMENT: the ranges of every field
// (one table per message), then the rules between fields. No side effects; nothing is allocated in
// proportion to a bad value.
#pragma once

#include <grpcpp/support/status.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.h"
#include "longspan/v1/admin.pb.h"
#include "longspan/v1/inference.pb.h"
#include "scheduler/request.h"
#include "server/error_details.h"
#include "server/server_context.h"

namespace longspan {

// What the output side has to know about a request.
struct OutputOptions {
  bool text = true;
  bool token_ids = true;
  bool skip_special_tokens = true;
  std::vector<std::string> stop_strings;
  bool include_stop_in_output = false;
  int32_t min_tokens = 0;               // stop strings are not looked for before
  std::vector<TokenId> stop_token_ids;  // EOS among them unless ignored: ids without text
};

struct ValidatedRequest {
  SequenceParams params;  // the deadline is the caller's to set
  OutputOptions output;
};

// Immutable, so any thread may use it; borrows the model.
class RequestValidator {
 public:
  explicit RequestValidator(const ServedModel& model);

  // Checks everything and fills `out`. Tokenizes text and bad words: NeedsTokenizer says whether
  // that takes more than a millisecond's worth, so that the call belongs on the tokenizer thread.
  // CANCELLED when `cancelled` became true. drawn_seed: used when the request has none.
  grpc::Status Build(const v1::GenerateRequest& request, uint64_t drawn_seed,
                     const std::atomic<bool>* cancelled, ValidatedRequest& out) const;
  static bool NeedsTokenizer(const v1::GenerateRequest& request);

  grpc::Status Check(const v1::TokenizeRequest& request) const;
  grpc::Status Check(const v1::DetokenizeRequest& request) const;

 private:
  grpc::Status CheckModel(bool is_set, const std::string& name) const;
  int32_t PromptLimit(const v1::GenerateRequest& request) const;
  void CheckPromptLength(const v1::GenerateRequest& request, int64_t num_tokens,
                         Violations& violations) const;
  grpc::Status FillPrompt(const v1::GenerateRequest& request, const std::atomic<bool>* cancelled,
                          std::vector<TokenId>& prompt) const;
  grpc::Status FillBadWords(const v1::GenerateRequest& request, const std::atomic<bool>* cancelled,
                            SamplingParams& sampling) const;
  void ResolveMaxTokens(const v1::GenerateRequest& request, SequenceParams& params,
                        Violations& violations) const;

  const ServedModel& model_;
};

// Messages whose limits do not depend on a model.
grpc::Status CheckRequest(const v1::AbortRequest& request);
grpc::Status CheckRequest(const v1::DrainRequest& request);
grpc::Status CheckRequest(const v1::SetLogLevelRequest& request);

// 1..128 characters, none of them a control character; `text` is valid UTF-8.
bool IsPrintableId(std::string_view text);

}  // namespace longspan
