// Which GGUF tokenizers are known (the table of families), their patterns, and the checks of the
// token list. Anything else is refused by its name in the file.
#include "tokenizer/gguf_vocabulary.h"

#include <array>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "core/log.h"
#include "tokenizer/bpe_vocabulary.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/oniguruma_pattern.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/utf8.h"

namespace longspan {
namespace {

enum GgufTokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5
};

// What a value of tokenizer.ggml.pre stands for.
struct Family {
  std::string_view name;
  bool splits_digits;        // each digit is a piece of its own, before anything else
  std::string_view pattern;  // Oniguruma syntax; empty: GPT-2's
  bool is_nfc;               // the text is composed first
  bool takes_whole_pieces;   // a piece that is a token is not put together by merges
  bool adds_bos;             // unless the file says otherwise
};

constexpr std::string_view kLlamaPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::array<Family, 4> kFamilies = {{
    {"smollm", true, "", false, false, false},
    {"gpt-2", false, "", false, false, false},
    {"llama-bpe", false, kLlamaPattern, false, true, true},
    {"qwen2", false, kQwenPattern, true, false, false},
}};

StatusOr<Family> FindFamily(const GgufVocabulary& vocabulary) {
  if (vocabulary.model != "gpt2") {
    return InvalidArgument("tokenizer.ggml.model \"{}\" is not supported (supported: gpt2)",
                           Escaped(vocabulary.model));
  }
  for (const Family& family : kFamilies) {
    if (family.name == vocabulary.pre) return family;
  }
  return InvalidArgument(
      "tokenizer.ggml.pre \"{}\" is not supported (supported: smollm, gpt-2, llama-bpe, qwen2)",
      Escaped(vocabulary.pre));
}

Status CheckTokens(const GgufVocabulary& vocabulary) {
  const size_t num_tokens = vocabulary.tokens.size();
  if (num_tokens == 0 || num_tokens > static_cast<size_t>(kMaxVocabularySize)) {
    return InvalidArgument("tokenizer.ggml.tokens: {} tokens (limit 1 to {})", num_tokens,
                           kMaxVocabularySize);
  }
  if (vocabulary.token_types.size() != num_tokens) {
    return InvalidArgument("tokenizer.ggml.token_type: {} entries for {} tokens",
                           vocabulary.token_types.size(), num_tokens);
  }
  std::unordered_set<std::string_view> seen;
  seen.reserve(num_tokens);
  for (size_t i = 0; i < num_tokens; ++i) {
    const std::string& text = vocabulary.tokens[i];
    const int32_t type = vocabulary.token_types[i];
    if (text.empty()) return InvalidArgument("tokenizer.ggml.tokens[{}]: empty", i);
    if (!IsValidUtf8(text)) return InvalidArgument("tokenizer.ggml.tokens[{}]: not UTF-8", i);
    if (type < kNormal || type > kUnused) {
      return InvalidArgument("tokenizer.ggml.token_type[{}]: type {} is not supported", i, type);
    }
    if (!seen.insert(text).second) {
      return InvalidArgument("tokenizer.ggml.tokens[{}]: \"{}\" appears twice", i, Escaped(text));
    }
  }
  return absl::OkStatus();
}

StatusOr<std::optional<TokenId>> CheckedId(std::optional<int64_t> id, std::string_view key,
                                           size_t num_tokens) {
  if (!id) return std::optional<TokenId>();
  if (*id < 0 || static_cast<uint64_t>(*id) >= num_tokens) {
    return InvalidArgument("{}: id {} is not in the vocabulary of {} tokens", key, *id, num_tokens);
  }
  return std::optional<TokenId>(TokenId{static_cast<int32_t>(*id)});
}

// Control and user-defined tokens are written as they are; they are found as whole tokens, never
// put together from merges.
StatusOr<AddedTokenMatcher> MakeAddedTokens(const GgufVocabulary& vocabulary) {
  std::vector<AddedToken> added;
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const int32_t type = vocabulary.token_types[i];
    if (type == kNormal || type == kUnused) continue;
    if (vocabulary.tokens[i].size() > kMaxAddedTokenBytes) {
      return InvalidArgument("tokenizer.ggml.tokens[{}]: added token of {} bytes (limit {})", i,
                             vocabulary.tokens[i].size(), kMaxAddedTokenBytes);
    }
    AddedToken token;
    token.content = vocabulary.tokens[i];
    token.id = TokenId{static_cast<int32_t>(i)};
    token.is_special = type != kUserDefined;
    added.push_back(std::move(token));
  }
  return AddedTokenMatcher(std::move(added));
}

