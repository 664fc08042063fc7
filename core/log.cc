// The sink behind spdlog: lines to standard error, and what cannot be written now is dropped.
// Also the JSON form of a line, and the escaping of text from outside.
#include "core/log.h"

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <memory>
#include <mutex>

namespace longspan {
namespace {

// Writes lines to standard error. What cannot be written (full disk, closed pipe) or would have to
// wait (a pipe that nobody reads, a stopped terminal) is dropped and counted: no thread of the
// server ever waits for who reads its log.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& msg) override {
    if (num_dropped_ > 0 && IsWritable()) {
      const std::string note = fmt::format("{} log lines were dropped", num_dropped_);
      if (Write({msg.time, {}, msg.logger_name, spdlog::level::warn, note})) num_dropped_ = 0;
    }
    if (!Write(msg)) ++num_dropped_;
  }
  void flush_() override {}

 private:
  // Room for PIPE_BUF bytes at least.
  static bool IsWritable() {
    pollfd state = {STDERR_FILENO, POLLOUT, 0};
    return ::poll(&state, 1, 0) == 1 && (state.revents & POLLOUT) != 0;
  }
  bool Write(const spdlog::details::log_msg& msg) {
    spdlog::memory_buf_t line;
    if (is_mid_line_) line.push_back('\n');
    formatter_->format(msg, line);
    for (size_t at = 0; at < line.size();) {
      const size_t piece = std::min<size_t>(line.size() - at, PIPE_BUF);
      const ssize_t written = IsWritable() ? ::write(STDERR_FILENO, line.data() + at, piece) : 0;
      if (written <= 0) return false;
      at += static_cast<size_t>(written);
      is_mid_line_ = at < line.size();
    }
    return true;
  }

  int64_t num_dropped_ = 0;
  bool is_mid_line_ = false;  // the last thing written was the beginning of a line
};

// %* in the pattern: the message as the inside of a JSON string.
class JsonMessageFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& msg, const std::tm&,
              spdlog::memory_buf_t& dest) override {
    for (const char c : std::string_view(msg.payload.data(), msg.payload.size())) {
      if (c == '"' || c == '\\') {
        dest.push_back('\\');
        dest.push_back(c);
      } else if (static_cast<unsigned char>(c) < 0x20) {
        fmt::format_to(std::back_inserter(dest), "\\u{:04x}", static_cast<unsigned char>(c));
      } else {
        dest.push_back(c);
      }
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JsonMessageFlag>();
  }
};

}  // namespace

void SetUpLogging(LogFormat format, spdlog::level::level_enum level) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  if (format == LogFormat::kJson) {
    formatter->add_flag<JsonMessageFlag>('*').set_pattern(
        R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","message":"%*"})");
  } else {
    formatter->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %v");
  }
  auto logger = std::make_shared<spdlog::logger>("longspan", std::make_shared<StderrSink>());
  logger->set_formatter(std::move(formatter));
  logger->set_level(level);
  logger->set_error_handler([](const std::string&) {});
  spdlog::set_default_logger(std::move(logger));
}

bool ParseLogLevel(std::string_view name, spdlog::level::level_enum& level) {
  constexpr std::pair<std::string_view, spdlog::level::level_enum> kLevels[] = {
      {"trace", spdlog::level::trace}, {"debug", spdlog::level::debug},
      {"info", spdlog::level::info},   {"warn", spdlog::level::warn},
      {"error", spdlog::level::err},   {"off", spdlog::level::off}};
  for (const auto& [text, value] : kLevels) {
    if (text == name) {
      level = value;
      return true;
    }
  }
  return false;
}

std::string Escaped(std::string_view text, size_t max_bytes) {
  std::string out;
  const bool cut = text.size() > max_bytes;
  for (const char c : text.substr(0, max_bytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte >= 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (cut) out += "...";
  return out;
}

}  // namespace longspan
