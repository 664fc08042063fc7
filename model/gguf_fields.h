// Typed look-up of GGUF metadata for the code that gives them meaning. The first problem stays, so
// that a caller reads all its keys and asks for the status once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/status.h"
#include "model/gguf_file.h"

namespace longspan {

// Borrows the file. All keys are full names. A key of another type than asked for is a problem.
class GgufFields {
 public:
  explicit GgufFields(const GgufFile& gguf) : gguf_(gguf) {}

  // nullopt: absent.
  std::optional<int32_t> Int(const std::string& key, int64_t min, int64_t max);
  std::optional<double> Float(const std::string& key);  // integers are taken too
  std::optional<bool> Bool(const std::string& key);
  std::optional<std::string> String(const std::string& key);
  const GgufArray* Array(const std::string& key, GgufType element);  // null: absent

  // As above, but absence is a problem.
  int32_t NeedInt(const std::string& key, int64_t min, int64_t max);
  double NeedFloat(const std::string& key);
  std::string NeedString(const std::string& key);

  // Records "FILE: MESSAGE" unless there is a problem already.
  void Fail(const std::string& message);
  const Status& status() const { return status_; }

 private:
  void WrongType(const std::string& key, const GgufValue& value, const char* wanted);
  void Missing(const std::string& key);

  const GgufFile& gguf_;
  Status status_;
};

}  // namespace longspan
