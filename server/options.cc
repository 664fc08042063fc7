// The table of flags and the machinery that reads it: command line, environment and file give
// strings, each row parses and range-checks its own. Adding a flag is adding a row (and its field
// in options.h).
#include "server/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>

namespace longspan {
namespace {

std::optional<int64_t> ParseInteger(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<bool> ParseBool(std::string_view text) {
  if (text == "true" || text == "1" || text == "on" || text == "yes") return true;
  if (text == "false" || text == "0" || text == "off" || text == "no") return false;
  return std::nullopt;
}

OptionSpec Text(const char* name, const char* group, const char* range, const char* help,
                std::string ServerOptions::*field) {
  return {name,
          group,
          "",
          range,
          help,
          false,
          false,
          [field](ServerOptions& options, std::string_view value) {
            options.*field = std::string(value);
            return Status();
          },
          [field](const ServerOptions& options) { return options.*field; }};
}

OptionSpec Choice(const char* name, const char* group, const char* choices, const char* help,
                  std::string ServerOptions::*field) {
  OptionSpec spec = Text(name, group, choices, help, field);
  spec.set = [field, choices](ServerOptions& options, std::string_view value) {
    std::string_view rest = choices;
    while (!rest.empty()) {
      const size_t bar = rest.find('|');
      if (rest.substr(0, bar) == value) {
        options.*field = std::string(value);
        return Status();
      }
      rest = bar == std::string_view::npos ? std::string_view() : rest.substr(bar + 1);
    }
    return InvalidArgument("\"{}\" is not one of {}", value, choices);
  };
  return spec;
}

template <typename Number>
Status SetInRange(ServerOptions& options, Number ServerOptions::*field, std::string_view value,
                  Number number, Number low, Number high, const char* range) {
  if (number < low || number > high)
    return InvalidArgument("{} is out of range ({})", value, range);
  options.*field = number;
  return Status();
}

OptionSpec Integer(const char* name, const char* group, const char* unit, const char* help,
                   int64_t ServerOptions::*field, int64_t low, int64_t high, const char* range) {
  const bool is_bytes = std::string_view(unit) == "bytes";
  return {name,
          group,
          unit,
          range,
          help,
          false,
          false,
          [=](ServerOptions& options, std::string_view value) {
            const auto number = is_bytes ? ParseBytes(value) : ParseInteger(value);
            if (!number)
              return InvalidArgument("\"{}\" is not a number of {}", value, *unit ? unit : "units");
            return SetInRange(options, field, value, *number, low, high, range);
          },
          [field](const ServerOptions& options) { return fmt::format("{}", options.*field); }};
}

OptionSpec Real(const char* name, const char* group, const char* unit, const char* help,
                double ServerOptions::*field, double low, double high, const char* range) {
  return {
      name,
      group,
      unit,
      range,
      help,
      false,
      false,
      [=](ServerOptions& options, std::string_view value) {
        double number = 0;
        const auto [end, error] =
            std::from_chars(value.data(), value.data() + value.size(), number);
        if (error != std::errc() || end != value.data() + value.size() || !std::isfinite(number)) {
          return InvalidArgument("\"{}\" is not a finite number", value);
        }
        return SetInRange(options, field, value, number, low, high, range);
      },
      [field](const ServerOptions& options) { return fmt::format("{}", options.*field); }};
}

OptionSpec Switch(const char* name, const char* group, const char* help,
                  bool ServerOptions::*field) {
  return {name,
          group,
          "",
          "true|false",
          help,
          true,
          false,
          [field](ServerOptions& options, std::string_view value) {
            const auto parsed = ParseBool(value);
            if (!parsed) return InvalidArgument("\"{}\" is not true or false", value);
            options.*field = *parsed;
            return Status();
          },
          [field](const ServerOptions& options) {
            return std::string(options.*field ? "true" : "false");
          }};
}

OptionSpec TestOnly(OptionSpec spec) {
  spec.test_only = true;
  return spec;
}

std::vector<OptionSpec> MakeTable() {
  using O = ServerOptions;
  constexpr int64_t kMaxInt32 = 2147483647;
  constexpr int64_t kMaxBytes = int64_t{1} << 62;
  return {
      Text("model", "Model", "",
           "GGUF file, or folder with safetensors, config.json and tokenizer.json", &O::model),
      Text("served-model-name", "Model", "", "Name that clients ask for; empty: the model's own",
           &O::served_model_name),
      Choice("load-format", "Model", "auto|dummy",
             "dummy: random weights for the folder's config.json", &O::load_format),
      Choice("device", "Model", "auto|cpu|cuda|hip", "Where the model runs", &O::device),
      Choice("dtype", "Model", "auto|bfloat16|float16|float32",
             "Type of unquantised weights; auto: as the file has them", &O::dtype),
      Choice("matmul-precision", "Model", "auto|bfloat16|float32",
             "Inputs of matrix products on the CPU; auto: bfloat16 where the processor has it. "
             "Unquantised float16 and float32 weights are multiplied in float",
             &O::matmul_precision),
      Switch("check-weights", "Model", "Refuse a model with NaN or infinity in a weight",
             &O::check_weights),
      Integer("threads", "Model", "threads",
              "Compute threads; 0: one per core this process may use", &O::threads, 0, 1024,
              "0..1024"),
      Choice("kv-cache-dtype", "KV cache", "auto|float16|bfloat16|float32",
             "Type of cached keys and values; auto: bfloat16 with bfloat16 products, else float16",
             &O::kv_cache_dtype),
      Integer(
          "kv-cache-memory-bytes", "KV cache", "bytes",
          "Size of the KV cache; 0: max-num-seqs x max-model-len, at most 40 % of the memory limit",
          &O::kv_cache_memory_bytes, 0, kMaxBytes, "0 or more, 512MiB"),
      Integer("kv-blocks", "KV cache", "blocks",
              "Size of the KV cache in blocks instead of bytes; 0: from bytes", &O::kv_blocks, 0,
              kMaxInt32, "0..2147483647"),
      Real("gpu-memory-utilization", "KV cache", "",
           "Share of a GPU's memory to use; no effect on the CPU", &O::gpu_memory_utilization, 0.01,
           1.0, "0.01..1"),
      Integer("block-size", "KV cache", "tokens", "Tokens in a KV block", &O::block_size, 1, 256,
              "1..256"),
      Switch("enable-prefix-caching", "KV cache", "Reuse the KV blocks of equal prompt beginnings",
             &O::enable_prefix_caching),
      Integer("max-model-len", "Scheduling", "tokens", "Context length to serve; 0: the model's",
              &O::max_model_len, 0, kMaxInt32, "0..2147483647"),
      Integer("max-num-seqs", "Scheduling", "sequences", "Sequences that run at once",
              &O::max_num_seqs, 1, 4096, "1..4096"),
      Integer("max-num-batched-tokens", "Scheduling", "tokens",
              "Tokens computed in one step: decodes and prefill chunks together",
              &O::max_num_batched_tokens, 1, 1048576, "1..1048576"),
      Integer("max-queued-requests", "Scheduling", "requests",
              "Requests that may wait; one more is refused", &O::max_queued_requests, 1, 1048576,
              "1..1048576"),
      Integer("max-queued-tokens", "Scheduling", "tokens", "Prompt tokens that may wait",
              &O::max_queued_tokens, 1, kMaxBytes, "1 or more"),
      Switch("batch-invariant", "Scheduling",
             "Results independent of the batch on a GPU; always so on the CPU",
             &O::batch_invariant),
      Text("listen", "Listeners", "HOST:PORT or unix:PATH",
           "Inference, health and reflection; port 0 picks a free one", &O::listen),
      Text("admin-listen", "Listeners", "unix:PATH, HOST:PORT or off",
           "Admin service; empty: a unix socket in the run-time folder, mode 0600. HOST:PORT needs "
           "--insecure-bind, loopback too",
           &O::admin_listen),
      Text("metrics-listen", "Listeners", "HOST:PORT or off", "Prometheus text at /metrics",
           &O::metrics_listen),
      Switch("insecure-bind", "Listeners",
             "Allow an address other than loopback (for Admin: any TCP) without TLS and "
             "authentication",
             &O::insecure_bind),
      Choice("reflection", "Listeners", "auto|on|off",
             "gRPC reflection; auto: on those listeners that are local", &O::reflection),
      Integer("max-message-bytes", "Listeners", "bytes", "Largest message accepted",
              &O::max_message_bytes, 65536, 2147483647, "64KiB..2147483647"),
      Real("keepalive-time", "Listeners", "seconds", "Ping a quiet client after so long",
           &O::keepalive_time, 1, 86400, "1..86400"),
      Real("keepalive-timeout", "Listeners", "seconds", "Give a pinged client up after so long",
           &O::keepalive_timeout, 0.1, 3600, "0.1..3600"),
      Real("drain-timeout", "Operation", "seconds",
           "How long running requests may go on after SIGTERM", &O::drain_timeout, 0, 86400,
           "0..86400"),
      Real("slow-reader-timeout", "Operation", "seconds",
           "How long a paused slow reader keeps its blocks", &O::slow_reader_timeout, 0.1, 86400,
           "0.1..86400"),
      Real("step-timeout", "Operation", "seconds",
           "A step that takes longer is stuck and ends the process with code 1; 0: never",
           &O::step_timeout, 0, 86400, "0..86400"),
      Integer("max-pending-tokens", "Operation", "tokens",
              "Tokens a reader may be behind before its sequences pause", &O::max_pending_tokens, 1,
              1048576, "1..1048576"),
      Text("ready-file", "Operation", "",
           "File to write the addresses to once the server is SERVING", &O::ready_file),
      Choice("log-format", "Operation", "text|json", "Form of log lines on standard error",
             &O::log_format),
      Choice("log-level", "Operation", "trace|debug|info|warn|error|off",
             "Least severity that is logged", &O::log_level),
      Choice("vllm-metrics", "Operation", "on|off",
             "Also export the vllm: names that existing dashboards read", &O::vllm_metrics),
      Switch("check", "Operation", "Validate options and model, then exit", &O::check),
      TestOnly(Real("step-delay-ms", "Test only", "milliseconds", "Added to every step",
                    &O::step_delay_ms, 0, 60000, "0..60000")),
      TestOnly(
          Switch("start-paused", "Test only", "Schedule nothing until SIGUSR1", &O::start_paused)),
      TestOnly(
          Switch("poison-freed", "Test only", "Fill freed KV blocks with NaN", &O::poison_freed)),
      TestOnly(Integer("num-splits", "Test only", "splits",
                       "Work items per sequence in attention; 0: chosen", &O::num_splits, 0, 1024,
                       "0..1024")),
      TestOnly(Text("fault", "Test only", "step-error@N|step-stuck@N",
                    "Injected fault, where compiled in", &O::fault)),
  };
}

const OptionSpec* FindOption(std::string_view name) {
  for (const OptionSpec& spec : OptionTable()) {
    if (name == spec.name) return &spec;
  }
  return nullptr;
}

std::string EnvironmentName(std::string_view name) {
  std::string out = "LONGSPAN_";
  for (const char c : name) out += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return out;
}

using Values = std::map<std::string, std::string>;  // option name -> raw text

// Reads "name = value" lines (TOML) of a --config file.
StatusOr<Values> ReadConfigFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return InvalidArgument("--config {}: cannot be read", path);
  Values values;
  try {
    for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(file)) {
      if (item.name == "++" || item.name == "--") continue;  // section marks
      if (!item.parents.empty() || FindOption(item.name) == nullptr) {
        return InvalidArgument("--config {}: unknown option \"{}\"", path, item.fullname());
      }
      if (item.inputs.size() != 1) {
        return InvalidArgument("--config {}: {} needs exactly one value", path, item.name);
      }
      values[item.name] = item.inputs.front();
    }
  } catch (const CLI::Error& error) {
    return InvalidArgument("--config {}: {}", path, error.what());
  }
  return values;
}

struct RawCommandLine {
  Values values;
  std::string config_file;
  ParsedCommandLine::Action action = ParsedCommandLine::Action::kRun;
};

StatusOr<RawCommandLine> ReadCommandLine(const std::vector<std::string>& args) {
  RawCommandLine raw;
  bool help = false, version = false, markdown = false;
  CLI::App app;
  app.set_help_flag();
  app.add_flag("--help,-h", help);
  app.add_flag("--version", version);
  app.add_flag("--flags-markdown", markdown);
  app.add_option("--config", raw.config_file);
  for (const OptionSpec& spec : OptionTable()) {
    std::string& value = raw.values[spec.name];
    if (spec.is_switch) {
      app.add_flag(fmt::format("--{0},!--no-{0}", spec.name), value);
    } else {
      app.add_option(fmt::format("--{}", spec.name), value);
    }
  }
  try {
    std::vector<std::string> reversed(args.rbegin(), args.rend());  // as CLI11 wants them
    app.parse(reversed);
  } catch (const CLI::Error& error) {
    return InvalidArgument("{} (see --help)", error.what());
  }
  for (const OptionSpec& spec : OptionTable()) {
    if (app.count(fmt::format("--{}", spec.name)) == 0) raw.values.erase(spec.name);
  }
  using Action = ParsedCommandLine::Action;
  raw.action = help       ? Action::kHelp
               : version  ? Action::kVersion
               : markdown ? Action::kFlagsMarkdown
                          : Action::kRun;
  return raw;
}

Status Apply(const OptionSpec& spec, const std::string& source, const std::string& value,
             ServerOptions& options) {
  const Status status = spec.set(options, value);
  if (status.ok()) return status;
  return InvalidArgument("{}: {}", source, StatusMessage(status));
}

}  // namespace

