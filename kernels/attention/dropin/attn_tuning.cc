// Format, parser and file of the tuned table: see attn_tuning.h. Numbers outside their ranges
// refuse the whole table, so that what is used is either all measured or all built in.
#include "kernels/attention/dropin/attn_tuning.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace longspan {
namespace {

// Of the format, and of the kernels that were measured: other kernels, another number.
constexpr std::string_view kHeader = "longspan-tune 1";
constexpr std::string_view kEnd = "end";  // a file that was cut off lacks it
constexpr std::size_t kMaxBytes = 4096;

struct Field {
  std::string_view name;
  int32_t AttnTuningRow::*member;
  int32_t min, max;
};
constexpr Field kFields[] = {
    {"decode_rows", &AttnTuningRow::decode_rows, 1, 1024},
    {"sm80_q_len", &AttnTuningRow::sm80_q_len, 0, 1024},
    {"min_range_cost", &AttnTuningRow::min_range_cost, 1, 1024},
};

std::string_view NextLine(std::string_view* text) {
  const std::size_t end = text->find('\n');
  const std::string_view line = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  return line;
}

// Takes " NAME NUMBER" off the line.
bool TakeNumber(std::string_view* line, std::string_view name, int32_t* number) {
  if (!line->starts_with(name)) return false;
  line->remove_prefix(name.size());
  if (!line->starts_with(' ')) return false;
  line->remove_prefix(1);
  const auto [end, error] = std::from_chars(line->data(), line->data() + line->size(), *number);
  if (error != std::errc()) return false;
  line->remove_prefix(static_cast<std::size_t>(end - line->data()));
  if (line->starts_with(' ')) line->remove_prefix(1);
  return true;
}

bool ParseRow(std::string_view line, int32_t head_dim, AttnTuningRow* row) {
  int32_t number = 0;
  if (!TakeNumber(&line, "head_dim", &number) || number != head_dim) return false;
  for (const Field& field : kFields) {
    if (!TakeNumber(&line, field.name, &number) || number < field.min || number > field.max) {
      return false;
    }
    row->*field.member = number;
  }
  return line.empty();
}

std::string DeviceLine(const AttnTuningKey& key) { return "device " + key.device; }
std::string DriverLine(const AttnTuningKey& key) { return "driver " + std::to_string(key.driver); }

}  // namespace

std::string FormatAttnTuning(const AttnTuning& tuning, const AttnTuningKey& key) {
  std::string text(kHeader);
  text += "\n" + DeviceLine(key) + "\n" + DriverLine(key) + "\n";
  for (std::size_t i = 0; i < tuning.rows.size(); ++i) {
    text += "head_dim " + std::to_string(kAttnTuningHeadDims[i]);
    for (const Field& field : kFields) {
      text += " " + std::string(field.name) + " " + std::to_string(tuning.rows[i].*field.member);
    }
    text += "\n";
  }
  return text + std::string(kEnd) + "\n";
}

std::string ParseAttnTuning(std::string_view text, const AttnTuningKey& key, AttnTuning* tuning) {
  if (text.size() > kMaxBytes) return "longer than a table can be";
  if (NextLine(&text) != kHeader) return "not a table of this version";
  if (NextLine(&text) != DeviceLine(key)) return "of another device";
  if (NextLine(&text) != DriverLine(key)) return "of another driver";
  AttnTuning parsed;
  for (std::size_t i = 0; i < parsed.rows.size(); ++i) {
    if (!ParseRow(NextLine(&text), kAttnTuningHeadDims[i], &parsed.rows[i])) {
      return "damaged at head_dim " + std::to_string(kAttnTuningHeadDims[i]);
    }
  }
  if (text != std::string(kEnd) + "\n") return "damaged at its end";
  *tuning = parsed;
  return "";
}

std::string AttnTuningPath(std::string_view device) {
  std::string folder;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    folder = cache;
  } else if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
    folder = std::string(home) + "/.cache";
  } else {
    return "";
  }
  std::string name(device);
  for (char& c : name) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (!plain) c = '_';
  }
  return folder + "/longspan/tune/" + name + ".txt";
}

std::string LoadAttnTuning(const std::string& path, const AttnTuningKey& key, AttnTuning* tuning) {
  std::error_code error;
  if (path.empty()) return "defaults: no cache folder";
  if (!std::filesystem::exists(path, error) && !error) return "defaults: no table " + path;
  std::string reason;
  if (error || !std::filesystem::is_regular_file(path, error)) {
    reason = "not a file that can be read";  // a pipe would wait for ever
  } else {
    std::ifstream file(path, std::ios::binary);
    std::string text(kMaxBytes + 1, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(file.gcount()));
    reason = file.is_open() && !file.bad() ? ParseAttnTuning(text, key, tuning)
                                           : "not a file that can be read";
  }
  if (!reason.empty()) return "defaults, refused table " + path + ": " + reason;
  return "table " + path;
}

std::string SaveAttnTuning(const std::string& path, std::string_view text) {
  if (path.empty()) return "there is no cache folder: neither XDG_CACHE_HOME nor HOME is set";
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) return path + ": " + error.message();
  const std::string part = path + "." + std::to_string(::getpid());
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) {
    std::filesystem::remove(part, error);
    return part + " could not be written";
  }
  std::filesystem::rename(part, path, error);
  return error ? path + ": " + error.message() : "";
}

}  // namespace longspan
