// Raw bytes as a GenerateRequest: parsed, validated against a small model. Whatever comes, the
// answer is a status, and an accepted request keeps the promises that the engine relies on.
#include <cmath>
#include <cstdint>

#include "core/check.h"
#include "server/request_validator.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const longspan::ServedModel model = [] {
    longspan::ServedModel served;
    served.name = "toy";
    served.config.vocab_size = 512;
    served.config.context_length = 256;
    served.max_model_len = 256;
    served.block_size = 4;
    served.num_blocks = 64;
    return served;
  }();
  static const longspan::RequestValidator validator(model);
  longspan::v1::GenerateRequest request;
  if (size > INT32_MAX || !request.ParseFromArray(data, static_cast<int>(size))) return 0;
  longspan::ValidatedRequest out;
  const grpc::Status status = validator.Build(request, 1, nullptr, out);
  if (!status.ok()) {
    CHECK(status.error_message().size() + status.error_details().size() < 8192, "{} bytes",
          status.error_message().size());
    return 0;
  }
  const longspan::SequenceParams& params = out.params;
  CHECK(!params.prompt.empty() && params.prompt.size() <= 256, "{} prompt tokens",
        params.prompt.size());
  for (const longspan::TokenId id : params.prompt) CHECK(ToInt(id) >= 0 && ToInt(id) < 512);
  CHECK(params.n >= 1 && params.n <= 16 && params.max_tokens >= 0, "n {} max_tokens {}", params.n,
        params.max_tokens);
  CHECK(std::isfinite(params.sampling.temperature) && params.sampling.temperature >= 0.0f);
  return 0;
}