std::span<const OptionSpec> OptionTable() {
  static const std::vector<OptionSpec> table = MakeTable();
  return table;
}

StatusOr<ParsedCommandLine> ParseCommandLine(
    const std::vector<std::string>& args,
    const std::function<std::optional<std::string>(const std::string&)>& environment) {
  ASSIGN_OR_RETURN(const RawCommandLine raw, ReadCommandLine(args));
  ParsedCommandLine parsed;
  parsed.action = raw.action;
  if (raw.action != ParsedCommandLine::Action::kRun) return parsed;

  std::string config_file = raw.config_file;
  if (config_file.empty()) config_file = environment("LONGSPAN_CONFIG").value_or("");
  Values from_file;
  if (!config_file.empty()) {
    ASSIGN_OR_RETURN(from_file, ReadConfigFile(config_file));
  }
  for (const OptionSpec& spec : OptionTable()) {
    const std::string variable = EnvironmentName(spec.name);
    if (const auto flag = raw.values.find(spec.name); flag != raw.values.end()) {
      RETURN_IF_ERROR(Apply(spec, fmt::format("--{}", spec.name), flag->second, parsed.options));
    } else if (const auto value = environment(variable)) {
      RETURN_IF_ERROR(Apply(spec, variable, *value, parsed.options));
    } else if (const auto item = from_file.find(spec.name); item != from_file.end()) {
      RETURN_IF_ERROR(Apply(spec, fmt::format("--config {}: {}", config_file, spec.name),
                            item->second, parsed.options));
    }
  }
  RETURN_IF_ERROR(ValidateOptions(parsed.options));
  return parsed;
}

