// Every flag of longspan-server: one table makes parsing, validation, --help and docs/flags.md. A
// value comes from the command line, else the environment (LONGSPAN_MAX_MODEL_LEN), else --config
// FILE, else the default.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace longspan {

// Validated settings. Empty strings and zero mean "choose", where the table says so.
struct ServerOptions {
  // Model
  std::string model;
  std::string served_model_name;
  std::string load_format = "auto";
  std::string device = "auto";
  std::string dtype = "auto";
  std::string matmul_precision = "auto";
  bool check_weights = false;
  int64_t threads = 0;  // 0: one per core this process may use

  // KV cache
  std::string kv_cache_dtype = "auto";
  int64_t kv_cache_memory_bytes = 0;  // 0: from the memory limit
  int64_t kv_blocks = 0;              // 0: from bytes
  double gpu_memory_utilization = 0.9;
  int64_t block_size = 16;
  bool enable_prefix_caching = true;

  // Scheduling
  int64_t max_model_len = 0;  // 0: the model's context length
  int64_t max_num_seqs = 64;
  int64_t max_num_batched_tokens = 512;
  int64_t max_queued_requests = 1024;
  int64_t max_queued_tokens = 8 * 1024 * 1024;
  bool batch_invariant = false;

  // Listeners
  std::string listen = "127.0.0.1:50051";
  std::string admin_listen;  // empty: unix socket in the run-time folder
  std::string metrics_listen = "127.0.0.1:9464";
  bool insecure_bind = false;
  std::string reflection = "auto";
  int64_t max_message_bytes = 64 * 1024 * 1024;
  double keepalive_time = 30.0;
  double keepalive_timeout = 10.0;

  // Operation
  double drain_timeout = 25.0;
  double slow_reader_timeout = 30.0;
  double step_timeout = 600.0;
  int64_t max_pending_tokens = 256;
  std::string ready_file;
  std::string log_format = "text";
  std::string log_level = "info";
  std::string vllm_metrics = "on";
  bool check = false;

  // Test only
  double step_delay_ms = 0.0;
  bool start_paused = false;
  bool poison_freed = false;
  int64_t num_splits = 0;
  std::string fault;
};

// One row of the table.
struct OptionSpec {
  const char* name;  // without the dashes
  const char* group;
  const char* unit;   // "bytes", "seconds", "tokens", ...; "" when none
  const char* range;  // "1..1024", "auto|cpu|cuda|hip"
  const char* help;
  bool is_switch;  // --name / --no-name
  bool test_only;  // hidden in --help
  // Parses and range-checks; the message says what is wrong, without the name.
  std::function<Status(ServerOptions&, std::string_view)> set;
  std::function<std::string(const ServerOptions&)> get;
};

std::span<const OptionSpec> OptionTable();

// What the command line asked for.
struct ParsedCommandLine {
  enum class Action { kRun, kHelp, kVersion, kFlagsMarkdown };
  Action action = Action::kRun;
  ServerOptions options;
};

// environment: name -> value or nullopt. Errors are kInvalidArgument, one sentence that names the
// source.
StatusOr<ParsedCommandLine> ParseCommandLine(
    const std::vector<std::string>& args,
    const std::function<std::optional<std::string>(const std::string&)>& environment);

// Contradictions between options that are each valid.
Status ValidateOptions(const ServerOptions& options);

// Name -> value of every option that is not test-only, defaults included.
std::map<std::string, std::string> OptionValues(const ServerOptions& options);

std::string HelpText();       // grouped, with units, ranges and defaults
std::string FlagsMarkdown();  // docs/flags.md

// "512MiB", "2GB", "1073741824" -> bytes; nullopt when malformed or above 2^62.
std::optional<int64_t> ParseBytes(std::string_view text);

}  // namespace longspan
