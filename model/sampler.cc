// From a row of logits to a token, in a fixed order: bias, penalties, allowed ids, words to avoid,
// minimum length, then the draw (token_draw.h). Transforms work on a copy, so that
// log-probabilities are those of the model. Rows are independent and spread over threads.
#include "model/sampler.h"

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/random_stream.h"

namespace longspan {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// Transforms of finite logits stay finite: an extreme penalty must not make infinities.
float Clamped(float logit) {
  constexpr float kMax = std::numeric_limits<float>::max();
  return std::clamp(logit, -kMax, kMax);
}

bool HasMinTokens(const SamplingParams& params, int32_t position) {
  return position < params.min_tokens && !params.stop_token_ids.empty();
}

bool NeedsTransform(const SamplingParams& params, int32_t position) {
  return params.NeedsHistory() || !params.logit_bias.empty() || !params.allowed_token_ids.empty() ||
         HasMinTokens(params, position);
}

void AddBias(const SamplingParams& params, std::span<float> logits) {
  for (const auto& [token, bias] : params.logit_bias) {
    float& logit = logits[static_cast<size_t>(ToInt(token))];
    logit = Clamped(logit + bias);
  }
}

void Penalize(const SamplingParams& params, const TokenHistory& history, std::span<float> logits) {
  if (params.repetition_penalty == 1.0f && params.presence_penalty == 0.0f &&
      params.frequency_penalty == 0.0f) {
    return;
  }
  for (const TokenHistory::Count& count : history.counts()) {
    float& logit = logits[static_cast<size_t>(ToInt(count.token))];
    logit = logit > 0.0f ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    if (count.num_generated > 0) {
      logit -= params.presence_penalty +
               params.frequency_penalty * static_cast<float>(count.num_generated);
    }
    logit = Clamped(logit);
  }
}

void Mask(TokenId token, std::span<float> logits, std::vector<std::pair<TokenId, float>>& masked) {
  float& logit = logits[static_cast<size_t>(ToInt(token))];
  masked.emplace_back(token, logit);
  logit = kMasked;
}

}  // namespace

Sampler::Sampler(int32_t vocab_size, int32_t max_num_seqs, int num_threads)
    : vocab_size_(vocab_size), slots_(static_cast<size_t>(max_num_seqs)) {
  scratch_.reserve(static_cast<size_t>(num_threads));
  for (int t = 0; t < num_threads; ++t) scratch_.emplace_back(vocab_size);
}

int64_t Sampler::scratch_bytes() const {
  constexpr int64_t kPerLogit = 2 * sizeof(int32_t) + 2 * sizeof(float);
  return static_cast<int64_t>(scratch_.size()) * vocab_size_ * kPerLogit;
}

void Sampler::Admit(const AdmittedSequence& sequence, std::span<const TokenId> history) {
  Slot& slot = slots_[static_cast<size_t>(sequence.slot)];
  slot.params = sequence.sampling;
  const auto check = [&](TokenId token) {
    CHECK(ToInt(token) >= 0 && ToInt(token) < vocab_size_, "token {} of {}", ToInt(token),
          vocab_size_);
  };
  size_t longest = 1;
  for (const auto& entry : slot.params.logit_bias) check(entry.first);
  for (const TokenId token : slot.params.allowed_token_ids) check(token);
  for (const TokenId token : slot.params.stop_token_ids) check(token);
  for (const TokenId token : history) check(token);
  for (const std::vector<TokenId>& word : slot.params.bad_words) {
    for (const TokenId token : word) check(token);
    longest = std::max(longest, word.size());
  }
  slot.history.Reset(static_cast<int32_t>(longest) - 1);
  for (size_t i = 0; i < history.size(); ++i) {
    slot.history.Append(history[i], static_cast<int32_t>(i) >= sequence.num_prompt_tokens);
  }
}

