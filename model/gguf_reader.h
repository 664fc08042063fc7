// Reads the part of a GGUF file before the data, front to back: numbers and strings, never beyond
// the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/status.h"
#include "model/input_file.h"

namespace longspan {

// Borrows the file. The first problem stays and every later read yields zero, so that a caller may
// check once after several reads.
class GgufReader {
 public:
  explicit GgufReader(const InputFile& file);

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  int64_t position() const { return position_; }  // bytes from the start of the file
  uint64_t remaining() const { return static_cast<uint64_t>(end_ - position_); }

  // Records "FILE: MESSAGE" unless there is a problem already.
  template <typename... Args>
  void Fail(fmt::format_string<Args...> format, Args&&... args) {
    Fail(fmt::format(format, std::forward<Args>(args)...));
  }
  void Fail(const std::string& message);

  // what: named in the message when the file ends here.
  template <typename T>
  T Number(std::string_view what) {
    T value{};
    Bytes(&value, sizeof(T), what);
    return value;
  }
  // A length and that many bytes.
  std::string String(uint64_t max_bytes, std::string_view what);

 private:
  void Bytes(void* out, uint64_t bytes, std::string_view what);
  bool FillBuffer();

  const InputFile& file_;
  const int64_t end_;
  int64_t position_ = 0;
  int64_t buffer_start_ = 0;
  std::vector<std::byte> buffer_;
  Status status_;
};

}  // namespace longspan
