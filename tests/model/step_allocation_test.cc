// A warm runner allocates nothing in a step. A binary of its own: it counts every allocation of the
// process.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "model/decoder_runner.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_models.h"

namespace {

std::atomic<int64_t> num_allocations{0};

void* Allocate(std::size_t size, std::size_t alignment) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  // aligned_alloc wants a multiple of the alignment.
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded)) {
    return memory;
  }
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) { return Allocate(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace longspan::testing {
namespace {

constexpr int32_t kNumSeqs = 6;

// The next step of sequences that each keep a quarter of the pool.
void FillStep(SchedulerOutput& output, int32_t computed, int32_t count) {
  output.Clear();
  for (int32_t slot = 0; slot < kNumSeqs; ++slot) {
    ScheduledSequence s;
    s.id = SeqId{slot + 1};
    s.slot = slot;
    s.num_computed_tokens = computed;
    s.num_scheduled_tokens = count;
    s.num_token_ids = computed == 0 ? count : 0;
    s.num_logits = 1;
    s.samples = true;
    for (int32_t b = (computed + 3) / 4; b * 4 < computed + count; ++b) {
      output.new_blocks.push_back(BlockId{slot * 32 + b});
      ++s.num_new_blocks;
    }
    for (int32_t i = 0; i < s.num_token_ids; ++i) output.token_ids.push_back(TokenId{i + slot});
    output.scheduled.push_back(s);
  }
}

TEST(DecoderRunner, AWarmStepAllocatesNothing) {
  TemporaryFolder folder;
  WriteTinyModel(folder, "toy_t");
  const auto source = *OpenModel(folder.path());
  const auto pool =
      *KvPool::Create(KvPoolShapeOf(source->config(), DType::kFloat16, 4, kNumSeqs * 32));
  const auto runner = *MakeCpuRunner(
      *source,
      {.threads = 2, .max_num_seqs = kNumSeqs, .max_num_batched_tokens = 256, .max_model_len = 128},
      *pool);
  SchedulerOutput output;
  StepResult result;
  FillStep(output, 0, 20);
  for (int32_t slot = 0; slot < kNumSeqs; ++slot) {
    AdmittedSequence sequence;
    sequence.id = SeqId{slot + 1};
    sequence.slot = slot;
    sequence.num_prompt_tokens = 20;
    // Every kind of draw that needs no memory of earlier tokens.
    sequence.sampling.temperature = slot == 0 ? 0.0f : 0.9f;
    sequence.sampling.top_k = slot == 1 ? 10 : 0;
    sequence.sampling.top_p = slot == 2 ? 0.9f : 1.0f;
    sequence.sampling.min_p = slot == 3 ? 0.1f : 0.0f;
    if (slot == 4) sequence.sampling.logit_bias = {{TokenId{7}, 2.0f}};
    sequence.sampling.num_logprobs = slot == 5 ? 0 : -1;
    output.admitted.push_back(sequence);
  }
  runner->Launch(output);
  ASSERT_TRUE(runner->Collect(result).ok());
  int64_t before = 0;
  for (int32_t step = 0; step < 40; ++step) {
    FillStep(output, 20 + step, 1);
    if (step == 8)
      before = num_allocations.load();  // both results and the output have grown by now
    runner->Launch(output);
    ASSERT_TRUE(runner->Collect(result).ok());
    ASSERT_EQ(result.token_ids.size(), static_cast<size_t>(kNumSeqs));
  }
  EXPECT_EQ(num_allocations.load(), before);
}

}  // namespace
}  // namespace longspan::testing
