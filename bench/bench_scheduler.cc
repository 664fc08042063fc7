// What a step costs besides the model: Schedule, Update and TakeEvents, with the bookkeeping of
// blocks and prefixes in them. Decodes at several context lengths show that it does not grow with
// the context; the bar is 200 us a step at 256 sequences.
#include <benchmark/benchmark.h>

#include <numeric>

#include "core/check.h"
#include "kvcache/kv_cache_manager.h"
#include "scheduler/scheduler.h"

namespace longspan {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr int kIterations = 3000;

struct Setup {
  Setup(int32_t num_seqs, int32_t context, int32_t room) : kv(KvConfig(num_seqs, context, room)) {
    SchedulerConfig config;
    config.max_num_seqs = num_seqs;
    config.max_num_batched_tokens = 1 << 30;
    config.max_prefill_chunk = 1 << 20;
    config.max_model_len = 1 << 20;
    scheduler.emplace(config, kv);
  }

  static KvCacheConfig KvConfig(int32_t num_seqs, int32_t context, int32_t room) {
    KvCacheConfig config;
    config.block_size = kBlockSize;
    config.num_blocks = num_seqs * ((context + room) / kBlockSize + 2);
    return config;
  }

  SequenceParams Request(int32_t id, int32_t length, int32_t max_tokens) const {
    SequenceParams params;
    params.prompt.resize(static_cast<size_t>(length));
    for (int32_t i = 0; i < length; ++i) params.prompt[static_cast<size_t>(i)] = TokenId{id + i};
    params.max_tokens = max_tokens;
    return params;
  }

  void Step() {
    scheduler->Schedule(TimePoint{}, output);
    result.Clear();
    result.step = output.step;
    for (const ScheduledSequence& entry : output.scheduled) {
      result.num_tokens.push_back(entry.samples);
      if (entry.samples) result.token_ids.push_back(TokenId{7});
    }
    scheduler->Update(output, result, TimePoint{});
    events.clear();
    scheduler->TakeEvents(events);
  }

  KvCacheManager kv;
  std::optional<Scheduler> scheduler;
  SchedulerOutput output;
  StepResult result;
  std::vector<SequenceEvent> events;
};

// Args: sequences, context.
void BM_DecodeStep(benchmark::State& state) {
  const auto num_seqs = static_cast<int32_t>(state.range(0));
  const auto context = static_cast<int32_t>(state.range(1));
  Setup setup(num_seqs, context, kIterations + 64);
  for (int32_t i = 0; i < num_seqs; ++i) {
    const SeqId id{i + 1};
    setup.scheduler->Add({&id, 1}, setup.Request(1000003 * i, context, kIterations + 32),
                         TimePoint{});
  }
  // Warm up until all decode, and past the first block borders.
  while (setup.scheduler->stats().num_running < num_seqs) setup.Step();
  for (int i = 0; i < 20; ++i) setup.Step();
  for (auto _ : state) setup.Step();
  CHECK(static_cast<int32_t>(setup.output.scheduled.size()) == num_seqs, "{} scheduled",
        setup.output.scheduled.size());
}
BENCHMARK(BM_DecodeStep)
    ->ArgsProduct({{1, 32, 256}, {1000, 10000, 100000}})
    ->Iterations(kIterations)
    ->Unit(benchmark::kMicrosecond);

// All slots taken and a long line behind them: the line costs nothing. Args: waiting, priorities.
void BM_DecodeStepWithQueue(benchmark::State& state) {
  constexpr int32_t kNumSeqs = 256;
  Setup setup(kNumSeqs, 1000, kIterations + 64);
  const auto add = [&](int32_t i, int32_t priority) {
    const SeqId id{i + 1};
    SequenceParams params = setup.Request(1003 * i, 1000, kIterations + 32);
    params.priority = priority;
    setup.scheduler->Add({&id, 1}, std::move(params), TimePoint{});
  };
  for (int32_t i = 0; i < kNumSeqs; ++i) add(i, 0);
  setup.Step();
  for (int32_t i = 0; i < state.range(0); ++i) {
    add(kNumSeqs + i, -i % static_cast<int32_t>(state.range(1)));
  }
  for (int i = 0; i < 20; ++i) setup.Step();
  for (auto _ : state) setup.Step();
}
BENCHMARK(BM_DecodeStepWithQueue)
    ->Args({1024, 1})
    ->Args({1024, 1024})
    ->ArgNames({"waiting", "priorities"})
    ->Iterations(kIterations)
    ->Unit(benchmark::kMicrosecond);

// The one step that is allowed to cost what a prompt is long: its admission. Args: context, cached.
void BM_Admission(benchmark::State& state) {
  const auto context = static_cast<int32_t>(state.range(0));
  const bool cached = state.range(1) != 0;
  Setup setup(1, context, 64);
  int64_t next = 1;
  for (auto _ : state) {
    state.PauseTiming();
    const SeqId id{next++};
    if (!cached) setup.kv.ResetPrefixCache();
    setup.scheduler->Add({&id, 1}, setup.Request(1, context, 1), TimePoint{});
    state.ResumeTiming();
    setup.scheduler->Schedule(TimePoint{}, setup.output);
    state.PauseTiming();
    setup.result.Clear();
    setup.result.step = setup.output.step;
    setup.result.num_tokens = {1};
    setup.result.token_ids = {TokenId{7}};
    setup.scheduler->Update(setup.output, setup.result, TimePoint{});
    setup.events.clear();
    setup.scheduler->TakeEvents(setup.events);
    state.ResumeTiming();
  }
}
BENCHMARK(BM_Admission)
    ->ArgsProduct({{1000, 100000}, {0, 1}})
    ->ArgNames({"context", "cached"})
    ->Iterations(50)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace longspan

BENCHMARK_MAIN();
