// `longspan generate`: streams one answer to the terminal, or as JSON lines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "clients/connection.h"

namespace longspan {

struct GenerateOptions {
  std::string prompt;
  bool chat = false;  // wrap the prompt as a user turn
  std::string system;
  std::optional<int32_t> max_tokens;
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int32_t> top_k;
  std::optional<uint64_t> seed;
  std::optional<int32_t> n;
  std::optional<int32_t> logprobs;
  std::vector<std::string> stop;
  std::string request_id;
  std::optional<double> timeout_seconds;
  bool json = false;  // one JSON object per message on standard output
  bool stats = true;  // a line of figures on standard error at the end
};

// Returns the exit code. Ending the process (SIGINT) closes the connection, which cancels the call.
int RunGenerate(Connection& connection, const GenerateOptions& options);

}  // namespace longspan
