// longspan: the command-line client. Exit codes: 0 ok, 2 usage, otherwise the gRPC code + 64.
#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "clients/bench_command.h"
#include "clients/connection.h"
#include "clients/generate_command.h"
#include "clients/health_check.h"

namespace longspan {
namespace {

template <typename Message>
int PrintReply(const grpc::Status& status, const Message& reply) {
  if (!status.ok()) return ExitCodeOf(status);
  std::string json;
  google::protobuf::util::JsonPrintOptions print;
  print.add_whitespace = true;
  print.preserve_proto_field_names = true;
  print.always_print_primitive_fields = true;
  if (!google::protobuf::util::MessageToJsonString(reply, &json, print).ok())
    return 64 + grpc::INTERNAL;
  std::fputs(json.c_str(), stdout);
  return 0;
}

// A prompt from the argument, from --file, or from standard input ("-" or nothing).
bool ReadPrompt(const std::string& argument, const std::string& file, std::string& prompt) {
  if (!file.empty()) {
    std::ifstream in(file, std::ios::binary);
    if (!in) {
      fmt::print(stderr, "longspan: --file: cannot read {}\n", file);
      return false;
    }
    prompt.assign(std::istreambuf_iterator<char>(in), {});
  } else if (argument.empty() || argument == "-") {
    prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else {
    prompt = argument;
  }
  return true;
}

}  // namespace

int Main(int argc, char** argv) {
  CLI::App app("longspan: client of longspan-server");
  app.require_subcommand(1);
  app.fallthrough();
  std::string server = "127.0.0.1:50051";
  app.add_option("--server", server, "HOST:PORT or unix:PATH")
      ->envname("LONGSPAN_SERVER")
      ->capture_default_str();
  int exit_code = 0;

  GenerateOptions generate;
  std::string prompt_argument, prompt_file;
  CLI::App* generate_command = app.add_subcommand("generate", "Stream one answer");
  generate_command->add_option("prompt", prompt_argument,
                               "The prompt; - or nothing: standard input");
  generate_command->add_option("--file", prompt_file, "Read the prompt from a file");
  generate_command->add_flag("--chat", generate.chat,
                             "Wrap the prompt as a user turn (ChatML models)");
  generate_command->add_option("--system", generate.system, "System message, with --chat");
  generate_command->add_option("--max-tokens", generate.max_tokens, "Tokens to generate at most");
  generate_command->add_option("--temperature", generate.temperature, "0: greedy");
  generate_command->add_option("--top-p", generate.top_p, "Nucleus");
  generate_command->add_option("--top-k", generate.top_k, "The k most likely");
  generate_command->add_option("--seed", generate.seed, "Random seed");
  generate_command->add_option("-n", generate.n, "Sequences");
  generate_command->add_option("--logprobs", generate.logprobs,
                               "Top log-probabilities, with --json");
  generate_command->add_option("--stop", generate.stop, "Stop string; may be repeated");
  generate_command->add_option("--request-id", generate.request_id, "Id for abort");
  generate_command->add_option("--timeout", generate.timeout_seconds, "Deadline in seconds");
  generate_command->add_flag("--json", generate.json, "One JSON object per message");
  generate_command->add_flag("!--no-stats", generate.stats, "No line of figures at the end");
  generate_command->callback([&] {
    Connection connection = Connect(server);
    exit_code = ReadPrompt(prompt_argument, prompt_file, generate.prompt)
                    ? RunGenerate(connection, generate)
                    : 2;
  });

  std::string text, text_file;
  bool parse_special = false;
  CLI::App* tokenize = app.add_subcommand("tokenize", "Text to token ids");
  tokenize->add_option("text", text, "The text; - or nothing: standard input");
  tokenize->add_option("--file", text_file, "Read the text from a file");
  tokenize->add_flag("--parse-special", parse_special, "Special tokens in the text count as such");
  tokenize->callback([&] {
    v1::TokenizeRequest request;
    if (!ReadPrompt(text, text_file, *request.mutable_text())) {
      exit_code = 2;
      return;
    }
    request.set_parse_special_tokens(parse_special);
    grpc::ClientContext context;
    v1::TokenizeResponse reply;
    exit_code = PrintReply(Connect(server).inference->Tokenize(&context, request, &reply), reply);
  });

  app.add_subcommand("info", "The served model and the server")->callback([&] {
    const Connection connection = Connect(server);
    grpc::ClientContext server_context, model_context;
    v1::GetServerInfoResponse server_info;
    exit_code = PrintReply(connection.inference->GetServerInfo(&server_context, {}, &server_info),
                           server_info);
    if (exit_code != 0 || server_info.state() == v1::SERVER_STATE_LOADING) return;
    v1::GetModelInfoResponse model_info;
    exit_code =
        PrintReply(connection.inference->GetModelInfo(&model_context, {}, &model_info), model_info);
  });
  app.add_subcommand("load", "How busy the server is")->callback([&] {
    grpc::ClientContext context;
    v1::GetLoadResponse reply;
    exit_code = PrintReply(Connect(server).inference->GetLoad(&context, {}, &reply), reply);
  });

  std::string service;
  CLI::App* health = app.add_subcommand("health", "Exit 0 when the server is SERVING (for probes)");
  health->add_option("--service", service, "Service to ask for; empty: the whole server");
  health->callback([&] { exit_code = RunHealthCheck(Connect(server), service); });

  std::string request_id;
  CLI::App* abort = app.add_subcommand("abort", "End a request");
  abort->add_option("request_id", request_id, "As given or reported")->required();
  abort->callback([&] {
    v1::AbortRequest request;
    request.set_request_id(request_id);
    grpc::ClientContext context;
    v1::AbortResponse reply;
    exit_code = PrintReply(Connect(server).inference->Abort(&context, request, &reply), reply);
  });

  double drain_timeout = -1.0;
  std::string admin;
  CLI::App* drain = app.add_subcommand("drain", "Finish what runs, then stop the server");
  drain->add_option("--admin", admin, "Admin address of the server, unix:PATH")->required();
  drain->add_option("--timeout", drain_timeout, "Seconds; default: the server's");
  drain->callback([&] {
    v1::DrainRequest request;
    if (drain_timeout >= 0.0) request.set_timeout_seconds(drain_timeout);
    grpc::ClientContext context;
    v1::DrainResponse reply;
    exit_code = PrintReply(Connect(admin).admin->Drain(&context, request, &reply), reply);
  });

  BenchOptions bench;
  CLI::App* bench_command = app.add_subcommand("bench", "Measure a server under load");
  bench_command->add_option("--num-prompts", bench.plan.num_requests, "Requests")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  bench_command
      ->add_option("--request-rate", bench.plan.request_rate,
                   "Requests a second, Poisson; 0: all at once")
      ->check(CLI::NonNegativeNumber);
  bench_command
      ->add_option("--max-concurrency", bench.max_concurrency,
                   "Requests in flight at most (closed loop); 0: no bound")
      ->check(CLI::NonNegativeNumber);
  bench_command->add_option("--random-input-len", bench.plan.input_len, "Prompt tokens")
      ->check(CLI::Range(1, 16777216))
      ->capture_default_str();
  bench_command->add_option("--random-output-len", bench.plan.output_len, "Tokens to generate")
      ->check(CLI::Range(1, 16777216))
      ->capture_default_str();
  bench_command
      ->add_option("--random-range-ratio", bench.plan.range_ratio, "Lengths vary by this share")
      ->check(CLI::Range(0.0, 1.0));
  bench_command
      ->add_option("--random-prefix-len", bench.plan.prefix_len, "Tokens all prompts share")
      ->check(CLI::NonNegativeNumber);
  bench_command->add_option("--seed", bench.plan.seed, "Of the load");
  bench_command->add_option("--json", bench.json_file, "Write the report to a file");
  bench_command->add_flag("!--no-progress", bench.progress, "No progress bar");
  bench_command->callback([&] {
    Connection connection = Connect(server);
    exit_code = RunBench(connection, bench);
  });

  try {
    app.parse(argc, argv);
  } catch (const CLI::Error& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return exit_code;
}

}  // namespace longspan

int main(int argc, char** argv) { return longspan::Main(argc, argv); }
