#include "tokenizer/tokenizer_json.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/log.h"
#include "tokenizer/bpe_vocabulary.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/json_document.h"
#include "tokenizer/tokenizer_json_steps.h"
#include "tokenizer/tokenizer_parts.h"

namespace longspan {
namespace {

using nlohmann::json;

struct AddedEntry {
  AddedToken token;
  bool is_normalized;
};

// The whole vocabulary while it is being read: the model's tokens and the added ones.
struct Vocabulary {
  std::vector<VocabularyEntry> entries;  // of the model; texts live in the JSON document
  std::vector<AddedEntry> added;
  std::unordered_map<int32_t, std::string_view> text_of;  // id -> text, model and added
  std::unordered_map<std::string_view, TokenId> id_of;    // the same the other way round
};

Status CheckId(const JsonNode& node, int64_t id) {
  if (id >= 0 && id < kMaxVocabularySize) return absl::OkStatus();
  return node.Error(
      fmt::format("id {} is out of range (limit 0 to {})", id, kMaxVocabularySize - 1));
}

StatusOr<TokenId> KnownId(const JsonNode& node, const Vocabulary& vocabulary, int64_t id) {
  RETURN_IF_ERROR(CheckId(node, id));
  if (!vocabulary.text_of.contains(static_cast<int32_t>(id))) {
    return node.Error(fmt::format("id {} is not in the vocabulary", id));
  }
  return TokenId{static_cast<int32_t>(id)};
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

// An added token may repeat a token of the model, under the same id.
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

// Reads the model's vocabulary as well; the added tokens come later.
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

std::string ReplaceAll(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string out;
  for (size_t at; (at = text.find(pattern)) != std::string_view::npos;) {
    out.append(text.substr(0, at)).append(content);
    text.remove_prefix(at + pattern.size());
  }
  return out.append(text);
}

// "<0x41>" -> "A".
std::optional<std::string> ByteOfFallbackToken(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEFabcdef";
  const bool has_form = text.size() == 6 && text.starts_with("<0x") && text.ends_with('>') &&
                        kDigits.find(text[3]) != std::string_view::npos &&
                        kDigits.find(text[4]) != std::string_view::npos;
  if (!has_form) return std::nullopt;
  const int byte = std::stoi(std::string(text.substr(3, 2)), nullptr, 16);
  return std::string(1, static_cast<char>(byte));
}

std::string BytesOf(std::string_view text, const DecoderPlan& decoder) {
  if (decoder.is_byte_level) return DecodeByteLevel(text).value_or(std::string(text));
  std::string bytes(text);
  for (const auto& [pattern, content] : decoder.replacements) {
    bytes = ReplaceAll(bytes, pattern, content);
  }
  if (decoder.has_byte_fallback) {
    if (std::optional<std::string> byte = ByteOfFallbackToken(bytes)) return *byte;
  }
  return bytes;
}

// Splits the added tokens into the two searches, and notes what each is read back as: a token that
// is found in the normalized text is also written in its normalized form.
Status PlaceAddedTokens(const JsonNode& node, Vocabulary& vocabulary, TokenizerParts& parts) {
  std::vector<AddedToken> raw;
  std::vector<AddedToken> normalized;
  std::unordered_set<std::string> contents;
  RegexScratch scratch;
  for (AddedEntry& entry : vocabulary.added) {
    if (!entry.is_normalized || parts.normalizer.empty()) {
      (entry.is_normalized ? normalized : raw).push_back(entry.token);
      continue;
    }
    ASSIGN_OR_RETURN(std::string content, parts.normalizer.Apply(entry.token.content, scratch));
    const int32_t id = ToInt(entry.token.id);
    if (content.empty() || content.size() > kMaxAddedTokenBytes) {
      return node.Error(fmt::format("id {}: normalized content of {} bytes (limit 1 to {})", id,
                                    content.size(), kMaxAddedTokenBytes));
    }
    if (!contents.insert(content).second) {
      return node.Error(fmt::format("id {}: another token has the same normalized content", id));
    }
    entry.token.content = std::move(content);
    vocabulary.text_of[id] = entry.token.content;
    normalized.push_back(entry.token);
  }
  parts.raw_added_tokens = AddedTokenMatcher(std::move(raw));
  parts.normalized_added_tokens = AddedTokenMatcher(std::move(normalized));
  return absl::OkStatus();
}

TokenTable MakeTokenTable(const Vocabulary& vocabulary, const DecoderPlan& decoder) {
  std::unordered_set<int32_t> special;
  for (const AddedEntry& entry : vocabulary.added) {
    if (entry.token.is_special) special.insert(ToInt(entry.token.id));
  }
  std::vector<std::pair<int32_t, std::string_view>> tokens(vocabulary.text_of.begin(),
                                                           vocabulary.text_of.end());
  std::sort(tokens.begin(), tokens.end());
  TokenTable table;
  for (const auto& [id, text] : tokens) {
    table.Add(TokenId{id}, BytesOf(text, decoder), special.contains(id));
  }
  return table;
}

StatusOr<std::vector<TokenId>> KnownIds(const JsonNode& node, const Vocabulary& vocabulary,
                                        const std::vector<int64_t>& ids) {
  std::vector<TokenId> known;
  for (int64_t id : ids) {
    ASSIGN_OR_RETURN(const TokenId token, KnownId(node, vocabulary, id));
    known.push_back(token);
  }
  return known;
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizerJson(std::string_view json_text,
                                                       const TokenizerJsonOptions& options) {
  if (json_text.size() > kMaxTokenizerJsonBytes) {
    return InvalidArgument("tokenizer.json: {} bytes (limit {})", json_text.size(),
                           kMaxTokenizerJsonBytes);
  }
  ASSIGN_OR_RETURN(const json document,
                   ParseJsonDocument(json_text, "tokenizer.json", kMaxTokenizerJsonDepth));
  const JsonNode root(document, "tokenizer.json");
  // Truncation and padding are the caller's business: a server has limits of its own.
  RETURN_IF_ERROR(root.CheckKeys({"version", "truncation", "padding", "added_tokens", "normalizer",
                                  "pre_tokenizer", "post_processor", "decoder", "model"}));
  const json absent;
  const auto get = [&](const char* key) {
    return root.Has(key) ? *root.Get(key)
                         : JsonNode(absent, fmt::format("tokenizer.json: {}", key));
  };

  auto parts = std::make_unique<TokenizerParts>();
  ASSIGN_OR_RETURN(parts->normalizer, ReadNormalizer(get("normalizer")));
  ASSIGN_OR_RETURN(PreTokenizerPlan pre_tokenizer, ReadPreTokenizer(get("pre_tokenizer")));
  ASSIGN_OR_RETURN(const DecoderPlan decoder, ReadDecoder(get("decoder")));
  if (pre_tokenizer.is_byte_level != decoder.is_byte_level) {
    return root.Error(
        "ByteLevel must be the pre_tokenizer's last step and the decoder, or neither");
  }
  const BpeUnit unit = decoder.is_byte_level ? BpeUnit::kByte : BpeUnit::kCharacter;
  parts->kind = decoder.is_byte_level ? "byte_level_bpe" : "sentencepiece_bpe";
  parts->pre_tokenizer = PreTokenizer(std::move(pre_tokenizer.steps));
  parts->metaspace = decoder.metaspace;
  parts->drops_metaspace_in_first_token = decoder.drops_metaspace_in_first_token;
  parts->num_leading_spaces_to_strip = decoder.num_leading_spaces_to_strip;

  Vocabulary vocabulary;
  ASSIGN_OR_RETURN(BpeModelConfig model, ReadModel(get("model"), unit, vocabulary));
  parts->model = BpeModel(std::move(model));
  const JsonNode added = get("added_tokens");
  if (root.Has("added_tokens")) RETURN_IF_ERROR(ReadAddedTokens(added, vocabulary));
  RETURN_IF_ERROR(PlaceAddedTokens(added, vocabulary, *parts));
  parts->tokens = MakeTokenTable(vocabulary, decoder);

  const JsonNode post_processor = get("post_processor");
  ASSIGN_OR_RETURN(const TextTemplate text_template, ReadPostProcessor(post_processor));
  ASSIGN_OR_RETURN(parts->prefix, KnownIds(post_processor, vocabulary, text_template.prefix));
  ASSIGN_OR_RETURN(parts->suffix, KnownIds(post_processor, vocabulary, text_template.suffix));
  if (options.bos_id) {
    const JsonNode node(absent, "bos_token_id");
    ASSIGN_OR_RETURN(parts->bos, KnownId(node, vocabulary, *options.bos_id));
  }
  if (options.eos_id) {
    const JsonNode node(absent, "eos_token_id");
    ASSIGN_OR_RETURN(parts->eos, KnownId(node, vocabulary, *options.eos_id));
  }
  return std::make_unique<Tokenizer>(std::move(parts));
}

}  // namespace longspan
