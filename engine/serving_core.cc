#include "engine/serving_core.h"

#include <algorithm>
#include <limits>
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

StatusOr<DType> KvDType(const std::string& name) {
  if (name == "auto" || name == "float16") return DType::kFloat16;
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
                        int32_t max_model_len, int64_t memory_limit_bytes) {
  const int64_t wanted = CeilDiv<int64_t>(max_model_len, block_size) * max_num_seqs;
  const auto affordable =
      static_cast<int64_t>(static_cast<double>(memory_limit_bytes) * kPoolShareOfMemory) /
      bytes_per_block;
  const int64_t blocks =
      std::clamp<int64_t>(std::min(wanted, affordable), 1, std::numeric_limits<int32_t>::max());
  return static_cast<int32_t>(blocks);
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
  core->vocabulary_ = source->vocabulary();

  failure = Failure::kOptions;
  RETURN_IF_ERROR(CheckWeightDType(core->config_, options.weight_dtype));
  ASSIGN_OR_RETURN(core->max_model_len_, ResolveMaxModelLen(core->config_, options.max_model_len));
  ASSIGN_OR_RETURN(const DType kv_dtype, KvDType(options.kv_cache_dtype));
  const MatmulPrecision precision = ResolveMatmulPrecision(options.matmul_precision);
  core->matmul_precision_ = precision == MatmulPrecision::kBFloat16 ? "bfloat16" : "float32";
  core->threads_ = options.threads > 0 ? options.threads : AvailableCores();

  core->read_bandwidth_ = MeasureReadBandwidth(core->threads_);

  failure = Failure::kResources;
  KvPoolShape shape = KvPoolShapeOf(core->config_, kv_dtype, options.block_size, 1);
  if (options.num_blocks > 0) {
    shape.num_blocks = options.num_blocks;
  } else if (options.kv_cache_memory_bytes > 0) {
    const int64_t blocks = options.kv_cache_memory_bytes / shape.BytesPerBlock();
    if (blocks < 1) {
      failure = Failure::kOptions;
      return InvalidArgument("--kv-cache-memory-bytes: {} bytes hold no block of {} bytes",
                             options.kv_cache_memory_bytes, shape.BytesPerBlock());
    }
    shape.num_blocks =
        static_cast<int32_t>(std::min<int64_t>(blocks, std::numeric_limits<int32_t>::max()));
  } else {
    shape.num_blocks = ChooseNumBlocks(shape.BytesPerBlock(), shape.block_size,
                                       options.engine.scheduler.max_num_seqs, core->max_model_len_,
                                       MemoryLimitBytes());
  }
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
  ASSIGN_OR_RETURN(std::unique_ptr<DecoderRunner> runner,
                   MakeCpuRunner(*source, decoder, *core->pool_));
  RETURN_IF_ERROR(WarmUp(*runner));
  if (options.poison_freed) core->pool_->Poison(kWarmUpBlock);
  core->weights_bytes_ = runner->weights_bytes();
  core->workspace_bytes_ = runner->workspace_bytes();

  KvCacheConfig cache;
  cache.num_blocks = shape.num_blocks;
  cache.block_size = shape.block_size;
  cache.enable_prefix_cache = options.enable_prefix_caching;
  cache.identity = fmt::format("{}|{}", core->config_.name, DTypeName(kv_dtype));
  core->kv_cache_ = std::make_unique<KvCacheManager>(cache);
  if (options.poison_freed) {
    KvPool* pool = core->pool_.get();
    for (int32_t block = 0; block < shape.num_blocks; ++block) pool->Poison(BlockId{block});
    core->kv_cache_->set_freed_listener([pool](BlockId block) { pool->Poison(block); });
  }

  EngineConfig engine = options.engine;
  engine.scheduler.max_model_len = core->max_model_len_;
  engine.kv_bytes_per_token = shape.BytesPerToken();
  core->engine_ = std::make_unique<Engine>(engine, clock, *core->kv_cache_, std::move(runner),
                                           outbox, observer);
  return core;
}

}  // namespace longspan
