// The structure of one safetensors file: the JSON header, fully checked, and where each tensor
// lies. No meaning of names and no sharding: weight_source.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "model/input_file.h"

namespace longspan {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;           // as in the file, one of the format's names
  std::vector<int64_t> shape;  // outermost first; empty: one element
  int64_t offset = 0;          // from the start of the file
  int64_t size_bytes = 0;
};

// Immutable once opened; keeps the file open.
class SafetensorsFile {
 public:
  static StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  // Gives the open file away, for reading tensors; nothing else may be asked for after.
  InputFile TakeFile() && { return std::move(file_); }

 private:
  explicit SafetensorsFile(InputFile file) : file_(std::move(file)) {}

  InputFile file_;
  std::vector<SafetensorsEntry> entries_;
};

// Checks a header's text against the number of data bytes that follow it; offsets count from the
// start of the data. Rules: sizes fit shape and dtype, tensors cover the data without hole or
// overlap.
StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(std::string_view header,
                                                               int64_t data_bytes,
                                                               const std::string& file);

}  // namespace longspan