Status ValidateOptions(const ServerOptions& options) {
  if (options.model.empty())
    return InvalidArgument("--model: is required (a GGUF file or a model folder)");
  if (options.device == "cuda" || options.device == "hip") {
    return InvalidArgument("--device {}: this build has the CPU backend only", options.device);
  }
  if (options.kv_blocks > 0 && options.kv_cache_memory_bytes > 0) {
    return InvalidArgument("--kv-blocks and --kv-cache-memory-bytes: give one of the two");
  }
  if (options.listen.empty()) return InvalidArgument("--listen: is empty (HOST:PORT or unix:PATH)");
  if (!options.fault.empty()) {
#ifndef LONGSPAN_FAULTS
    return InvalidArgument("--fault: this build has no fault injection");
#endif
  }
  return Status();
}

std::map<std::string, std::string> OptionValues(const ServerOptions& options) {
  std::map<std::string, std::string> values;
  for (const OptionSpec& spec : OptionTable()) {
    if (!spec.test_only) values[spec.name] = spec.get(options);
  }
  return values;
}

std::string HelpText() {
  std::string out =
      "longspan-server: inference server for long-context decoding\n\n"
      "Usage: longspan-server --model PATH [options]\n\n"
      "Each option also comes from the environment (--max-model-len: LONGSPAN_MAX_MODEL_LEN) and "
      "from\n"
      "--config FILE (name = value); the command line wins, then the environment, then the file.\n";
  const ServerOptions defaults;
  std::string_view group;
  for (const OptionSpec& spec : OptionTable()) {
    if (spec.test_only) continue;
    if (group != spec.group) {
      group = spec.group;
      out += fmt::format("\n{}:\n", group);
    }
    const std::string name =
        spec.is_switch ? fmt::format("--[no-]{}", spec.name) : fmt::format("--{}", spec.name);
    const std::string value = spec.get(defaults);
    out += fmt::format("  {:<28} {}\n", name, spec.help);
    out += fmt::format("  {:<28} {}{}{}(default: {})\n", "", spec.unit, *spec.unit ? "; " : "",
                       *spec.range ? fmt::format("{}; ", spec.range) : "",
                       value.empty() ? "none" : value);
  }
  out +=
      "\nOther:\n"
      "  --config FILE                Options from a file\n"
      "  --help, --version\n\n"
      "Exit codes: 0 ok, 2 bad option, 3 missing resource (memory, device, port), 4 bad file.\n";
  return out;
}

