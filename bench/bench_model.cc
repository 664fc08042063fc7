// How fast the whole model runs in one process, without server or scheduler: prefill, decode after
// contexts of several lengths, decode of several streams, each with the time of its parts. JSON on
// standard output.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/clock.h"
#include "kernels/cpu/read_bandwidth.h"
#include "kernels/cpu/thread_pool.h"
#include "model/decoder.h"
#include "model/decoder_runner.h"
#include "model/weight_source.h"

namespace longspan {
namespace {

struct Arguments {
  std::string model;
  int threads = 2;
  std::string precision = "auto";
  int32_t chunk = 512;
  int32_t block_size = 16;
  int repeats = 5;
  int steps = 48;
  std::vector<int32_t> prefill = {512, 4096};
  std::vector<int32_t> context = {16, 2048, 7900};
  std::vector<int32_t> streams = {8, 32};
};

std::vector<int32_t> ParseList(const std::string& text) {
  std::vector<int32_t> values;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    values.push_back(std::atoi(text.substr(at, end - at).c_str()));
    at = end + 1;
  }
  return values;
}

bool ParseArguments(int argc, char** argv, Arguments& out) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--model") {
      out.model = value;
    } else if (name == "--threads") {
      out.threads = std::atoi(value.c_str());
    } else if (name == "--precision") {
      out.precision = value;
    } else if (name == "--chunk") {
      out.chunk = std::atoi(value.c_str());
    } else if (name == "--block-size") {
      out.block_size = std::atoi(value.c_str());
    } else if (name == "--repeats") {
      out.repeats = std::atoi(value.c_str());
    } else if (name == "--steps") {
      out.steps = std::atoi(value.c_str());
    } else if (name == "--prefill") {
      out.prefill = ParseList(value);
    } else if (name == "--context") {
      out.context = ParseList(value);
    } else if (name == "--streams") {
      out.streams = ParseList(value);
    } else {
      return false;
    }
  }
  return argc % 2 == 1 && !out.model.empty();
}

// Sequences of made-up tokens, each in its own slot and blocks.
class Bench {
 public:
  Bench(WeightSource& source, const Arguments& arguments, KvPool& pool, DecoderRunner& runner)
      : arguments_(arguments),
        vocab_size_(source.config().vocab_size),
        pool_(pool),
        runner_(runner) {}

  // Seconds of a whole prompt, in chunks, into a slot.
  double Prefill(int32_t slot, int32_t num_tokens) {
    const TimePoint start = clock_.Now();
    for (int32_t first = 0; first < num_tokens; first += arguments_.chunk) {
      SchedulerOutput output;
      if (first == 0) Admit(output, slot);
      const int32_t count = std::min(arguments_.chunk, num_tokens - first);
      Schedule(output, slot, first, count, first + count == num_tokens);
      Run(output);
    }
    return Seconds(clock_.Now() - start);
  }

  // Seconds of one step that decodes one token of each of the slots [0, num_slots).
  double Decode(int32_t num_slots, int32_t computed) {
    SchedulerOutput output;
    for (int32_t slot = 0; slot < num_slots; ++slot) Schedule(output, slot, computed, 1, true);
    const TimePoint start = clock_.Now();
    Run(output);
    return Seconds(clock_.Now() - start);
  }

 private:
  void Admit(SchedulerOutput& output, int32_t slot) {
    output.released_slots.push_back(slot);
    AdmittedSequence sequence;
    sequence.id = SeqId{slot + 1};
    sequence.slot = slot;
    sequence.sampling.temperature = 0.0f;
    output.admitted.push_back(sequence);
  }

  void Schedule(SchedulerOutput& output, int32_t slot, int32_t computed, int32_t count,
                bool samples) {
    ScheduledSequence s{.id = SeqId{slot + 1}, .slot = slot};
    s.num_computed_tokens = computed;
    s.num_scheduled_tokens = s.num_token_ids = count;
    s.num_logits = samples ? 1 : 0;
    s.samples = samples;
    const int32_t size = pool_.shape().block_size;
    const int32_t per_slot = pool_.shape().num_blocks / kMaxSlots;
    for (int32_t b = (computed + size - 1) / size; b * size < computed + count; ++b) {
      // A sequence that may be long has the pool to itself.
      output.new_blocks.push_back(BlockId{slot * per_slot + b});
      ++s.num_new_blocks;
    }
    for (int32_t i = 0; i < count; ++i) {
      next_token_ = next_token_ * 1664525u + 1013904223u;
      output.token_ids.push_back(
          TokenId{static_cast<int32_t>((next_token_ >> 8) % static_cast<uint32_t>(vocab_size_))});
    }
    output.scheduled.push_back(s);
  }

  void Run(const SchedulerOutput& output) {
    runner_.Launch(output);
    if (const Status status = runner_.Collect(result_); !status.ok()) {
      std::fprintf(stderr, "%s\n", StatusMessage(status).c_str());
      std::exit(1);
    }
  }

 public:
  static constexpr int32_t kMaxSlots = 32;

