// Builds the value from nlohmann's event interface, which lets limits stop the parser early and
// reports errors by a call instead of an exception.
#include "core/json.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/log.h"

namespace longspan {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxValues = int64_t{4} << 20;

// Every event returns false to stop; problem() then says why.
class LimitedBuilder final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return Add(nullptr) != nullptr; }
  bool boolean(bool value) override { return Add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return Add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override {
    return Add(value) != nullptr;
  }
  bool string(string_t& value) override { return Add(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return Stop("binary value"); }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    const auto [place, is_new] = open_.back()->get_ref<Json::object_t&>().emplace(name, nullptr);
    if (!is_new) return Stop(fmt::format("key \"{}\" stands twice in one object", Escaped(name)));
    next_value_ = &place->second;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    return Stop(fmt::format("is not valid JSON at byte {}", position));
  }

  Json& root() { return root_; }
  const std::string& problem() const { return problem_; }

 private:
  bool Stop(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  // Puts a value where the next one belongs; null when there are too many.
  Json* Add(Json value) {
    if (++num_values_ > kMaxValues) {
      Stop(fmt::format("holds more than {} values", kMaxValues));
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_object()) {
      *next_value_ = std::move(value);
      return next_value_;
    }
    auto& items = open_.back()->get_ref<Json::array_t&>();
    items.push_back(std::move(value));
    return &items.back();
  }

  bool Open(Json container) {
    if (static_cast<int>(open_.size()) >= kMaxJsonDepth) {
      return Stop(fmt::format("is nested deeper than {} levels", kMaxJsonDepth));
    }
    Json* const place = Add(std::move(container));
    if (place == nullptr) return false;
    open_.push_back(place);  // stays put: nothing is added to its parent while it is open
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Json*> open_;     // containers from the outermost in
  Json* next_value_ = nullptr;  // belongs to the last key
  int64_t num_values_ = 0;
  std::string problem_;
};

}  // namespace

StatusOr<Json> ParseJson(std::string_view text, const std::string& file) {
  if (text.starts_with("\xEF\xBB\xBF")) {
    return InvalidArgument("{}: begins with a byte order mark, wanted plain JSON", file);
  }
  LimitedBuilder builder;
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return InvalidArgument("{}: {}", file, builder.problem());
  }
  return std::move(builder.root());
}

std::string JsonShown(const Json& value) {
  constexpr size_t kMaxShown = 48;
  if (value.is_string()) {
    return fmt::format("\"{}\"", Escaped(value.get_ref<const std::string&>(), kMaxShown));
  }
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  if (value.is_object()) return fmt::format("an object of {}", value.size());
  return value.dump();
}

}  // namespace longspan
