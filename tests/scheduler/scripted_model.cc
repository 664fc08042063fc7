// The checks are CHECKs: a violated one ends the test with the values.
#include "tests/scheduler/scripted_model.h"

#include <algorithm>
#include <functional>

#include "core/check.h"

namespace longspan {

namespace {

uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

uint64_t Start(const SequenceParams& params) {
  return Mix(std::hash<std::string>{}(params.cache_salt));
}

}  // namespace

uint64_t ScriptedModel::Extend(uint64_t prefix, TokenId token) {
  return Mix(prefix ^ Mix(static_cast<uint64_t>(ToInt(token)) + 1));
}

TokenId ScriptedModel::Sample(const SamplingParams& sampling, int32_t index, uint64_t prefix,
                              int32_t vocab_size) {
  uint64_t x = prefix;
  if (sampling.temperature > 0.0f) x = Mix(x ^ Mix(sampling.seed + static_cast<uint64_t>(index)));
  return TokenId{static_cast<int32_t>(x % static_cast<uint64_t>(vocab_size))};
}

std::vector<TokenId> ScriptedModel::Expected(const SequenceParams& params, int32_t index,
                                             int32_t vocab_size, int32_t max_total_tokens) {
  uint64_t prefix = Start(params);
  for (const TokenId token : params.prompt) prefix = Extend(prefix, token);
  const auto room = max_total_tokens - static_cast<int32_t>(params.prompt.size());
  std::vector<TokenId> tokens;
  while (static_cast<int32_t>(tokens.size()) < std::min(params.max_tokens, room)) {
    tokens.push_back(Sample(params.sampling, index, prefix, vocab_size));
    prefix = Extend(prefix, tokens.back());
    const auto is = [&](const std::vector<TokenId>& ids) {
      return std::count(ids.begin(), ids.end(), tokens.back()) > 0;
    };
    if (static_cast<int32_t>(tokens.size()) <= params.sampling.min_tokens) continue;
    if (is(params.stop_token_ids) || (!params.ignore_eos && is(params.eos_token_ids))) break;
  }
  return tokens;
}

void ScriptedModel::Register(SeqId id, const SequenceParams& params, int32_t index) {
  SequenceState& sequence = sequences_[id];
  sequence.params = params;
  sequence.index = index;
  for (const TokenId token : params.prompt) Append(sequence, token);
}

void ScriptedModel::Append(SequenceState& sequence, TokenId token) {
  const uint64_t before = sequence.prefix.empty() ? Start(sequence.params) : sequence.prefix.back();
  sequence.tokens.push_back(token);
  sequence.prefix.push_back(Extend(before, token));
}

void ScriptedModel::Poison(BlockId block) {
  for (int32_t i = 0; i < block_size_; ++i) {
    cells_[static_cast<size_t>(ToInt(block) * block_size_ + i)] = {};
  }
  writers_[static_cast<size_t>(ToInt(block))] = SeqId{};
}

ScriptedModel::KvCell& ScriptedModel::CellOf(const Row& row, int32_t position) {
  const size_t index = static_cast<size_t>(position / block_size_);
  CHECK(index < row.blocks.size(), "sequence {} position {}", ToInt(row.id), position);
  return cells_[static_cast<size_t>(ToInt(row.blocks[index]) * block_size_ +
                                    position % block_size_)];
}

void ScriptedModel::Launch(const SchedulerOutput& output) {
  CHECK(output.step > last_step_ && !output.scheduled.empty());
  last_step_ = output.step;
  for (const int32_t slot : output.released_slots) CHECK(rows_.erase(slot) == 1, "slot {}", slot);
  size_t next_history = 0;
  for (const AdmittedSequence& admitted : output.admitted) {
    CHECK(!rows_.contains(admitted.slot), "slot {}", admitted.slot);
    Row& row = rows_[admitted.slot];
    row.id = admitted.id;
    row.admitted = admitted;
    const SequenceState& sequence = sequences_.at(admitted.id);
    CHECK(admitted.num_prompt_tokens == static_cast<int32_t>(sequence.params.prompt.size()));
    CHECK(admitted.sampling.sequence_index == sequence.index);
    const auto begin = output.history.begin() + static_cast<int64_t>(next_history);
    row.history.assign(begin, begin + admitted.num_history_tokens);
    next_history += static_cast<size_t>(admitted.num_history_tokens);
  }
  CHECK(next_history == output.history.size());
  std::set<BlockId> sources;
  for (const BlockCopy& copy : output.copies) sources.insert(copy.src);
  for (const BlockCopy& copy : output.copies) {
    CHECK(!sources.contains(copy.dst), "block {}", ToInt(copy.dst));
    Copy(copy);
  }
  StepResult result;
  result.step = output.step;
  size_t next_token = 0;
  size_t next_block = 0;
  std::set<SeqId> seen;
  for (const ScheduledSequence& entry : output.scheduled) {
    CHECK(seen.insert(entry.id).second, "sequence {} twice", ToInt(entry.id));
    Run(output, entry, next_token, next_block, result);
  }
  CHECK(next_token == output.token_ids.size() && next_block == output.new_blocks.size());
  results_.push_back(std::move(result));
}

StepResult ScriptedModel::Collect() {
  StepResult result = std::move(results_.front());
  results_.pop_front();
  return result;
}

void ScriptedModel::Copy(const BlockCopy& copy) {
  ++num_copies_;
  CHECK(copy.num_tokens > 0 && copy.num_tokens < block_size_, "{} tokens", copy.num_tokens);
  CHECK(writers_[static_cast<size_t>(ToInt(copy.dst))] == SeqId{}, "block {}", ToInt(copy.dst));
  for (int32_t i = 0; i < copy.num_tokens; ++i) {
    const KvCell& from = cells_[static_cast<size_t>(ToInt(copy.src) * block_size_ + i)];
    CHECK(from.written, "copy of an unwritten token of block {}", ToInt(copy.src));
    cells_[static_cast<size_t>(ToInt(copy.dst) * block_size_ + i)] = from;
  }
}

void ScriptedModel::Run(const SchedulerOutput& output, const ScheduledSequence& entry,
                        size_t& next_token, size_t& next_block, StepResult& result) {
  Row& row = rows_.at(entry.slot);
  CHECK(row.id == entry.id, "slot {}", entry.slot);
  SequenceState& sequence = sequences_.at(entry.id);
  for (int32_t i = 0; i < entry.num_new_blocks; ++i) {
    row.blocks.push_back(output.new_blocks[next_block++]);
  }
  const int32_t begin = entry.num_computed_tokens;
  const int32_t end = begin + entry.num_scheduled_tokens;
  CHECK(entry.num_scheduled_tokens > 0 && end <= static_cast<int32_t>(sequence.tokens.size()));
  num_tokens_computed_ += entry.num_scheduled_tokens;
  std::vector<TokenId> ids;
  if (entry.num_token_ids < entry.num_scheduled_tokens) {
    CHECK(entry.num_token_ids == entry.num_scheduled_tokens - 1);
    ids.push_back(row.last_sample);
  }
  for (int32_t i = 0; i < entry.num_token_ids; ++i) ids.push_back(output.token_ids[next_token++]);
  for (int32_t position = begin; position < end; ++position) {
    const auto at = static_cast<size_t>(position);
    CHECK(ids[at - static_cast<size_t>(begin)] == sequence.tokens[at], "sequence {} position {}",
          ToInt(entry.id), position);
    KvCell& cell = CellOf(row, position);
    SeqId& writer =
        writers_[static_cast<size_t>(ToInt(row.blocks[at / static_cast<size_t>(block_size_)]))];
    CHECK(writer == SeqId{} || writer == entry.id, "block of {} written by {}", ToInt(writer),
          ToInt(entry.id));
    CHECK(!cell.written, "sequence {} position {} written twice", ToInt(entry.id), position);
    writer = entry.id;
    cell = {true, sequence.prefix[at]};
  }
  for (int32_t position = 0; position < end; ++position) {
    const KvCell& cell = CellOf(row, position);
    CHECK(cell.written && cell.prefix == sequence.prefix[static_cast<size_t>(position)],
          "sequence {} reads a wrong value at position {}", ToInt(entry.id), position);
  }
  PromptLogprobs(sequence, row, entry, result);
  result.num_tokens.push_back(0);
  if (!entry.samples) return;
  CHECK(end == static_cast<int32_t>(sequence.tokens.size()) && entry.num_logits >= 1);
  if (row.admitted.sampling.NeedsHistory()) {
    CHECK(row.history == sequence.tokens, "sequence {}: wrong history", ToInt(entry.id));
  }
  if (nonfinite.contains(entry.id)) {
    result.nonfinite.push_back(entry.id);
    row.last_sample = TokenId{0};  // a step that was scheduled already runs on it
    Append(sequence, row.last_sample);
    if (row.admitted.sampling.NeedsHistory()) row.history.push_back(row.last_sample);
    return;
  }
  const TokenId token =
      Sample(row.admitted.sampling, sequence.index, sequence.prefix.back(), vocab_size_);
  Append(sequence, token);
  row.last_sample = token;
  if (row.admitted.sampling.NeedsHistory()) row.history.push_back(token);
  result.num_tokens.back() = 1;
  result.token_ids.push_back(token);
  if (row.admitted.sampling.num_logprobs >= 0) {
    result.logprobs.push_back({token, -static_cast<float>(ToInt(token)), {}, {}});
  }
}

void ScriptedModel::PromptLogprobs(const SequenceState& sequence, Row& row,
                                   const ScheduledSequence& entry, StepResult& result) {
  result.num_prompt_logprobs.push_back(0);
  const int32_t begin = entry.num_computed_tokens;
  const int32_t end = begin + entry.num_scheduled_tokens;
  const bool wanted =
      row.admitted.sampling.num_prompt_logprobs >= 0 && begin < row.admitted.num_prompt_tokens;
  if (!wanted) return;
  CHECK(entry.num_logits == entry.num_scheduled_tokens && end <= row.admitted.num_prompt_tokens,
        "{} logits of {}", entry.num_logits, entry.num_scheduled_tokens);
  for (int32_t position = begin; position < end; ++position) {
    if (row.logits_position == position - 1 && position > 0) {
      // Stands for log p(token at position | tokens before).
      const uint64_t before = sequence.prefix[static_cast<size_t>(position) - 1];
      result.prompt_logprobs.push_back({sequence.tokens[static_cast<size_t>(position)],
                                        static_cast<float>(before % 1000),
                                        {},
                                        {}});
      ++result.num_prompt_logprobs.back();
    }
    row.logits_position = position;
  }
}

}  // namespace longspan
