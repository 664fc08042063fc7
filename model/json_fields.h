// Typed look-up in one JSON object for the code that gives keys meaning. The first problem stays,
// so that a caller reads all its keys and asks for the status once.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "core/status.h"

namespace longspan {

// Borrows the object. A key whose value is null counts as absent for all but Has.
class JsonFields {
 public:
  // prefix: "" or the name of the key that holds the object, for messages.
  JsonFields(const nlohmann::json& object, std::string file, std::string prefix = "");

  bool Has(const std::string& key) const;
  const nlohmann::json* Find(const std::string& key) const;  // null: absent or JSON's null

  std::optional<int32_t> Int(const std::string& key, int64_t min, int64_t max);
  std::optional<double> Float(const std::string& key);
  std::optional<bool> Bool(const std::string& key);
  std::optional<std::string> String(const std::string& key);

  // As above, but absence is a problem.
  int32_t NeedInt(const std::string& key, int64_t min, int64_t max);
  double NeedFloat(const std::string& key);

  // Keys of the object that nobody asked for, for the log.
  std::string UnusedKeys() const;

  // Records "FILE: KEY is FOUND, wanted WANTED".
  void Unwanted(const std::string& key, const std::string& wanted);
  // Records "FILE: MESSAGE" unless there is a problem already.
  void Fail(const std::string& message);
  // Adopts a problem found elsewhere, of an inner object for example.
  void Take(const Status& problem);

  const nlohmann::json& object() const { return object_; }
  const Status& status() const { return status_; }

 private:
  std::string Shown(const std::string& key) const;
  void Missing(const std::string& key);

  const nlohmann::json& object_;
  std::string file_;
  std::string prefix_;
  Status status_;
  mutable std::set<std::string> asked_;
};

}  // namespace longspan
