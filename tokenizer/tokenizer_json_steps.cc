// One reader per component type of normalizer, pre_tokenizer, post_processor and decoder. Each
// lists the keys that it knows; a further key is refused, since it might change the result.
#include "tokenizer/tokenizer_json_steps.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string_view>
#include <variant>

#include "core/log.h"
#include "tokenizer/oniguruma_pattern.h"
#include "tokenizer/utf8.h"

namespace longspan {
namespace {

StatusOr<std::string> TypeOf(const JsonNode& node) { return node.GetString("type"); }

Status UnknownType(const JsonNode& node, std::string_view type) {
  return node.Error(fmt::format("type \"{}\" is not supported", Escaped(type)));
}

// Calls `read` for the node itself, or for each member of a Sequence in turn.
Status ForEachStep(
    const JsonNode& node, std::string_view list_key,
    const std::function<Status(const JsonNode& step, const std::string& type)>& read) {
  if (node.json().is_null()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string type, TypeOf(node));
  if (type != "Sequence") return read(node, type);
  RETURN_IF_ERROR(node.CheckKeys({"type", list_key}));
  ASSIGN_OR_RETURN(const JsonNode list, node.Get(list_key));
  return list.ForEachItem([&](const JsonNode& item) { return ForEachStep(item, list_key, read); });
}

// {"String": "literal"} or {"Regex": "pattern"}.
StatusOr<std::variant<std::string, Regex>> ReadPattern(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode pattern, node.Get("pattern"));
  RETURN_IF_ERROR(pattern.CheckKeys({"String", "Regex"}));
  if (pattern.json().size() != 1) return pattern.Error("must be one of String, Regex");
  using Pattern = std::variant<std::string, Regex>;
  if (pattern.Has("String")) {
    ASSIGN_OR_RETURN(std::string literal, pattern.GetString("String"));
    if (literal.empty()) return pattern.Error("an empty string is not supported");
    return Pattern(std::move(literal));
  }
  ASSIGN_OR_RETURN(const std::string source, pattern.GetString("Regex"));
  StatusOr<std::string> translated = TranslateOnigurumaPattern(source);
  if (!translated.ok()) return pattern.Error(StatusMessage(translated.status()));
  StatusOr<Regex> regex = Regex::Compile(*translated);
  if (!regex.ok()) return pattern.Error(StatusMessage(regex.status()));
  return Pattern(*std::move(regex));
}

template <typename Value, size_t kSize>
StatusOr<Value> ReadEnum(const JsonNode& node, std::string_view key,
                         const std::array<std::pair<std::string_view, Value>, kSize>& names) {
  ASSIGN_OR_RETURN(const JsonNode field, node.Get(key));
  ASSIGN_OR_RETURN(const std::string text, field.AsString());
  for (const auto& [name, value] : names) {
    if (text == name) return value;
  }
  return field.Error(fmt::format("\"{}\" is not supported", Escaped(text)));
}

StatusOr<NormalizerStep> ReadNormalizerStep(const JsonNode& node, const std::string& type) {
  static constexpr std::array<std::pair<std::string_view, UnicodeForm>, 4> kForms = {
      {{"NFC", UnicodeForm::kNfc},
       {"NFD", UnicodeForm::kNfd},
       {"NFKC", UnicodeForm::kNfkc},
       {"NFKD", UnicodeForm::kNfkd}}};
  for (const auto& [name, form] : kForms) {
    if (type != name) continue;
    RETURN_IF_ERROR(node.CheckKeys({"type"}));
    return NormalizerStep(UnicodeFormStep{form});
  }
  if (type == "Lowercase") {
    RETURN_IF_ERROR(node.CheckKeys({"type"}));
    return NormalizerStep(LowercaseStep{});
  }
  if (type == "Prepend") {
    RETURN_IF_ERROR(node.CheckKeys({"type", "prepend"}));
    ASSIGN_OR_RETURN(std::string prefix, node.GetString("prepend"));
    return NormalizerStep(PrependStep{std::move(prefix)});
  }
  if (type == "Replace") {
    RETURN_IF_ERROR(node.CheckKeys({"type", "pattern", "content"}));
    ASSIGN_OR_RETURN(auto pattern, ReadPattern(node));
    ASSIGN_OR_RETURN(std::string content, node.GetString("content"));
    return NormalizerStep(ReplaceStep{std::move(pattern), std::move(content)});
  }
  return UnknownType(node, type);
}

StatusOr<PrependScheme> ReadPrependScheme(const JsonNode& node) {
  static constexpr std::array<std::pair<std::string_view, PrependScheme>, 3> kSchemes = {
      {{"first", PrependScheme::kFirst},
       {"never", PrependScheme::kNever},
       {"always", PrependScheme::kAlways}}};
  PrependScheme scheme = PrependScheme::kAlways;
  if (node.Has("prepend_scheme")) {
    ASSIGN_OR_RETURN(scheme, ReadEnum(node, "prepend_scheme", kSchemes));
  }
  ASSIGN_OR_RETURN(const bool adds_prefix_space, node.GetBool("add_prefix_space", true));
  if (!adds_prefix_space && scheme != PrependScheme::kNever) {
    return node.Error("add_prefix_space false contradicts prepend_scheme");
  }
  return scheme;
}

StatusOr<MetaspaceStep> ReadMetaspace(const JsonNode& node) {
  RETURN_IF_ERROR(node.CheckKeys(
      {"type", "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"}));
  MetaspaceStep step;
  ASSIGN_OR_RETURN(step.replacement, node.GetString("replacement"));
  const bool is_one_character = !step.replacement.empty() &&
                                DecodeUtf8(step.replacement).num_bytes == step.replacement.size();
  if (!is_one_character) return node.Error("replacement must be one character");
  ASSIGN_OR_RETURN(step.prepend_scheme, ReadPrependScheme(node));
  ASSIGN_OR_RETURN(step.split, node.GetBool("split", true));
  return step;
}

StatusOr<SplitStep> ReadSplit(const JsonNode& node) {
  static constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kBehaviors = {
      {{"Removed", SplitBehavior::kRemoved},
       {"Isolated", SplitBehavior::kIsolated},
       {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
       {"MergedWithNext", SplitBehavior::kMergedWithNext},
       {"Contiguous", SplitBehavior::kContiguous}}};
  RETURN_IF_ERROR(node.CheckKeys({"type", "pattern", "behavior", "invert"}));
  ASSIGN_OR_RETURN(auto pattern, ReadPattern(node));
  ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadEnum(node, "behavior", kBehaviors));
  ASSIGN_OR_RETURN(const bool invert, node.GetBool("invert", false));
  return SplitStep{std::move(pattern), behavior, invert};
}

StatusOr<ByteLevelStep> ReadByteLevel(const JsonNode& node) {
  RETURN_IF_ERROR(node.CheckKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  ByteLevelStep step;
  ASSIGN_OR_RETURN(step.add_prefix_space, node.GetBool("add_prefix_space", true));
  ASSIGN_OR_RETURN(const bool uses_pattern, node.GetBool("use_regex", true));
  if (uses_pattern) {
    ASSIGN_OR_RETURN(step.pattern, CompileGpt2Pattern());
  }
  return step;
}

StatusOr<PreTokenizerStep> ReadPreTokenizerStep(const JsonNode& node, const std::string& type) {
  if (type == "ByteLevel") return ReadByteLevel(node);
  if (type == "Split") return ReadSplit(node);
  if (type == "Metaspace") return ReadMetaspace(node);
  if (type == "Digits") {
    RETURN_IF_ERROR(node.CheckKeys({"type", "individual_digits"}));
    ASSIGN_OR_RETURN(const bool individual, node.GetBool("individual_digits", false));
    return PreTokenizerStep(DigitsStep{individual});
  }
  return UnknownType(node, type);
}

// One entry of a template: the text itself (nullopt) or the ids of a special token.
StatusOr<std::optional<std::vector<int64_t>>> ReadTemplateEntry(const JsonNode& entry,
                                                                const JsonNode& node) {
  using Ids = std::optional<std::vector<int64_t>>;
  RETURN_IF_ERROR(entry.CheckKeys({"Sequence", "SpecialToken"}));
  if (entry.json().size() != 1) return entry.Error("must be one of Sequence, SpecialToken");
  if (entry.Has("Sequence")) {
    ASSIGN_OR_RETURN(const JsonNode sequence, entry.Get("Sequence"));
    ASSIGN_OR_RETURN(const std::string id, sequence.GetString("id"));
    if (id != "A") return sequence.Error("only sequence A is supported");
    return Ids();
  }
  ASSIGN_OR_RETURN(const JsonNode special, entry.Get("SpecialToken"));
  ASSIGN_OR_RETURN(const std::string name, special.GetString("id"));
  ASSIGN_OR_RETURN(const JsonNode known, node.Get("special_tokens"));
  if (!known.Has(name)) {
    return special.Error(fmt::format("\"{}\" is not in special_tokens", Escaped(name)));
  }
  ASSIGN_OR_RETURN(const JsonNode token, known.Get(name));
  ASSIGN_OR_RETURN(const JsonNode list, token.Get("ids"));
  std::vector<int64_t> ids;
  RETURN_IF_ERROR(list.ForEachItem([&](const JsonNode& item) -> Status {
    ASSIGN_OR_RETURN(const int64_t id, item.AsInteger());
    ids.push_back(id);
    return absl::OkStatus();
  }));
  return Ids(std::move(ids));
}

StatusOr<TextTemplate> ReadTemplate(const JsonNode& node) {
  RETURN_IF_ERROR(node.CheckKeys({"type", "single", "pair", "special_tokens"}));
  ASSIGN_OR_RETURN(const JsonNode single, node.Get("single"));
  TextTemplate result;
  int num_sequences = 0;
  RETURN_IF_ERROR(single.ForEachItem([&](const JsonNode& entry) -> Status {
    ASSIGN_OR_RETURN(const auto ids, ReadTemplateEntry(entry, node));
    if (!ids) {
      ++num_sequences;
      return absl::OkStatus();
    }
    std::vector<int64_t>& side = num_sequences == 0 ? result.prefix : result.suffix;
    side.insert(side.end(), ids->begin(), ids->end());
    return absl::OkStatus();
  }));
  if (num_sequences != 1) return single.Error("must hold the sequence exactly once");
  return result;
}

Status ReadStrip(const JsonNode& node, DecoderPlan& plan) {
  constexpr int64_t kMaxStripped = 1024;
  RETURN_IF_ERROR(node.CheckKeys({"type", "content", "start", "stop"}));
  ASSIGN_OR_RETURN(const std::string content, node.GetString("content"));
  ASSIGN_OR_RETURN(const JsonNode start_node, node.Get("start"));
  ASSIGN_OR_RETURN(const int64_t start, start_node.AsInteger());
  ASSIGN_OR_RETURN(const JsonNode stop_node, node.Get("stop"));
  ASSIGN_OR_RETURN(const int64_t stop, stop_node.AsInteger());
  if (content != " ") return node.Error("content must be a space");
  if (start < 0 || start > kMaxStripped) return start_node.Error("must be from 0 to 1024");
  if (stop != 0) return stop_node.Error("must be 0: text that streams has no end to strip");
  plan.num_leading_spaces_to_strip = static_cast<int>(start);
  return absl::OkStatus();
}

Status ReadDecoderStep(const JsonNode& node, const std::string& type, DecoderPlan& plan) {
  if (type == "ByteLevel") {
    RETURN_IF_ERROR(node.CheckKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    plan.is_byte_level = true;
    return absl::OkStatus();
  }
  if (type == "Replace") {
    RETURN_IF_ERROR(node.CheckKeys({"type", "pattern", "content"}));
    ASSIGN_OR_RETURN(const auto pattern, ReadPattern(node));
    const auto* literal = std::get_if<std::string>(&pattern);
    if (literal == nullptr) return node.Error("a Regex pattern is not supported in a decoder");
    ASSIGN_OR_RETURN(std::string content, node.GetString("content"));
    plan.replacements.emplace_back(*literal, std::move(content));
    return absl::OkStatus();
  }
  if (type == "Metaspace") {
    ASSIGN_OR_RETURN(const MetaspaceStep metaspace, ReadMetaspace(node));
    plan.metaspace = metaspace.replacement;
    plan.drops_metaspace_in_first_token = metaspace.prepend_scheme != PrependScheme::kNever;
    return absl::OkStatus();
  }
  if (type == "Strip") return ReadStrip(node, plan);
  RETURN_IF_ERROR(node.CheckKeys({"type"}));
  plan.has_byte_fallback = plan.has_byte_fallback || type == "ByteFallback";
  return absl::OkStatus();
}

}  // namespace

StatusOr<Normalizer> ReadNormalizer(const JsonNode& node) {
  std::vector<NormalizerStep> steps;
  RETURN_IF_ERROR(ForEachStep(
      node, "normalizers", [&](const JsonNode& step, const std::string& type) -> Status {
        ASSIGN_OR_RETURN(NormalizerStep read, ReadNormalizerStep(step, type));
        steps.push_back(std::move(read));
        return absl::OkStatus();
      }));
  return Normalizer(std::move(steps));
}

StatusOr<PreTokenizerPlan> ReadPreTokenizer(const JsonNode& node) {
  PreTokenizerPlan plan{{}, false};
  RETURN_IF_ERROR(ForEachStep(
      node, "pretokenizers", [&](const JsonNode& step, const std::string& type) -> Status {
        // What comes after it would see the byte-level alphabet instead of the text.
        if (plan.is_byte_level) return step.Error("a step after ByteLevel is not supported");
        ASSIGN_OR_RETURN(PreTokenizerStep read, ReadPreTokenizerStep(step, type));
        plan.is_byte_level = std::holds_alternative<ByteLevelStep>(read);
        if (plan.steps.size() == PreTokenizer::kMaxSteps) {
          return step.Error(fmt::format("too many steps (limit {})", PreTokenizer::kMaxSteps));
        }
        plan.steps.push_back(std::move(read));
        return absl::OkStatus();
      }));
  return plan;
}

StatusOr<TextTemplate> ReadPostProcessor(const JsonNode& node) {
  TextTemplate result;
  bool has_template = false;
  RETURN_IF_ERROR(
      ForEachStep(node, "processors", [&](const JsonNode& step, const std::string& type) -> Status {
        if (type == "ByteLevel") {  // changes offsets only
          return step.CheckKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
        }
        if (type != "TemplateProcessing") return UnknownType(step, type);
        if (has_template) return step.Error("a second template is not supported");
        has_template = true;
        ASSIGN_OR_RETURN(result, ReadTemplate(step));
        return absl::OkStatus();
      }));
  return result;
}

StatusOr<DecoderPlan> ReadDecoder(const JsonNode& node) {
  // Only this order has a meaning token by token; Replace may come several times, the others once.
  static constexpr std::array<std::string_view, 5> kOrder = {"Replace", "Metaspace", "ByteFallback",
                                                             "Fuse", "Strip"};
  if (node.json().is_null()) return node.Error("a tokenizer without a decoder is not supported");
  DecoderPlan plan;
  int num_steps = 0;
  ptrdiff_t last_rank = -1;
  RETURN_IF_ERROR(
      ForEachStep(node, "decoders", [&](const JsonNode& step, const std::string& type) -> Status {
        if (plan.is_byte_level || (type == "ByteLevel" && num_steps > 0)) {
          return step.Error("ByteLevel together with other decoders is not supported");
        }
        ++num_steps;
        if (type == "ByteLevel") return ReadDecoderStep(step, type, plan);
        const ptrdiff_t rank = std::find(kOrder.begin(), kOrder.end(), type) - kOrder.begin();
        if (rank == std::ssize(kOrder)) return UnknownType(step, type);
        if (rank < last_rank || (rank == last_rank && rank > 0)) {
          return step.Error(fmt::format("type \"{}\" is not supported in this place", type));
        }
        if (type == "Strip" && last_rank != rank - 1) {
          return step.Error("type \"Strip\" is supported after Fuse only");
        }
        last_rank = rank;
        return ReadDecoderStep(step, type, plan);
      }));
  if (num_steps == 0) return node.Error("an empty decoder is not supported");
  return plan;
}

}  // namespace longspan
