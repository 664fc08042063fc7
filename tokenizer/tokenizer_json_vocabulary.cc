// Vocabulary, merges and added tokens, with the checks on ids. Model options that would change
// results and are not implemented are refused.
#include "tokenizer/tokenizer_json_vocabulary.h"

#include <string>
#include <unordered_set>
#include <utility>

#include "core/log.h"
#include "tokenizer/tokenizer_json.h"

namespace longspan {
namespace {

using nlohmann::json;

Status CheckId(const JsonNode& node, int64_t id) {
  if (id >= 0 && id < kMaxVocabularySize) return absl::OkStatus();
  return node.Error(
      fmt::format("id {} is out of range (limit 0 to {})", id, kMaxVocabularySize - 1));
}

Status ReadModelVocabulary(const JsonNode& node, Vocabulary& vocabulary) {
  RETURN_IF_ERROR(node.CheckIsObject());
  const json& tokens = node.json();
  if (tokens.empty()) return node.Error("the vocabulary is empty");
  vocabulary.entries.reserve(tokens.size());
  for (auto at = tokens.begin(); at != tokens.end(); ++at) {
    const std::string& text = at.key();
    const JsonNode value(at.value(),
                         fmt::format("tokenizer.json: model.vocab[\"{}\"]", Escaped(text)));
    ASSIGN_OR_RETURN(const int64_t id, value.AsInteger());
    RETURN_IF_ERROR(CheckId(value, id));
    const TokenId token{static_cast<int32_t>(id)};
    if (!vocabulary.text_of.emplace(ToInt(token), text).second) {
      return value.Error(fmt::format("id {} appears twice", id));
    }
    vocabulary.id_of.emplace(text, token);
    vocabulary.entries.push_back({text, token});
  }
  return absl::OkStatus();
}

StatusOr<AddedEntry> ReadAddedToken(const JsonNode& node) {
  RETURN_IF_ERROR(node.CheckKeys(
      {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
  AddedEntry entry;
  ASSIGN_OR_RETURN(const JsonNode id_node, node.Get("id"));
  ASSIGN_OR_RETURN(const int64_t id, id_node.AsInteger());
  RETURN_IF_ERROR(CheckId(id_node, id));
  entry.token.id = TokenId{static_cast<int32_t>(id)};
  ASSIGN_OR_RETURN(entry.token.content, node.GetString("content"));
  const size_t num_bytes = entry.token.content.size();
  if (num_bytes == 0 || num_bytes > kMaxAddedTokenBytes) {
    return node.Error(
        fmt::format("content of {} bytes (limit 1 to {})", num_bytes, kMaxAddedTokenBytes));
  }
  ASSIGN_OR_RETURN(entry.token.is_special, node.GetBool("special", false));
  ASSIGN_OR_RETURN(entry.token.is_single_word, node.GetBool("single_word", false));
  ASSIGN_OR_RETURN(entry.token.strips_left, node.GetBool("lstrip", false));
  ASSIGN_OR_RETURN(entry.token.strips_right, node.GetBool("rstrip", false));
  ASSIGN_OR_RETURN(entry.is_normalized, node.GetBool("normalized", !entry.token.is_special));
  return entry;
}

// `merges`: "left right" strings, or pairs.
Status ReadMerges(const JsonNode& node, std::vector<MergeText>& merges) {
  if (!node.json().is_array()) return node.Error("must be a list");
  merges.reserve(node.json().size());
  for (const json& item : node.json()) {
    if (item.is_string()) {
      ASSIGN_OR_RETURN(const MergeText merge, ParseMergeText(item.get_ref<const std::string&>()));
      merges.push_back(merge);
    } else if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
      merges.push_back(
          {item[0].get_ref<const std::string&>(), item[1].get_ref<const std::string&>()});
    } else {
      return node.Error(fmt::format("entry {} is not a pair of strings", merges.size()));
    }
  }
  return absl::OkStatus();
}

// Options of the model that would change its results and are not implemented.
Status RefuseUnsupportedModelOptions(const JsonNode& node) {
  RETURN_IF_ERROR(node.CheckKeys({"type", "dropout", "unk_token", "continuing_subword_prefix",
                                  "end_of_word_suffix", "fuse_unk", "byte_fallback",
                                  "ignore_merges", "vocab", "merges"}));
  ASSIGN_OR_RETURN(const std::string type, node.GetString("type"));
  if (type != "BPE") return node.Error(fmt::format("type \"{}\" is not supported", Escaped(type)));
  if (node.Has("dropout")) {
    const json& dropout = node.json()["dropout"];
    if (!dropout.is_number() || dropout.get<double>() != 0) {
      return node.Error("dropout is not supported");
    }
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!node.Has(key)) continue;
    ASSIGN_OR_RETURN(const std::string text, node.GetString(key));
    if (!text.empty()) return node.Error(fmt::format("{} is not supported", key));
  }
  return absl::OkStatus();
}

Status SetByteFallback(const JsonNode& node, const Vocabulary& vocabulary, BpeModelConfig& config) {
  if (config.unit == BpeUnit::kByte) {
    return node.Error("byte_fallback together with ByteLevel is not supported");
  }
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text = fmt::format("<0x{:02X}>", byte);
    const auto at = vocabulary.id_of.find(text);
    if (at == vocabulary.id_of.end()) {
      return node.Error(fmt::format("byte_fallback is set, but token \"{}\" is missing", text));
    }
    config.byte_ids[static_cast<size_t>(byte)] = at->second;
  }
  config.has_byte_fallback = true;
  return absl::OkStatus();
}

}  // namespace

StatusOr<TokenId> KnownId(const JsonNode& node, const Vocabulary& vocabulary, int64_t id) {
  RETURN_IF_ERROR(CheckId(node, id));
  if (!vocabulary.text_of.contains(static_cast<int32_t>(id))) {
    return node.Error(fmt::format("id {} is not in the vocabulary", id));
  }
  return TokenId{static_cast<int32_t>(id)};
}

StatusOr<BpeModelConfig> ReadModel(const JsonNode& node, BpeUnit unit, Vocabulary& vocabulary) {
  RETURN_IF_ERROR(RefuseUnsupportedModelOptions(node));
  ASSIGN_OR_RETURN(const JsonNode tokens, node.Get("vocab"));
  RETURN_IF_ERROR(ReadModelVocabulary(tokens, vocabulary));
  ASSIGN_OR_RETURN(const JsonNode merges_node, node.Get("merges"));
  std::vector<MergeText> merges;
  RETURN_IF_ERROR(ReadMerges(merges_node, merges));
  ASSIGN_OR_RETURN(const bool takes_whole_pieces, node.GetBool("ignore_merges", false));
  StatusOr<BpeModelConfig> config =
      BuildBpeModelConfig(unit, vocabulary.entries, merges, takes_whole_pieces);
  if (!config.ok()) return merges_node.Error(StatusMessage(config.status()));
  ASSIGN_OR_RETURN(config->fuse_unknown, node.GetBool("fuse_unk", false));
  ASSIGN_OR_RETURN(const bool has_byte_fallback, node.GetBool("byte_fallback", false));
  if (has_byte_fallback) RETURN_IF_ERROR(SetByteFallback(node, vocabulary, *config));
  if (node.Has("unk_token")) {
    ASSIGN_OR_RETURN(const std::string unknown, node.GetString("unk_token"));
    const auto at = vocabulary.id_of.find(unknown);
    if (at == vocabulary.id_of.end()) {
      return node.Error(fmt::format("unk_token \"{}\" is not in the vocabulary", Escaped(unknown)));
    }
    config->unknown = at->second;
  }
  return config;
}

Status ReadAddedTokens(const JsonNode& node, Vocabulary& vocabulary) {
  if (node.json().is_array()) vocabulary.added.reserve(node.json().size());  // views point into it
  std::unordered_set<int32_t> seen;
  return node.ForEachItem([&](const JsonNode& item) -> Status {
    ASSIGN_OR_RETURN(AddedEntry entry, ReadAddedToken(item));
    const int32_t id = ToInt(entry.token.id);
    if (!seen.insert(id).second) return item.Error(fmt::format("id {} is added twice", id));
    vocabulary.added.push_back(std::move(entry));
    const std::string_view content = vocabulary.added.back().token.content;
    const auto [by_id, is_new_id] = vocabulary.text_of.emplace(id, content);
    if (by_id->second != content) return item.Error(fmt::format("id {} is another token's", id));
    const auto [by_text, is_new_text] = vocabulary.id_of.emplace(content, TokenId{id});
    if (ToInt(by_text->second) != id) return item.Error("its content has another id already");
    return absl::OkStatus();
  });
}

}  // namespace longspan
