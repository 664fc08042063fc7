// The tables of every request's fields with their limits, then the rules between fields, cheapest
// first: nothing is copied or tokenized for a request that an earlier rule refuses.
#include "server/request_validator.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "scheduler/scheduler.h"
#include "server/error_details.h"
#include "server/field_rules.h"
#include "tokenizer/tokenizer.h"

namespace longspan {
namespace {

constexpr int kMaxIdCharacters = 128;
constexpr int kMaxIdBytes = 4 * kMaxIdCharacters;

// The limits of the outside (api.md section 2). Prompt ids are limited by the context, see
// CheckPromptLength.
constexpr FieldRule kGenerateRules[] = {
    Text("request_id", 1, kMaxIdBytes),
    Any("model"),
    Any("text"),
    TokenIdList("token_ids.ids", kNoItemLimit),
    Any("add_special_tokens"),
    Any("parse_special_tokens"),
    Number("sampling.temperature", 0, 100),
    Number("sampling.top_k", -1, kInt32Max),
    NumberAbove("sampling.top_p", 0, 1),
    Number("sampling.min_p", 0, 1),
    NumberAbove("sampling.repetition_penalty", 0, 10),
    Number("sampling.presence_penalty", -2, 2),
    Number("sampling.frequency_penalty", -2, 2),
    Any("sampling.seed"),
    TokenBias("sampling.logit_bias", -100, 100, 1024),
    TokenIdList("sampling.allowed_token_ids", 1024),
    Text("sampling.bad_words", 1, 1024, 1024),
    Number("n", 1, 16),
    Number("stop.max_tokens", 0, kInt32Max),
    Number("stop.min_tokens", 0, kInt32Max),
    Text("stop.strings", 1, 1024, 16),
    TokenIdList("stop.token_ids", 64),
    Any("stop.ignore_eos"),
    Any("stop.include_stop_in_output"),
    Any("output.text"),
    Any("output.token_ids"),
    Any("output.skip_special_tokens"),
    Number("output.logprobs", 0, 20),
    Number("output.prompt_logprobs", 0, 20),
    Number("priority", -kInt32Max - 1, kInt32Max),
    Text("cache_salt", 0, 128),
    Enum("prefix_cache"),
    Enum("reservation"),
};
constexpr FieldRule kTokenizeRules[] = {Any("model"), Any("text"), Any("add_special_tokens"),
                                        Any("parse_special_tokens")};
constexpr FieldRule kDetokenizeRules[] = {Any("model"), TokenIdList("token_ids", kNoItemLimit),
                                          Any("skip_special_tokens")};
constexpr FieldRule kAbortRules[] = {Text("request_id", 1, kMaxIdBytes)};
constexpr FieldRule kDrainRules[] = {Number("timeout_seconds", 0, 86400)};
constexpr FieldRule kSetLogLevelRules[] = {Text("level", 1, 16)};

const FieldTable& GenerateTable() {
  static const FieldTable table(*v1::GenerateRequest::descriptor(), kGenerateRules);
  return table;
}

template <typename Request>
grpc::Status CheckTable(const Request& request, std::span<const FieldRule> rules,
                        int32_t vocab_size) {
  static const FieldTable table(*Request::descriptor(), rules);
  Violations violations;
  table.Check(request, vocab_size, violations);
  return violations.ToStatus();
}

const char* InputField(const v1::GenerateRequest& request) {
  return request.has_text() ? "text" : "token_ids";
}

// What a model without a tokenizer cannot do. Text in the output is refused only when asked for.
void RefuseText(const v1::GenerateRequest& request, Violations& violations) {
  const std::pair<const char*, bool> fields[] = {
      {"text", request.has_text()},
      {"sampling.bad_words", request.sampling().bad_words_size() > 0},
      {"stop.strings", request.stop().strings_size() > 0},
      {"output.text", request.output().text()}};
  for (const auto& [field, is_used] : fields) {
    if (is_used) violations.Add(field, "the model has no tokenizer (limit: token ids only)");
  }
}

SamplingParams ToSampling(const v1::GenerateRequest& request, uint64_t drawn_seed) {
  const v1::SamplingParams& in = request.sampling();
  SamplingParams out;
  if (in.has_temperature()) out.temperature = in.temperature();
  if (in.has_top_k()) out.top_k = std::max(in.top_k(), 0);
  if (in.has_top_p()) out.top_p = in.top_p();
  if (in.has_min_p()) out.min_p = in.min_p();
  if (in.has_repetition_penalty()) out.repetition_penalty = in.repetition_penalty();
  if (in.has_presence_penalty()) out.presence_penalty = in.presence_penalty();
  if (in.has_frequency_penalty()) out.frequency_penalty = in.frequency_penalty();
  out.seed = in.has_seed() ? in.seed() : drawn_seed;
  for (const auto& [id, bias] : in.logit_bias()) out.logit_bias.emplace_back(TokenId{id}, bias);
  // A proto map has no order; the sampler's sums must not depend on it.
  std::sort(out.logit_bias.begin(), out.logit_bias.end());
  for (const int32_t id : in.allowed_token_ids()) out.allowed_token_ids.push_back(TokenId{id});
  out.min_tokens = request.stop().min_tokens();
  if (request.output().has_logprobs()) out.num_logprobs = request.output().logprobs();
  if (request.output().has_prompt_logprobs()) {
    out.num_prompt_logprobs = request.output().prompt_logprobs();
  }
  return out;
}

OutputOptions ToOutput(const v1::GenerateRequest& request, bool has_tokenizer) {
  const v1::OutputParams& in = request.output();
  OutputOptions out;
  out.text = has_tokenizer && (!in.has_text() || in.text());
  out.token_ids = !in.has_token_ids() || in.token_ids();
  out.skip_special_tokens = !in.has_skip_special_tokens() || in.skip_special_tokens();
  out.stop_strings.assign(request.stop().strings().begin(), request.stop().strings().end());
  out.include_stop_in_output = request.stop().include_stop_in_output();
  out.min_tokens = request.stop().min_tokens();
  return out;
}

}  // namespace

RequestValidator::RequestValidator(const ServedModel& model) : model_(model) {}

bool RequestValidator::NeedsTokenizer(const v1::GenerateRequest& request) {
  return request.has_text() || request.sampling().bad_words_size() > 0;
}

grpc::Status RequestValidator::Build(const v1::GenerateRequest& request, uint64_t drawn_seed,
                                     const std::atomic<bool>* cancelled,
                                     ValidatedRequest& out) const {
  if (grpc::Status named = CheckModel(request.has_model(), request.model()); !named.ok()) {
    return named;
  }
  Violations violations;
  if (request.has_request_id() && !IsPrintableId(request.request_id())) {
    violations.Add("request_id", fmt::format("is empty, too long or not printable (limit 1..{} "
                                             "printable characters)",
                                             kMaxIdCharacters));
  }
  if (request.input_case() == v1::GenerateRequest::INPUT_NOT_SET) {
    violations.Add("input", "is missing (limit: exactly one of text and token_ids)");
  }
  // Before the ids are looked at one by one, and long before they are copied.
  if (request.has_token_ids()) {
    CheckPromptLength(request, request.token_ids().ids_size(), violations);
  }
  if (model_.tokenizer == nullptr) RefuseText(request, violations);
  if (!violations.empty()) return violations.ToStatus();
  GenerateTable().Check(request, model_.config.vocab_size, violations);
  if (!violations.empty()) return violations.ToStatus();

  SequenceParams& params = out.params;
  params.sampling = ToSampling(request, drawn_seed);
  out.output = ToOutput(request, model_.tokenizer != nullptr);
  params.n = request.has_n() ? request.n() : 1;
  params.ignore_eos = request.stop().ignore_eos();
  params.eos_token_ids = model_.config.eos_token_ids;
  for (const int32_t id : request.stop().token_ids()) params.stop_token_ids.push_back(TokenId{id});
  out.output.stop_token_ids = params.stop_token_ids;
  if (!params.ignore_eos) {
    out.output.stop_token_ids.insert(out.output.stop_token_ids.end(), params.eos_token_ids.begin(),
                                     params.eos_token_ids.end());
  }
  params.priority = request.priority();
  params.cache_salt = request.cache_salt();
  params.use_prefix_cache = request.prefix_cache() != v1::PREFIX_CACHE_POLICY_BYPASS;
  params.guaranteed = request.reservation() == v1::RESERVATION_GUARANTEED;
  if (grpc::Status filled = FillPrompt(request, cancelled, params.prompt); !filled.ok()) {
    return filled;
  }
  if (grpc::Status filled = FillBadWords(request, cancelled, params.sampling); !filled.ok()) {
    return filled;
  }
  ResolveMaxTokens(request, params, violations);
  return violations.ToStatus();
}

grpc::Status RequestValidator::CheckModel(bool is_set, const std::string& name) const {
  if (!is_set || name == model_.name) return grpc::Status::OK;
  return grpc::Status(grpc::StatusCode::NOT_FOUND,
                      fmt::format("model: not served here (limit: \"{}\" or unset)", model_.name));
}

int32_t RequestValidator::PromptLimit(const v1::GenerateRequest& request) const {
  const bool prompt_only = request.stop().has_max_tokens() && request.stop().max_tokens() == 0;
  return model_.max_model_len - (prompt_only ? 0 : 1);
}

void RequestValidator::CheckPromptLength(const v1::GenerateRequest& request, int64_t num_tokens,
                                         Violations& violations) const {
  const int32_t limit = PromptLimit(request);
  if (num_tokens == 0) {
    violations.Add(InputField(request), "the prompt is empty (limit: at least one token)");
  } else if (num_tokens > limit) {
    violations.Add(InputField(request),
                   fmt::format("the prompt has {} tokens (limit {} for a context of {})",
                               num_tokens, limit, model_.max_model_len));
  }
}

grpc::Status RequestValidator::FillPrompt(const v1::GenerateRequest& request,
                                          const std::atomic<bool>* cancelled,
                                          std::vector<TokenId>& prompt) const {
  if (request.has_token_ids()) {
    prompt.reserve(request.token_ids().ids_size());
    for (const int32_t id : request.token_ids().ids()) prompt.push_back(TokenId{id});
    return grpc::Status::OK;
  }
  EncodeOptions options;
  options.add_special_tokens = !request.has_add_special_tokens() || request.add_special_tokens();
  options.parse_special_tokens = request.parse_special_tokens();
  // A text beyond the context is not encoded to its end.
  options.max_tokens = PromptLimit(request);
  StatusOr<std::vector<TokenId>> ids = model_.tokenizer->Encode(request.text(), options, cancelled);
  Violations violations;
  if (absl::IsOutOfRange(ids.status())) {
    violations.Add("text",
                   fmt::format("the prompt has more than {} tokens (limit {} for a context of {})",
                               options.max_tokens, options.max_tokens, model_.max_model_len));
    return violations.ToStatus();
  }
  if (!ids.ok()) return ToGrpcStatus(ids.status());
  prompt = *std::move(ids);
  CheckPromptLength(request, static_cast<int64_t>(prompt.size()), violations);
  return violations.ToStatus();
}

// A word inside a text usually comes with a space before it, and then has other ids: both forms are
// bad.
grpc::Status RequestValidator::FillBadWords(const v1::GenerateRequest& request,
                                            const std::atomic<bool>* cancelled,
                                            SamplingParams& sampling) const {
  const EncodeOptions plain{.add_special_tokens = false, .parse_special_tokens = false};
  for (const std::string& word : request.sampling().bad_words()) {
    for (const std::string& form : {word, " " + word}) {
      StatusOr<std::vector<TokenId>> ids = model_.tokenizer->Encode(form, plain, cancelled);
      if (!ids.ok()) return ToGrpcStatus(ids.status());
      if (!ids->empty()) sampling.bad_words.push_back(*std::move(ids));
    }
  }
  return grpc::Status::OK;
}

void RequestValidator::ResolveMaxTokens(const v1::GenerateRequest& request, SequenceParams& params,
                                        Violations& violations) const {
  const int32_t prompt = static_cast<int32_t>(params.prompt.size());
  // A guaranteed request holds n full sequences at once, each of them its own share of the pool.
  const int32_t blocks = params.guaranteed ? model_.num_blocks / params.n : model_.num_blocks;
  const int64_t fits = MaxFittingTokens(blocks, model_.block_size);
  if (request.stop().has_max_tokens()) {
    params.max_tokens = std::min(request.stop().max_tokens(), model_.max_model_len - prompt);
    if (int64_t{prompt} + params.max_tokens > fits) {
      violations.Add("stop.max_tokens",
                     fmt::format("a prompt of {} and {} new tokens can never fit the KV pool "
                                 "(limit {} tokens in all)",
                                 prompt, params.max_tokens, fits));
    }
  } else {
    params.max_tokens = MaxNewTokens(prompt, model_.max_model_len, blocks, model_.block_size);
    if (params.max_tokens <= 0) {
      violations.Add(InputField(request),
                     fmt::format("the prompt of {} tokens leaves no room in the KV pool (limit {} "
                                 "tokens in all)",
                                 prompt, fits));
    }
  }
  if (request.stop().min_tokens() > params.max_tokens && violations.empty()) {
    violations.Add("stop.min_tokens", fmt::format("{} is above max_tokens (limit {})",
                                                  request.stop().min_tokens(), params.max_tokens));
  }
}

grpc::Status RequestValidator::Check(const v1::TokenizeRequest& request) const {
  if (grpc::Status named = CheckModel(request.has_model(), request.model()); !named.ok()) {
    return named;
  }
  return CheckTable(request, kTokenizeRules, model_.config.vocab_size);
}

grpc::Status RequestValidator::Check(const v1::DetokenizeRequest& request) const {
  if (grpc::Status named = CheckModel(request.has_model(), request.model()); !named.ok()) {
    return named;
  }
  return CheckTable(request, kDetokenizeRules, model_.config.vocab_size);
}

grpc::Status CheckRequest(const v1::AbortRequest& request) {
  if (!request.has_request_id()) {
    Violations violations;
    violations.Add("request_id", "is missing (limit: the id of a request)");
    return violations.ToStatus();
  }
  return CheckTable(request, kAbortRules, 0);
}

grpc::Status CheckRequest(const v1::DrainRequest& request) {
  return CheckTable(request, kDrainRules, 0);
}

grpc::Status CheckRequest(const v1::SetLogLevelRequest& request) {
  return CheckTable(request, kSetLogLevelRules, 0);
}

bool IsPrintableId(std::string_view text) {
  int characters = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 || byte == 0x7f) return false;
    // U+0080..U+009F are control characters too: C2 80..C2 9F.
    if (byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0) {
      return false;
    }
    if ((byte & 0xc0) != 0x80) ++characters;
  }
  return characters >= 1 && characters <= kMaxIdCharacters;
}

}  // namespace longspan
