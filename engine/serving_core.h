// Puts the parts of one served model together: weights, KV pool, cache bookkeeping, runner, engine.
// What the program calls once at start-up; nothing here runs per step.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/clock.h"
#include "core/dtype.h"
#include "core/status.h"
#include "engine/engine.h"
#include "engine/engine_observer.h"
#include "engine/token_stream.h"
#include "kvcache/kv_cache_manager.h"
#include "kvcache/kv_pool.h"
#include "model/model_config.h"
#include "model/vocabulary_data.h"

namespace longspan {

struct ServingCoreOptions {
  std::string model_path;
  bool dummy_weights = false;
  bool check_weights = false;
  int threads = 0;  // 0: one per core this process may use
  std::string weight_dtype = "auto";
  std::string kv_cache_dtype = "auto";
  std::string matmul_precision = "auto";
  int64_t memory_limit_bytes = 0;     // 0: what the machine and its container allow
  int64_t kv_cache_memory_bytes = 0;  // 0: chosen, see ChooseNumBlocks
  int32_t num_blocks = 0;             // 0: from bytes
  int32_t block_size = 16;
  bool enable_prefix_caching = true;
  int32_t max_model_len = 0;  // 0: the model's context length
  int num_splits = 0;
  bool poison_freed = false;
  std::string fault;    // test-only, see fault_runner.h; refused where not compiled in
  EngineConfig engine;  // its max_model_len is filled in
  // Called once, when the model's files are checked and nothing large is allocated or read yet:
  // what is made of the tokenizer's data. An error ends loading as one of the files. May be empty.
  std::function<Status(const ModelConfig&, const VocabularyData&)> on_vocabulary;
  // Set by another thread: loading ends with CANCELLED before the next tensor. Borrowed; may be
  // null.
  const std::atomic<bool>* cancelled = nullptr;
};

// A loaded model, ready to serve. Immutable but for the engine, whose thread is not started yet.
class ServingCore {
 public:
  // Which step failed decides the exit code of the program.
  enum class Failure : uint8_t { kOptions, kResources, kFiles };

  // Errors are one sentence. `failure` is set when the status is not OK (and not CANCELLED).
  static StatusOr<std::unique_ptr<ServingCore>> Load(const ServingCoreOptions& options,
                                                     const Clock& clock, Outbox& outbox,
                                                     EngineObserver& observer, Failure& failure);
  ~ServingCore();

  Engine& engine() { return *engine_; }
  const ModelConfig& config() const { return config_; }
  int32_t max_model_len() const { return max_model_len_; }
  int32_t num_blocks() const { return pool_->shape().num_blocks; }
  int32_t block_size() const { return pool_->shape().block_size; }
  DType kv_dtype() const { return pool_->shape().dtype; }
  int64_t kv_bytes_per_token() const { return pool_->shape().BytesPerToken(); }
  int64_t kv_pool_bytes() const { return pool_->size_bytes(); }
  double read_bandwidth_bytes_per_second() const {
    return read_bandwidth_;
  }  // measured while loading
  int64_t weights_bytes() const { return weights_bytes_; }
  int64_t workspace_bytes() const { return workspace_bytes_; }
  int threads() const { return threads_; }
  const std::string& matmul_precision() const { return matmul_precision_; }

 private:
  ServingCore() = default;

  ModelConfig config_;
  int32_t max_model_len_ = 0;
  int64_t weights_bytes_ = 0;
  int64_t workspace_bytes_ = 0;
  double read_bandwidth_ = 0.0;
  int threads_ = 1;
  std::string matmul_precision_;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<KvCacheManager> kv_cache_;
  std::unique_ptr<Engine> engine_;  // last: ends before what it borrows
};

// Blocks of the pool when no flag says so: room for max_num_seqs sequences of max_model_len tokens,
// at most 40 % of the memory limit and 80 % of what the weights leave of it, at least one.
int32_t ChooseNumBlocks(int64_t bytes_per_block, int32_t block_size, int32_t max_num_seqs,
                        int32_t max_model_len, int64_t memory_limit_bytes, int64_t weights_bytes);

// Whether all of it fits together, once the weights are loaded. The pool's memory is used only
// bit by bit, so nothing else would tell before the machine kills the process under load.
Status CheckMemory(int64_t weights_bytes, int64_t workspace_bytes, const KvPoolShape& pool,
                   int64_t memory_limit_bytes);

}  // namespace longspan
