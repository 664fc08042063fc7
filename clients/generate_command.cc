// From options to one GenerateRequest, and from its stream to the terminal: text as it comes, or
// one JSON object a line. No retries: what the server says is what the user sees.
#include "clients/generate_command.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <chrono>
#include <cstdio>

#include "clients/chat_prompt.h"

namespace longspan {
namespace {

// Figures of the last Finished message.
struct Outcome {
  v1::Started started;
  v1::Finished finished;
  bool has_finished = false;
};

bool FillRequest(Connection& connection, const GenerateOptions& options,
                 v1::GenerateRequest& request, int& exit_code) {
  request.set_text(options.prompt);
  if (options.chat) {
    grpc::ClientContext context;
    v1::GetModelInfoResponse info;
    const grpc::Status status = connection.inference->GetModelInfo(&context, {}, &info);
    if (!status.ok()) {
      exit_code = ExitCodeOf(status);
      return false;
    }
    const auto prompt = ChatMlPrompt(info.chat_template(), options.system, options.prompt);
    if (!prompt) {
      std::fprintf(stderr,
                   "longspan: --chat: the model's chat template is not ChatML (use python -m "
                   "longspan chat)\n");
      exit_code = 2;
      return false;
    }
    request.set_text(*prompt);
    request.set_parse_special_tokens(true);
  }
  if (!options.request_id.empty()) request.set_request_id(options.request_id);
  if (options.max_tokens) request.mutable_stop()->set_max_tokens(*options.max_tokens);
  if (options.temperature) request.mutable_sampling()->set_temperature(*options.temperature);
  if (options.top_p) request.mutable_sampling()->set_top_p(*options.top_p);
  if (options.top_k) request.mutable_sampling()->set_top_k(*options.top_k);
  if (options.seed) request.mutable_sampling()->set_seed(*options.seed);
  if (options.n) request.set_n(*options.n);
  if (options.logprobs) request.mutable_output()->set_logprobs(*options.logprobs);
  for (const std::string& stop : options.stop) request.mutable_stop()->add_strings(stop);
  return true;
}

void PrintJson(const v1::GenerateResponse& response) {
  std::string json;
  google::protobuf::util::JsonPrintOptions print;
  print.preserve_proto_field_names = true;
  const auto status = google::protobuf::util::MessageToJsonString(response, &json, print);
  if (status.ok()) std::printf("%s\n", json.c_str());
  std::fflush(stdout);
}

void PrintStats(const Outcome& outcome) {
  const v1::Timings& timings = outcome.finished.timings();
  const double per_token = timings.time_per_output_token_seconds();
  fmt::print(
      stderr,
      "[{} prompt tokens, {} cached; {} generated; first token after {:.0f} ms; {} tokens/s; {}]\n",
      outcome.finished.usage().prompt_tokens(), outcome.finished.usage().cached_tokens(),
      outcome.finished.usage().completion_tokens(), timings.time_to_first_token_seconds() * 1e3,
      per_token > 0 ? fmt::format("{:.1f}", 1.0 / per_token) : "-",
      v1::FinishReason_Name(outcome.finished.reason()).substr(sizeof("FINISH_REASON_") - 1));
}

}  // namespace

int RunGenerate(Connection& connection, const GenerateOptions& options) {
  v1::GenerateRequest request;
  int exit_code = 0;
  if (!FillRequest(connection, options, request, exit_code)) return exit_code;

  grpc::ClientContext context;
  if (options.timeout_seconds) {
    context.set_deadline(
        std::chrono::system_clock::now() +
        std::chrono::milliseconds(static_cast<int64_t>(*options.timeout_seconds * 1e3)));
  }
  const auto reader = connection.inference->Generate(&context, request);
  v1::GenerateResponse response;
  Outcome outcome;
  int32_t last_index = 0;
  while (reader->Read(&response)) {
    if (options.json) PrintJson(response);
    if (response.has_started()) outcome.started = response.started();
    if (response.has_queued() && !options.json) {
      fmt::print(stderr, "[queued, {} before it]\n", response.queued().position());
    }
    if (response.has_chunk() && !options.json) {
      if (response.chunk().index() != last_index) {
        last_index = response.chunk().index();
        std::printf("\n[%d] ", last_index);
      }
      std::fwrite(response.chunk().text().data(), 1, response.chunk().text().size(), stdout);
      std::fflush(stdout);
    }
    if (response.has_finished()) {
      outcome.finished = response.finished();
      outcome.has_finished = true;
    }
  }
  const grpc::Status status = reader->Finish();
  if (!options.json) std::printf("\n");
  std::fflush(stdout);
  if (status.ok() && outcome.has_finished && options.stats && !options.json) PrintStats(outcome);
  return ExitCodeOf(status);
}

}  // namespace longspan
