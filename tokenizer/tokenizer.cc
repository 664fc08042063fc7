// A text's way through the parts: added tokens, normalizer, pre-tokenizer, merges, BOS and EOS; and
// back by the token table. What the parts are is decided by the loaders.
#include "tokenizer/tokenizer.h"

#include <algorithm>

#include "tokenizer/cancel_flag.h"
#include "tokenizer/incremental_detokenizer.h"
#include "tokenizer/tokenizer_parts.h"

namespace longspan {
namespace {

// One call of Encode: the text's way through the parts.
class Encoding {
 public:
  Encoding(const TokenizerParts& parts, const EncodeOptions& options, CancelFlag cancelled)
      : parts_(parts), options_(options), cancelled_(cancelled) {}

  StatusOr<std::vector<TokenId>> Run(std::string_view text) {
    if (options_.add_special_tokens) ids_ = parts_.prefix;
    if (Status encoded = Split(text); !encoded.ok()) {
      if (absl::IsOutOfRange(encoded)) return TooManyTokens();
      return encoded;
    }
    if (options_.add_special_tokens) {
      ids_.insert(ids_.end(), parts_.suffix.begin(), parts_.suffix.end());
    }
    if (num_left() < 0) return TooManyTokens();
    return std::move(ids_);
  }

 private:
  int64_t num_left() const { return options_.max_tokens - static_cast<int64_t>(ids_.size()); }

  Status TooManyTokens() const {
    return MakeStatus(absl::StatusCode::kOutOfRange, "text: more than {} tokens (limit {})",
                      options_.max_tokens, options_.max_tokens);
  }

  Status Add(TokenId id) {
    if (num_left() <= 0) return TooManyTokens();
    ids_.push_back(id);
    return absl::OkStatus();
  }

  Status Split(std::string_view text) {
    return parts_.raw_added_tokens.Split(
        text, options_.parse_special_tokens, cancelled_,
        [&](std::string_view stretch, std::optional<TokenId> id) -> Status {
          return id ? Add(*id) : EncodeRaw(stretch, stretch.data() == text.data());
        });
  }

  Status EncodeRaw(std::string_view text, bool at_text_start) {
    if (parts_.normalizer.empty()) return EncodeNormalized(text, at_text_start);
    ASSIGN_OR_RETURN(const std::string normalized,
                     parts_.normalizer.Apply(text, cancelled_, regex_));
    return EncodeNormalized(normalized, at_text_start);
  }

  Status EncodeNormalized(std::string_view text, bool at_text_start) {
    return parts_.normalized_added_tokens.Split(
        text, options_.parse_special_tokens, cancelled_,
        [&](std::string_view stretch, std::optional<TokenId> id) -> Status {
          if (id) return Add(*id);
          return parts_.pre_tokenizer.Split(stretch, at_text_start && stretch.data() == text.data(),
                                            regex_, [&](std::string_view piece) -> Status {
                                              RETURN_IF_ERROR(cancelled_.Check());
                                              return parts_.model.Encode(piece, num_left(),
                                                                         cancelled_, bpe_, ids_);
                                            });
        });
  }

  const TokenizerParts& parts_;
  const EncodeOptions& options_;
  CancelFlag cancelled_;
  RegexScratch regex_;
  BpeModel::Scratch bpe_;
  std::vector<TokenId> ids_;
};

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

StatusOr<std::vector<TokenId>> Tokenizer::Encode(std::string_view text,
                                                 const EncodeOptions& options,
                                                 const std::atomic<bool>* cancelled) const {
  return Encoding(*parts_, options, CancelFlag(cancelled)).Run(text);
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  IncrementalDetokenizer stream(*this, skip_special_tokens,
                                IncrementalDetokenizer::Start::kDocument);
  std::string text;
  for (TokenId id : ids) text += stream.Append(id);
  return text + stream.Finish();
}

bool Tokenizer::IsShown(TokenId id, bool skip_special_tokens) const {
  return parts_->tokens.Contains(id) && !(skip_special_tokens && parts_->tokens.IsSpecial(id));
}

void Tokenizer::AppendBytes(TokenId id, bool skip_special_tokens, std::string& out) const {
  if (!IsShown(id, skip_special_tokens)) return;
  std::string_view bytes = parts_->tokens.Bytes(id);
  const std::string_view metaspace = parts_->metaspace;
  while (!metaspace.empty()) {
    const size_t at = bytes.find(metaspace);
    if (at == std::string_view::npos) break;
    out.append(bytes.substr(0, at)).append(" ");
    bytes.remove_prefix(at + metaspace.size());
  }
  out.append(bytes);
}

bool Tokenizer::AppendFirstBytes(TokenId id, bool skip_special_tokens, std::string& out) const {
  if (!IsShown(id, skip_special_tokens)) return false;
  if (!parts_->drops_metaspace_in_first_token) {
    AppendBytes(id, skip_special_tokens, out);
    return true;
  }
  std::string_view bytes = parts_->tokens.Bytes(id);
  for (size_t at; (at = bytes.find(parts_->metaspace)) != std::string_view::npos;) {
    out.append(bytes.substr(0, at));
    bytes.remove_prefix(at + parts_->metaspace.size());
  }
  out.append(bytes);
  return true;
}

int Tokenizer::num_leading_spaces_to_strip() const { return parts_->num_leading_spaces_to_strip; }
int32_t Tokenizer::vocab_size() const { return parts_->tokens.size(); }
bool Tokenizer::is_special(TokenId id) const { return parts_->tokens.IsSpecial(id); }
std::optional<TokenId> Tokenizer::bos() const { return parts_->bos; }
std::optional<TokenId> Tokenizer::eos() const { return parts_->eos; }
std::string_view Tokenizer::kind() const { return parts_->kind; }

}  // namespace longspan
