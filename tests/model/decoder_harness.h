// Runs a decoder by hand for tests: one pool of poisoned, shuffled blocks, batches of sequences in
// any chunks, and the logits of every token.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "core/check.h"
#include "kernels/cpu/thread_pool.h"
#include "kvcache/kv_pool.h"
#include "model/cpu_attention_backend.h"
#include "model/decoder.h"
#include "model/decoder_runner.h"
#include "model/step_inputs.h"

namespace longspan::testing {

struct HarnessOptions {
  int threads = 2;
  MatmulPrecision precision = MatmulPrecision::kFloat32;
  DType kv_dtype = DType::kFloat32;
  int32_t block_size = 4;
  int num_splits = 0;
  int32_t max_num_seqs = 33;
  int32_t max_tokens = 1024;
};

class DecoderHarness {
 public:
  DecoderHarness(WeightSource& source, const HarnessOptions& options)
      : options_(options), config_(source.config()), threads_(options.threads) {
    const int32_t blocks_per_seq =
        (config_.context_length + options.block_size - 1) / options.block_size;
    num_blocks_ = blocks_per_seq * options.max_num_seqs;
    pool_ =
        *KvPool::Create(KvPoolShapeOf(config_, options.kv_dtype, options.block_size, num_blocks_));
    attention_ = *CpuAttentionBackend::Create(config_,
                                              {.max_num_seqs = options.max_num_seqs,
                                               .max_num_batched_tokens = options.max_tokens,
                                               .max_model_len = config_.context_length,
                                               .num_splits = options.num_splits,
                                               .precision = AttentionPrecision()},
                                              *pool_, threads_);
    decoder_ = *Decoder::Create(
        config_, *LoadWeights(source, options.precision, false),
        {.max_num_batched_tokens = options.max_tokens, .max_logits_rows = options.max_tokens},
        threads_);
    inputs_ = std::make_unique<StepInputs>(StepLimits{.max_num_seqs = options.max_num_seqs,
                                                      .max_num_batched_tokens = options.max_tokens,
                                                      .max_model_len = config_.context_length,
                                                      .block_size = options.block_size,
                                                      .num_blocks = num_blocks_,
                                                      .vocab_size = config_.vocab_size});
    for (int32_t block = 0; block < num_blocks_; ++block) {
      pool_->Poison(BlockId{block});
      free_.push_back(BlockId{block});
    }
    std::shuffle(free_.begin(), free_.end(), std::mt19937(7));
    tokens_computed_.resize(static_cast<size_t>(options.max_num_seqs), 0);
    blocks_held_.resize(tokens_computed_.size(), 0);
  }

  // One step: the next tokens of some slots. Returns the logits after every token, by slot as
  // given.
  std::vector<std::vector<std::vector<float>>> Step(
      const std::vector<std::pair<int32_t, std::vector<TokenId>>>& work) {
    SchedulerOutput output;
    for (const auto& [slot, tokens] : work) {
      const size_t at = static_cast<size_t>(slot);
      ScheduledSequence s{.id = SeqId{slot + 1}, .slot = slot};
      s.num_computed_tokens = tokens_computed_[at];
      s.num_scheduled_tokens = s.num_token_ids = s.num_logits = static_cast<int32_t>(tokens.size());
      tokens_computed_[at] += s.num_scheduled_tokens;
      for (; blocks_held_[at] * options_.block_size < tokens_computed_[at]; ++blocks_held_[at]) {
        CHECK(!free_.empty());
        output.new_blocks.push_back(free_.back());
        free_.pop_back();
        ++s.num_new_blocks;
      }
      output.token_ids.insert(output.token_ids.end(), tokens.begin(), tokens.end());
      output.scheduled.push_back(s);
    }
    inputs_->Fill(output);
    const auto hidden = decoder_->Forward(inputs_->token_ids(), inputs_->positions(),
                                          inputs_->attention_batch(), *attention_);
    const size_t num_rows = hidden.size() / static_cast<size_t>(config_.hidden_size);
    const size_t vocab = static_cast<size_t>(config_.vocab_size);
    std::vector<float> logits(num_rows * vocab);
    decoder_->Logits(hidden.data(), static_cast<int64_t>(num_rows), logits.data());
    std::vector<std::vector<std::vector<float>>> result;
    for (const auto& [slot, tokens] : work) {
      auto row = logits.begin() + static_cast<ptrdiff_t>(
                                      static_cast<size_t>(inputs_->first_logits_row(slot)) * vocab);
      auto& rows = result.emplace_back();
      for (size_t i = 0; i < tokens.size(); ++i, row += config_.vocab_size) {
        rows.emplace_back(row, row + config_.vocab_size);
      }
    }
    return result;
  }

  // A whole prompt in chunks, in one slot, alone.
  std::vector<std::vector<float>> Prompt(int32_t slot, const std::vector<TokenId>& tokens,
                                         int32_t chunk) {
    std::vector<std::vector<float>> rows;
    for (size_t first = 0; first < tokens.size(); first += static_cast<size_t>(chunk)) {
      const size_t end = std::min(tokens.size(), first + static_cast<size_t>(chunk));
      const auto part = Step({{slot,
                               {tokens.begin() + static_cast<ptrdiff_t>(first),
                                tokens.begin() + static_cast<ptrdiff_t>(end)}}});
      rows.insert(rows.end(), part[0].begin(), part[0].end());
    }
    return rows;
  }

 private:
  CpuAttentionPrecision AttentionPrecision() const {
    return options_.precision == MatmulPrecision::kBFloat16 ? CpuAttentionPrecision::kBFloat16
                                                            : CpuAttentionPrecision::kFloat32;
  }

  const HarnessOptions options_;
  const ModelConfig config_;
  ThreadPool threads_;
  int32_t num_blocks_ = 0;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<CpuAttentionBackend> attention_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<StepInputs> inputs_;
  std::vector<BlockId> free_;
  std::vector<int32_t> tokens_computed_, blocks_held_;  // per slot
};

}  // namespace longspan::testing
