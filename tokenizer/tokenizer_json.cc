// The loader: reads the parts (tokenizer_json_vocabulary.h, tokenizer_json_steps.h) and puts them
// together. Known components pass, everything else in the file is refused by name.
#include "tokenizer/tokenizer_json.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/json.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/json_document.h"
#include "tokenizer/tokenizer_json_steps.h"
#include "tokenizer/tokenizer_json_vocabulary.h"
#include "tokenizer/tokenizer_parts.h"

namespace longspan {
namespace {

using nlohmann::json;

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
    ASSIGN_OR_RETURN(std::string content,
                     parts.normalizer.Apply(entry.token.content, CancelFlag(nullptr), scratch));
    const int32_t id = ToInt(entry.token.id);
    if (content.empty() || content.size() > kMaxAddedTokenBytes) {
      return node.Error(fmt::format("id {}: normalized content of {} bytes (limit 1 to {})", id,
                                    content.size(), kMaxAddedTokenBytes));
    }
    if (!contents.insert(content).second) {
      return node.Error(fmt::format("id {}: another token has the same normalized content", id));
    }
    entry.normalized_content = std::move(content);
    vocabulary.text_of[id] = entry.normalized_content;
    AddedToken token = entry.token;
    token.content = entry.normalized_content;
    normalized.push_back(std::move(token));
  }
  parts.raw_added_tokens = AddedTokenMatcher(std::move(raw));
  parts.normalized_added_tokens = AddedTokenMatcher(std::move(normalized));
  return absl::OkStatus();
}

// A piece of plain text that spells a special token is still plain text. (The reference would take
// it whole, where the model does so with its tokens.)
void ForgetSpecialPieces(const Vocabulary& vocabulary, BpeModelConfig& model) {
  for (const AddedEntry& entry : vocabulary.added) {
    if (entry.token.is_special) model.whole_piece_ids.erase(entry.token.content);
  }
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
  ASSIGN_OR_RETURN(const json document, ParseJson(json_text, "tokenizer.json"));
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
  const JsonNode added = get("added_tokens");
  if (root.Has("added_tokens")) RETURN_IF_ERROR(ReadAddedTokens(added, vocabulary));
  ForgetSpecialPieces(vocabulary, model);
  parts->model = BpeModel(std::move(model));
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