std::string FlagsMarkdown() {
  std::string out =
      "# Flags of longspan-server\n\n"
      "Made from the option table by `longspan-server --flags-markdown`; a test keeps the two "
      "equal. A flag wins\n"
      "over its environment variable (`LONGSPAN_` and the name in capitals), which wins over "
      "`--config FILE`.\n";
  const ServerOptions defaults;
  std::string_view group;
  for (const OptionSpec& spec : OptionTable()) {
    if (group != spec.group) {
      group = spec.group;
      out += fmt::format(
          "\n## {}\n\n| flag | unit | range | default | meaning |\n|---|---|---|---|---|\n", group);
    }
    std::string range = spec.range;
    for (size_t at = range.find('|'); at != std::string::npos; at = range.find('|', at + 2)) {
      range.replace(at, 1, "\\|");
    }
    const std::string value = spec.get(defaults);
    out +=
        fmt::format("| `--{}{}` | {} | {} | {} | {} |\n", spec.is_switch ? "[no-]" : "", spec.name,
                    spec.unit, range, value.empty() ? "" : fmt::format("`{}`", value), spec.help);
  }
  return out;
}

std::optional<int64_t> ParseBytes(std::string_view text) {
  constexpr std::pair<std::string_view, int64_t> kUnits[] = {{"KiB", int64_t{1} << 10},
                                                             {"MiB", int64_t{1} << 20},
                                                             {"GiB", int64_t{1} << 30},
                                                             {"TiB", int64_t{1} << 40},
                                                             {"kB", 1000},
                                                             {"MB", 1000000},
                                                             {"GB", 1000000000},
                                                             {"TB", 1000000000000},
                                                             {"B", 1}};
  int64_t unit = 1;
  for (const auto& [suffix, bytes] : kUnits) {
    if (text.size() > suffix.size() && text.substr(text.size() - suffix.size()) == suffix) {
      text.remove_suffix(suffix.size());
      unit = bytes;
      break;
    }
  }
  const auto count = ParseInteger(text);
  if (!count || *count < 0 || *count > (int64_t{1} << 62) / unit) return std::nullopt;
  return *count * unit;
}

}  // namespace longspan
