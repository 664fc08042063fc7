// The ModelRunner of the CPU backend: takes steps as values, keeps the block-table rows and the
// last samples of its slots, runs the decoder and samples. All work of a step happens inside
// Launch.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "core/status.h"
#include "kernels/matmul.h"
#include "kvcache/kv_pool.h"
#include "model/model_config.h"
#include "model/model_runner.h"
#include "model/weight_source.h"

namespace longspan {

struct DecoderOptions {
  int threads = 1;
  MatmulPrecision matmul_precision = MatmulPrecision::kFloat32;
  int32_t max_num_seqs = 1;            // slots
  int32_t max_num_batched_tokens = 1;  // of one step
  int32_t max_model_len = 1;           // tokens of one sequence
  int num_splits = 0;          // of decode attention; 0: chosen from the load; never changes bits
  bool check_weights = false;  // refuse weights that are not finite (else: a warning)
  const std::atomic<bool>* cancelled =
      nullptr;  // set: stop reading weights; borrowed while loading
};

// The pool that a model needs.
KvPoolShape KvPoolShapeOf(const ModelConfig& config, DType kv_dtype, int32_t block_size,
                          int32_t num_blocks);

struct DecoderTimes;

// Adds figures about memory and time to the seam.
class DecoderRunner : public ModelRunner {
 public:
  // Steps add what their parts took; null stops it. times outlives the runner or the next call.
  virtual void set_times(DecoderTimes* times) = 0;
  virtual int64_t weights_bytes() const = 0;
  virtual int64_t workspace_bytes() const = 0;
};

// Reads and packs the weights tensor by tensor. pool has the shape KvPoolShapeOf gives and outlives
// the runner; source is not needed afterwards. Errors: unsupported shapes or options, weights that
// are not finite, files that cannot be read; CANCELLED.
StatusOr<std::unique_ptr<DecoderRunner>> MakeCpuRunner(WeightSource& source,
                                                       const DecoderOptions& options, KvPool& pool);

}  // namespace longspan