 private:
  const Arguments& arguments_;
  const int32_t vocab_size_;
  KvPool& pool_;
  DecoderRunner& runner_;
  const SteadyClock clock_;
  uint32_t next_token_ = 1;
  StepResult result_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

nlohmann::json Parts(const DecoderTimes& times, double total, int runs) {
  const double known = times.embed + times.qkv + times.rotate + times.attention +
                       times.attention_output + times.gate_up + times.down + times.logits;
  const auto ms = [&](double seconds) { return 1e3 * seconds / runs; };
  return {{"embed", ms(times.embed)},
          {"qkv", ms(times.qkv)},
          {"rotate", ms(times.rotate)},
          {"attention", ms(times.attention)},
          {"attention_output", ms(times.attention_output)},
          {"gate_up", ms(times.gate_up)},
          {"down", ms(times.down)},
          {"logits", ms(times.logits)},
          {"rest", ms(total - known)}};
}

nlohmann::json RunAll(const Arguments& arguments, Bench& bench, DecoderRunner& runner) {
  nlohmann::json records = nlohmann::json::array();
  bench.Prefill(0, 64);
  for (const int32_t length : arguments.prefill) {
    DecoderTimes times;
    runner.set_times(&times);
    std::vector<double> seconds;
    double total = 0;
    for (int i = 0; i < arguments.repeats; ++i) {
      seconds.push_back(bench.Prefill(0, length));
      total += seconds.back();
    }
    records.push_back(
        {{"work", "prefill"},
         {"tokens", length},
         {"tokens_per_second", length / Median(seconds)},
         {"best_tokens_per_second", length / *std::min_element(seconds.begin(), seconds.end())},
         {"parts_ms", Parts(times, total, arguments.repeats)}});
  }
  const auto decode = [&](const char* work, int32_t slots, int32_t context) {
    runner.set_times(nullptr);
    for (int32_t slot = 0; slot < slots; ++slot) bench.Prefill(slot, context);
    DecoderTimes times;
    std::vector<double> seconds;
    double total = 0;
    for (int i = 0; i < arguments.steps; ++i) {
      if (i == 4) runner.set_times(&times);  // the first steps warm caches up
      const double step = bench.Decode(slots, context + i);
      if (i < 4) continue;
      seconds.push_back(step);
      total += step;
    }
    records.push_back(
        {{"work", work},
         {"streams", slots},
         {"context", context},
         {"tokens_per_second", slots / Median(seconds)},
         {"best_tokens_per_second", slots / *std::min_element(seconds.begin(), seconds.end())},
         {"parts_ms", Parts(times, total, static_cast<int>(seconds.size()))}});
  };
  for (const int32_t context : arguments.context) decode("decode", 1, context);
  for (const int32_t streams : arguments.streams) decode("streams", streams, 16);
  runner.set_times(nullptr);
  return records;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  if (!ParseArguments(argc, argv, arguments)) {
    std::fprintf(
        stderr,
        "usage: bench_model --model PATH [--threads N] [--precision auto|bfloat16|float32] "
        "[--chunk N] [--block-size N] [--repeats N] [--steps N] [--prefill N,..] "
        "[--context N,..] [--streams N,..]\n");
    return 2;
  }
  auto source = OpenModel(arguments.model);
  if (!source.ok()) {
    std::fprintf(stderr, "%s\n", StatusMessage(source.status()).c_str());
    return 4;
  }
  const bool bfloat16 =
      arguments.precision == "bfloat16" || (arguments.precision == "auto" && CpuHasBFloat16());
  int32_t longest = 0;
  for (const auto* list : {&arguments.prefill, &arguments.context}) {
    for (const int32_t length : *list) longest = std::max(longest, length + arguments.steps);
  }
  const int32_t per_slot = std::max((longest + arguments.block_size - 1) / arguments.block_size, 1);
  auto pool = KvPool::Create(KvPoolShapeOf((*source)->config(), DType::kFloat16,
                                           arguments.block_size, per_slot * Bench::kMaxSlots));
  if (!pool.ok()) {
    std::fprintf(stderr, "%s\n", StatusMessage(pool.status()).c_str());
    return 3;
  }
  const DecoderOptions options{
      .threads = arguments.threads,
      .matmul_precision = bfloat16 ? MatmulPrecision::kBFloat16 : MatmulPrecision::kFloat32,
      .max_num_seqs = Bench::kMaxSlots,
      .max_num_batched_tokens = std::max(arguments.chunk, Bench::kMaxSlots),
      .max_model_len = longest};
  auto runner = MakeCpuRunner(**source, options, **pool);
  if (!runner.ok()) {
    std::fprintf(stderr, "%s\n", StatusMessage(runner.status()).c_str());
    return 1;
  }
  ThreadPool threads(arguments.threads);
  nlohmann::json report{
      {"threads", arguments.threads},
      {"precision", bfloat16 ? "bfloat16" : "float32"},
      {"chunk", arguments.chunk},
      {"weights_bytes", (*runner)->weights_bytes()},
      {"workspace_bytes", (*runner)->workspace_bytes()},
      {"read_bytes_per_second", MeasureReadBandwidth(threads, int64_t{256} << 20, 5)}};
  Bench bench(**source, arguments, **pool, **runner);
  report["records"] = RunAll(arguments, bench, **runner);
  std::printf("%s\n", report.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) { return longspan::Main(argc, argv); }
