// Start-up in its one order: open and check files, the tokenizer's callback, resolve options,
// reserve the pool, load weights, compare everything with the memory limit, run one warm-up step.
// Each failure says which exit code it is worth. Nothing here runs again once the engine exists.
#include "engine/serving_core.h"

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

#include "core/checked_math.h"
#include "core/log.h"
#include "core/machine.h"
#include "engine/fault_runner.h"
#include "model/cpu_capabilities.h"
#include "model/decoder_runner.h"
#include "model/weight_source.h"

namespace longspan {
namespace {

constexpr double kPoolShareOfMemory = 0.4;
constexpr double kPoolShareOfRest = 0.8;  // of what the weights leave

// bfloat16 products take keys and values as they are; float ones get the more accurate 16 bits.
StatusOr<DType> KvDType(const std::string& name, MatmulPrecision precision) {
  if (name == "auto") {
    return precision == MatmulPrecision::kBFloat16 ? DType::kBFloat16 : DType::kFloat16;
  }
  if (name == "float16") return DType::kFloat16;
  if (name == "bfloat16") return DType::kBFloat16;
  if (name == "float32") return DType::kFloat32;
  return InvalidArgument("--kv-cache-dtype: \"{}\" is not supported on the CPU", name);
}

StatusOr<int32_t> ResolveMaxModelLen(const ModelConfig& config, int32_t requested) {
  if (requested == 0) return config.context_length;
  if (requested > config.context_length) {
    return InvalidArgument("--max-model-len: {} is beyond the model's context (limit {})",
                           requested, config.context_length);
  }
  return requested;
}

// Weights keep the type they have in the file; asking for another one is refused, not ignored.
Status CheckWeightDType(const ModelConfig& config, const std::string& requested) {
  if (requested == "auto" || requested == DTypeName(config.weight_dtype)) return Status();
  return InvalidArgument(
      "--dtype: {} was asked for, the weights are {} and stay so on the CPU (use auto)", requested,
      config.weight_format.empty() ? std::string(DTypeName(config.weight_dtype))
                                   : config.weight_format);
}

uint64_t RandomSeed() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

// The size of all weights in their files; in memory they take about as much.
int64_t WeightsBytes(const WeightSource& source) {
  int64_t bytes = 0;
  for (int role = 0; role <= static_cast<int>(WeightRole::kDown); ++role) {
    for (int32_t layer = -1; layer < source.config().num_layers; ++layer) {
      const WeightTensor* tensor = source.Find(static_cast<WeightRole>(role), layer);
      if (tensor != nullptr) bytes += tensor->size_bytes;
    }
  }
  return bytes;
}

// Blocks by number, by bytes, or chosen.
StatusOr<KvPoolShape> ChoosePool(const ServingCoreOptions& options, const WeightSource& source,
                                 DType kv_dtype, int32_t max_model_len, int64_t memory_limit) {
  KvPoolShape shape = KvPoolShapeOf(source.config(), kv_dtype, options.block_size, 1);
  if (options.num_blocks > 0) {
    shape.num_blocks = options.num_blocks;
  } else if (options.kv_cache_memory_bytes > 0) {
    const int64_t blocks = options.kv_cache_memory_bytes / shape.BytesPerBlock();
    if (blocks < 1) {
      return InvalidArgument("--kv-cache-memory-bytes: {} bytes hold no block of {} bytes",
                             options.kv_cache_memory_bytes, shape.BytesPerBlock());
    }
    shape.num_blocks =
        static_cast<int32_t>(std::min<int64_t>(blocks, std::numeric_limits<int32_t>::max()));
  } else {
    shape.num_blocks = ChooseNumBlocks(shape.BytesPerBlock(), shape.block_size,
                                       options.engine.scheduler.max_num_seqs, max_model_len,
                                       memory_limit, WeightsBytes(source));
  }
  return shape;
}

constexpr BlockId kWarmUpBlock{0};

// One token through all layers, so that the first request meets warm code and allocated buffers.
// Block 0 is written and belongs to nobody afterwards.
Status WarmUp(ModelRunner& runner) {
  SchedulerOutput step;
  StepResult result;
  AdmittedSequence admitted;
  admitted.id = SeqId{0};
  admitted.num_prompt_tokens = 1;
  admitted.sampling.temperature = 0.0f;
  step.admitted.push_back(admitted);
  ScheduledSequence scheduled;
  scheduled.num_scheduled_tokens = 1;
  scheduled.num_token_ids = 1;
  scheduled.num_logits = 1;
  scheduled.samples = true;
  scheduled.num_new_blocks = 1;
  step.scheduled.push_back(scheduled);
  step.token_ids.push_back(TokenId{0});
  step.new_blocks.push_back(kWarmUpBlock);
  runner.Launch(step);
  RETURN_IF_ERROR(runner.Collect(result));
  step.Clear();
  step.released_slots.push_back(0);
  runner.Launch(step);
  return runner.Collect(result);
}

}  // namespace

int32_t ChooseNumBlocks(int64_t bytes_per_block, int32_t block_size, int32_t max_num_seqs,
                        int32_t max_model_len, int64_t memory_limit_bytes, int64_t weights_bytes) {
  const int64_t wanted = CeilDiv<int64_t>(max_model_len, block_size) * max_num_seqs;
  const auto limit = static_cast<double>(memory_limit_bytes);
  const double share = std::min(limit * kPoolShareOfMemory,
                                (limit - static_cast<double>(weights_bytes)) * kPoolShareOfRest);
  const auto affordable = static_cast<int64_t>(share) / bytes_per_block;
  const int64_t blocks =
      std::clamp<int64_t>(std::min(wanted, affordable), 1, std::numeric_limits<int32_t>::max());
  return static_cast<int32_t>(blocks);
}

Status CheckMemory(int64_t weights_bytes, int64_t workspace_bytes, const KvPoolShape& pool,
                   int64_t memory_limit_bytes) {
  const int64_t pool_bytes = pool.BytesPerBlock() * pool.num_blocks;
  const int64_t left = memory_limit_bytes - weights_bytes - workspace_bytes;
  if (pool_bytes <= left) return Status();
  const std::string need = fmt::format(
      "memory: weights {}, workspace {} and KV cache {} bytes are more than the limit {}",
      weights_bytes, workspace_bytes, pool_bytes, memory_limit_bytes);
  const int64_t blocks = std::max<int64_t>(left, 0) / pool.BytesPerBlock();
  if (blocks < 1) {
    return MakeStatus(absl::StatusCode::kResourceExhausted,
                      "{} (no --kv-blocks fits; a smaller model or --max-num-batched-tokens, or "
                      "more memory)",
                      need);
  }
  return MakeStatus(absl::StatusCode::kResourceExhausted, "{} (at most --kv-blocks {} fits)", need,
                    blocks);
}

ServingCore::~ServingCore() = default;

StatusOr<std::unique_ptr<ServingCore>> ServingCore::Load(const ServingCoreOptions& options,
                                                         const Clock& clock, Outbox& outbox,
                                                         EngineObserver& observer,
                                                         Failure& failure) {
  failure = Failure::kFiles;
  ASSIGN_OR_RETURN(
      const std::unique_ptr<WeightSource> source,
      options.dummy_weights ? OpenDummyModel(options.model_path) : OpenModel(options.model_path));
  std::unique_ptr<ServingCore> core(new ServingCore);
  core->config_ = source->config();
  if (options.on_vocabulary) {
    RETURN_IF_ERROR(options.on_vocabulary(core->config_, source->vocabulary()));
  }

  failure = Failure::kOptions;
  RETURN_IF_ERROR(CheckWeightDType(core->config_, options.weight_dtype));
  ASSIGN_OR_RETURN(core->max_model_len_, ResolveMaxModelLen(core->config_, options.max_model_len));
  ASSIGN_OR_RETURN(const MatmulPrecision precision,
                   ResolveMatmulPrecision(options.matmul_precision, CpuHasBFloat16()));
  ASSIGN_OR_RETURN(const DType kv_dtype, KvDType(options.kv_cache_dtype, precision));
  core->matmul_precision_ = precision == MatmulPrecision::kBFloat16 ? "bfloat16" : "float32";
  core->threads_ = options.threads > 0 ? options.threads : AvailableCores();

  core->read_bandwidth_ = MeasureReadBandwidth(core->threads_);

  const int64_t memory_limit =
      options.memory_limit_bytes > 0 ? options.memory_limit_bytes : MemoryLimitBytes();
  ASSIGN_OR_RETURN(const KvPoolShape shape,
                   ChoosePool(options, *source, kv_dtype, core->max_model_len_, memory_limit));
  failure = Failure::kResources;
  ASSIGN_OR_RETURN(core->pool_, KvPool::Create(shape));
  const int64_t capacity = MaxFittingTokens(shape.num_blocks, shape.block_size);
  if (capacity < core->max_model_len_) {
    spdlog::warn("the KV cache holds {} tokens, less than one sequence of --max-model-len {}",
                 capacity, core->max_model_len_);
  }

  failure = Failure::kFiles;
  DecoderOptions decoder;
  decoder.threads = core->threads_;
  decoder.matmul_precision = precision;
  decoder.max_num_seqs = options.engine.scheduler.max_num_seqs;
  decoder.max_num_batched_tokens = options.engine.scheduler.max_num_batched_tokens;
  decoder.max_model_len = core->max_model_len_;
  decoder.num_splits = options.num_splits;
  decoder.check_weights = options.check_weights;
  decoder.cancelled = options.cancelled;
  StatusOr<std::unique_ptr<DecoderRunner>> made = MakeCpuRunner(*source, decoder, *core->pool_);
  if (absl::IsResourceExhausted(made.status())) failure = Failure::kResources;
  ASSIGN_OR_RETURN(std::unique_ptr<DecoderRunner> runner, std::move(made));
  core->weights_bytes_ = runner->weights_bytes();
  core->workspace_bytes_ = runner->workspace_bytes();
  failure = Failure::kResources;
  RETURN_IF_ERROR(CheckMemory(core->weights_bytes_, core->workspace_bytes_, shape, memory_limit));
  failure = Failure::kFiles;
  RETURN_IF_ERROR(WarmUp(*runner));
  if (options.poison_freed) core->pool_->Poison(kWarmUpBlock);

  KvCacheConfig cache;
  cache.num_blocks = shape.num_blocks;
  cache.block_size = shape.block_size;
  cache.enable_prefix_cache = options.enable_prefix_caching;
  cache.identity = fmt::format("{}|{}", core->config_.name, DTypeName(kv_dtype));
  cache.hash_seed = RandomSeed();
  core->kv_cache_ = std::make_unique<KvCacheManager>(cache);
  if (options.poison_freed) {
    KvPool* pool = core->pool_.get();
    for (int32_t block = 0; block < shape.num_blocks; ++block) pool->Poison(BlockId{block});
    core->kv_cache_->set_freed_listener([pool](BlockId block) { pool->Poison(block); });
  }

  EngineConfig engine = options.engine;
  engine.scheduler.max_model_len = core->max_model_len_;
  failure = Failure::kOptions;
  ASSIGN_OR_RETURN(std::unique_ptr<ModelRunner> faulty,
                   WithFault(std::move(runner), options.fault));  // after the warm-up step
  core->engine_ = std::make_unique<Engine>(engine, clock, *core->kv_cache_, std::move(faulty),
                                           outbox, observer);
  return core;
}

}  // namespace longspan
