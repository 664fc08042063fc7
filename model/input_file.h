// A regular file opened for reading, its size taken once. Contents are copied out with read calls,
// never mapped, so that a file cut or rewritten later can neither fault the process nor change a
// loaded model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/status.h"

namespace longspan {

// Move-only owner of the descriptor. Not thread-safe.
class InputFile {
 public:
  // kNotFound when it cannot be opened; kInvalidArgument when it is not a regular file.
  static StatusOr<InputFile> Open(const std::string& path);

  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::string& path() const { return path_; }  // escaped: safe to show
  int64_t size() const { return size_; }             // bytes, when opened

  // Fills out with the bytes from offset on, which must lie inside size(). Refuses a file whose
  // size or time of change is no longer that of the opening: half of one model and half of another.
  Status Read(int64_t offset, std::span<std::byte> out) const;

 private:
  InputFile() = default;

  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
  int64_t changed_ns_ = 0;  // modification time when opened
};

// The whole of a text file of at most max_bytes.
StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes);

}  // namespace longspan