void Sampler::Run(ThreadPool& pool, std::span<const LogitsRow> rows,
                  std::span<RowOutcome> outcomes) {
  CHECK(rows.size() == outcomes.size() &&
        static_cast<size_t>(pool.num_threads()) <= scratch_.size());
  if (rows.size() == 1) return RunRow(rows[0], scratch_[0], outcomes[0]);
  pool.Run([&](int thread) {
    const int64_t num_rows = static_cast<int64_t>(rows.size());
    for (int64_t i = pool.NextTask(); i < num_rows; i = pool.NextTask()) {
      RunRow(rows[static_cast<size_t>(i)], scratch_[static_cast<size_t>(thread)],
             outcomes[static_cast<size_t>(i)]);
    }
  });
}

void Sampler::RunRow(const LogitsRow& row, Scratch& scratch, RowOutcome& outcome) {
  Slot& slot = slots_[static_cast<size_t>(row.slot)];
  const bool draws = row.given == kInvalidToken;
  TokenDraw& draw = scratch.draw;
  outcome.finite = draw.SetRow(row.logits).all_finite;
  if (!outcome.finite) return;
  const int32_t num_logprobs = draws ? slot.params.num_logprobs : slot.params.num_prompt_logprobs;
  const double log_sum = num_logprobs >= 0 ? draw.LogSumExp() : 0.0;
  const auto logprob = [&](size_t id) { return static_cast<float>(row.logits[id] - log_sum); };
  outcome.logprobs.top_ids.clear();
  outcome.logprobs.top_logprobs.clear();
  if (num_logprobs > 0) {
    for (const int32_t id : draw.Best(num_logprobs)) {
      outcome.logprobs.top_ids.push_back(TokenId{id});
      outcome.logprobs.top_logprobs.push_back(logprob(static_cast<size_t>(id)));
    }
  }
  outcome.token = draws ? Choose(row, slot, scratch) : row.given;
  if (num_logprobs < 0) return;
  outcome.logprobs.token = outcome.token;
  outcome.logprobs.logprob = logprob(static_cast<size_t>(ToInt(outcome.token)));
}

TokenId Sampler::Choose(const LogitsRow& row, Slot& slot, Scratch& scratch) {
  const SamplingParams& params = slot.params;
  bool greedy = params.temperature <= 0.0f;
  if (NeedsTransform(params, row.position)) {
    std::copy(row.logits.begin(), row.logits.end(), scratch.logits.begin());
    Transform(slot, row.position, scratch);
    if (scratch.draw.SetRow(scratch.logits).max == kMasked) {
      // Everything is masked: the best of what is allowed, as if there were no words to avoid.
      for (size_t i = scratch.masked.size(); i-- > 0;) {
        scratch.logits[static_cast<size_t>(ToInt(scratch.masked[i].first))] =
            scratch.masked[i].second;
      }
      scratch.draw.SetRow(scratch.logits);
      greedy = true;
    }
  }
  const TokenId token =
      greedy
          ? TokenId{scratch.draw.summary().arg_max}
          : scratch.draw.Draw(params, UniformAt(params.seed, params.sequence_index, row.position));
  if (params.NeedsHistory()) slot.history.Append(token, true);
  return token;
}

// On scratch.logits. Masks come last, so that nothing revives a masked token.
void Sampler::Transform(const Slot& slot, int32_t position, Scratch& scratch) {
  const SamplingParams& params = slot.params;
  const std::span<float> logits(scratch.logits);
  scratch.masked.clear();
  AddBias(params, logits);
  Penalize(params, slot.history, logits);
  if (!params.allowed_token_ids.empty()) {
    scratch.allowed.clear();
    for (const TokenId token : params.allowed_token_ids) {
      scratch.allowed.emplace_back(token, logits[static_cast<size_t>(ToInt(token))]);
    }
    std::fill(logits.begin(), logits.end(), kMasked);
    for (const auto& [token, logit] : scratch.allowed)
      logits[static_cast<size_t>(ToInt(token))] = logit;
  }
  for (const std::vector<TokenId>& word : params.bad_words) {
    if (word.empty()) continue;
    const std::span<const TokenId> before(word.data(), word.size() - 1);
    if (slot.history.EndsWith(before)) Mask(word.back(), logits, scratch.masked);
  }
  if (HasMinTokens(params, position)) {
    for (const TokenId token : params.stop_token_ids) Mask(token, logits, scratch.masked);
  }
}

}  // namespace longspan