StatusOr<PreTokenizer> MakePreTokenizer(const Family& family) {
  std::vector<PreTokenizerStep> steps;
  if (family.splits_digits) steps.push_back(DigitsStep{true});
  if (family.pattern.empty()) {
    ASSIGN_OR_RETURN(Regex regex, CompileGpt2Pattern());
    steps.push_back(ByteLevelStep{false, std::move(regex)});
  } else {
    ASSIGN_OR_RETURN(const std::string pattern, TranslateOnigurumaPattern(family.pattern));
    ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
    steps.push_back(SplitStep{std::move(regex), SplitBehavior::kIsolated, false});
    steps.push_back(ByteLevelStep{false, std::nullopt});
  }
  return PreTokenizer(std::move(steps));
}

StatusOr<BpeModel> MakeModel(const GgufVocabulary& vocabulary, bool takes_whole_pieces) {
  std::vector<VocabularyEntry> entries;
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    if (vocabulary.token_types[i] != kNormal) continue;
    entries.push_back({vocabulary.tokens[i], TokenId{static_cast<int32_t>(i)}});
  }
  std::vector<MergeText> merges;
  merges.reserve(vocabulary.merges.size());
  for (const std::string& line : vocabulary.merges) {
    ASSIGN_OR_RETURN(const MergeText merge, ParseMergeText(line));
    merges.push_back(merge);
  }
  ASSIGN_OR_RETURN(BpeModelConfig config,
                   BuildBpeModelConfig(BpeUnit::kByte, entries, merges, takes_whole_pieces));
  return BpeModel(std::move(config));
}

TokenTable MakeTokenTable(const GgufVocabulary& vocabulary) {
  TokenTable table;
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const int32_t type = vocabulary.token_types[i];
    if (type == kUnused) continue;  // padding of the embedding matrix: stands for nothing
    const std::string& text = vocabulary.tokens[i];
    std::string bytes = text;
    if (type == kNormal) bytes = DecodeByteLevel(text).value_or(text);
    table.Add(TokenId{static_cast<int32_t>(i)}, bytes, type == kControl || type == kUnknown);
  }
  table.PadTo(static_cast<int32_t>(vocabulary.tokens.size()));
  return table;
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> MakeGgufTokenizer(GgufVocabulary vocabulary) {
  ASSIGN_OR_RETURN(const Family family, FindFamily(vocabulary));
  RETURN_IF_ERROR(CheckTokens(vocabulary));
  const size_t num_tokens = vocabulary.tokens.size();

  auto parts = std::make_unique<TokenizerParts>();
  parts->kind = "byte_level_bpe";
  ASSIGN_OR_RETURN(parts->bos,
                   CheckedId(vocabulary.bos_id, "tokenizer.ggml.bos_token_id", num_tokens));
  ASSIGN_OR_RETURN(parts->eos,
                   CheckedId(vocabulary.eos_id, "tokenizer.ggml.eos_token_id", num_tokens));
  // Named by many files, used by none of these families: a byte without a token is dropped.
  ASSIGN_OR_RETURN(const auto unknown,
                   CheckedId(vocabulary.unk_id, "tokenizer.ggml.unknown_token_id", num_tokens));
  static_cast<void>(unknown);
  if (vocabulary.add_bos.value_or(family.adds_bos)) {
    if (!parts->bos) return InvalidArgument("tokenizer.ggml.add_bos_token is set without a BOS id");
    parts->prefix.push_back(*parts->bos);
  }
  if (vocabulary.add_eos.value_or(false)) {
    if (!parts->eos)
      return InvalidArgument("tokenizer.ggml.add_eos_token is set without an EOS id");
    parts->suffix.push_back(*parts->eos);
  }
  ASSIGN_OR_RETURN(parts->raw_added_tokens, MakeAddedTokens(vocabulary));
  if (family.is_nfc) {
    parts->normalizer = Normalizer({UnicodeFormStep{UnicodeForm::kNfc}});
  }
  ASSIGN_OR_RETURN(parts->pre_tokenizer, MakePreTokenizer(family));
  ASSIGN_OR_RETURN(parts->model, MakeModel(vocabulary, family.takes_whole_pieces));
  parts->tokens = MakeTokenTable(vocabulary);
  return std::make_unique<Tokenizer>(std::move(parts));
}

}  // namespace longspan
