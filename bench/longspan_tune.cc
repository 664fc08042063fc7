// Measures, once per device, where two attention kernels compete, and leaves the table that the
// drop-in reads when it opens a device (docs/kernels/tuning.md).
//
//   longspan-tune [--dry-run] [--out FILE]     FILE instead of the cache folder's; --dry-run: none
//
// 32 query heads on 8, bfloat16, blocks of 64 in random order. A reading: calls in one graph, going
// round the pool, a replay of 1 ms and more; after 50 ms of them the median of 11.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu_memory_kernels.h"
#include "bench/tune_decision.h"
#include "core/check.h"
#include "kernels/attention/dropin/attn_c.h"
#include "kernels/attention/dropin/attn_tuning.h"
#include "kernels/runtime/buffer.h"
#include "kernels/runtime/device.h"
#include "kernels/runtime/stream.h"

namespace longspan {
namespace {

constexpr int32_t kQueryHeads = 32, kKvHeads = 8, kBlockSize = 64, kMaxHeadDim = 256;
constexpr int64_t kPoolTokens = 1 << 18;  // at head_dim 64 too more than an L2 cache holds
constexpr int64_t kMaxQueries = 32 * 128;
constexpr int kReplays = 11;

struct Work {
  int32_t num_seqs, length, q_len;
};

void Expect(GpuResult result) { CHECK(result.ok(), "device error: {}", result.text().data()); }
void ExpectAttn(int status) { CHECK(status == LONGSPAN_ATTN_OK, "{}", longspan_attn_text(status)); }

DeviceBuffer Allocate(int64_t bytes) {
  auto buffer = DeviceBuffer::Allocate(std::max<int64_t>(bytes, 16));
  CHECK(buffer.has_value(), "no device memory for {} bytes", bytes);
  return std::move(*buffer);
}

// The drop-in on random keys and values, by the clock.
class Clock {
 public:
  Clock()
      : stream_(GpuStream::Create().value()),
        k_(Allocate(kPoolTokens * kKvHeads * kMaxHeadDim * 2)),
        v_(Allocate(k_.size_bytes())),
        q_(Allocate(kMaxQueries * kQueryHeads * kMaxHeadDim * 2)),
        o_(Allocate(q_.size_bytes())),
        table_(Allocate(kPoolTokens / kBlockSize * int64_t{sizeof(int32_t)})) {
    ExpectAttn(longspan_attn_open(&device_));
    FillNormal(k_.data(), k_.size_bytes() / 2, 1, stream_.handle());
    FillNormal(v_.data(), v_.size_bytes() / 2, 2, stream_.handle());
    FillNormal(q_.data(), q_.size_bytes() / 2, 3, stream_.handle());
    std::vector<int32_t> ids(kPoolTokens / kBlockSize);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    Expect(table_.CopyFrom(std::as_bytes(std::span(ids)), stream_.handle()));
    Expect(stream_.Synchronize());
  }
  ~Clock() { longspan_attn_close(device_); }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  void Use(const AttnTuning& tuning, const AttnTuningKey& key) {
    ExpectAttn(longspan_attn_tune(device_, FormatAttnTuning(tuning, key).c_str()));
  }

  // Microseconds of a call, or 0 when line 90 was asked for and does not compute the shape.
  double Time(const Work& work, int32_t head_dim, int32_t family, int32_t line) {
    longspan_attn_call call = Call(work, head_dim);
    call.family = family;
    call.line = line == LONGSPAN_ATTN_SM80 ? LONGSPAN_ATTN_SM80 : 0;
    longspan_attn_choice choice;
    ExpectAttn(longspan_attn_choose(&call, longspan_attn_compute_capability(device_), &choice));
    if (line == LONGSPAN_ATTN_SM90 && choice.line != LONGSPAN_ATTN_SM90) return 0.0;

    longspan_attn_sizes sizes;
    ExpectAttn(longspan_attn_measure(device_, &call, &sizes));
    longspan_attn_plan_info info;
    const DeviceBuffer plan = Plan(call, work, sizes, &info);
    DeviceBuffer workspace = Allocate(sizes.workspace_bytes);
    Expect(workspace.Fill(0, stream_.handle()));
    const int64_t set_ids = work.num_seqs * call.block_table_stride;
    const int64_t num_sets = kPoolTokens / kBlockSize / set_ids;
    return Median([&](int i) {
      call.block_table = table_.as<int32_t>() + i % num_sets * set_ids;
      ExpectAttn(longspan_attn_run(device_, &call, plan.data(), &info, workspace.data(),
                                   workspace.size_bytes(), stream_.handle()));
    });
  }

 private:
  longspan_attn_call Call(const Work& work, int32_t head_dim) const {
    longspan_attn_call call = {};
    call.struct_bytes = sizeof(call);
    call.dtype = LONGSPAN_ATTN_BFLOAT16;
    call.num_seqs = work.num_seqs;
    call.num_q_heads = kQueryHeads;
    call.num_kv_heads = kKvHeads;
    call.head_dim = head_dim;
    call.max_q_len = work.q_len;
    call.kv_layout = LONGSPAN_ATTN_PAGED;
    call.block_size = kBlockSize;
    call.causal = 1;
    call.window_left = call.window_right = -1;
    call.scale = 0.1f;
    call.total_q = int64_t{work.num_seqs} * work.q_len;
    call.num_blocks = kPoolTokens / kBlockSize;
    call.q = q_.data();
    call.o = o_.data();
    call.k = k_.data();
    call.v = v_.data();
    call.block_table_stride = (work.length + kBlockSize - 1) / kBlockSize;
    CHECK(call.total_q <= kMaxQueries &&
          work.num_seqs * call.block_table_stride <= call.num_blocks);
    call.q_head_stride = call.o_head_stride = call.k_head_stride = call.v_head_stride = head_dim;
    call.q_token_stride = call.o_token_stride = int64_t{kQueryHeads} * head_dim;
    call.k_token_stride = call.v_token_stride = int64_t{kKvHeads} * head_dim;
    call.k_block_stride = call.v_block_stride = kBlockSize * call.k_token_stride;
    return call;
  }

  DeviceBuffer Plan(const longspan_attn_call& call, const Work& work,
                    const longspan_attn_sizes& sizes, longspan_attn_plan_info* info) {
    std::vector<int32_t> cu(work.num_seqs + 1);
    for (int32_t i = 0; i <= work.num_seqs; ++i) cu[i] = i * work.q_len;
    const std::vector<int32_t> seq_lens(work.num_seqs, work.length);
    const longspan_attn_lengths lengths = {sizeof(lengths), 0,       cu.data(),
                                           seq_lens.data(), nullptr, nullptr};
    PinnedBuffer host = PinnedBuffer::Allocate(sizes.plan_bytes).value();
    ExpectAttn(
        longspan_attn_plan(device_, &call, &lengths, host.bytes().data(), sizes.plan_bytes, info));
    DeviceBuffer plan = Allocate(info->bytes);
    Expect(plan.CopyFrom(host.bytes().first(static_cast<size_t>(info->bytes)), stream_.handle()));
    Expect(stream_.Synchronize());
    return plan;
  }

  // Milliseconds of a replay of `calls` calls.
  template <typename Enqueue>
  std::vector<double> Replay(int calls, int replays, double warm_ms, const Enqueue& call) {
    auto graph = GpuGraph::Capture(stream_, [&] {
      for (int i = 0; i < calls; ++i) call(i);
    });
    CHECK(graph.has_value(), "capture failed");
    std::vector<double> times;
    for (double spent = 0.0; static_cast<int>(times.size()) < replays;) {
      Expect(start_.Record(stream_));
      Expect(graph->Launch(stream_));
      Expect(end_.Record(stream_));
      Expect(end_.Synchronize());
      const double ms = end_.MillisecondsSince(start_);
      if (spent >= warm_ms) times.push_back(ms);
      spent += ms;
    }
    return times;
  }

  template <typename Enqueue>
  double Median(const Enqueue& call) {
    const double once_ms = Replay(8, 1, 0.1, call).front() / 8;
    const int calls = std::clamp(static_cast<int>(1.0 / once_ms), 4, 256);
    std::vector<double> times = Replay(calls, kReplays, 50.0, call);
    std::sort(times.begin(), times.end());
    return 1000.0 * times[times.size() / 2] / calls;
  }

  GpuStream stream_;
  GpuEvent start_ = GpuEvent::Create().value(), end_ = GpuEvent::Create().value();
  DeviceBuffer k_, v_, q_, o_, table_;
  longspan_attn_device* device_ = nullptr;
};

AttnTuningRow MeasureBorders(Clock& clock, int32_t head_dim, const AttnTuningRow& row) {
  std::vector<TuneReading> readings;
  for (const auto& [num_seqs, length] : {std::pair{1, 4096}, {1, 32768}, {8, 8192}, {32, 4096}}) {
    for (const int32_t q_len : {4, 8, 12, 16, 24, 32, 64, 128}) {
      const Work work = {num_seqs, length, q_len};
      const TuneReading reading = {
          q_len * kQueryHeads / kKvHeads, q_len,
          clock.Time(work, head_dim, LONGSPAN_ATTN_DECODE, 0),
          clock.Time(work, head_dim, LONGSPAN_ATTN_PREFILL, LONGSPAN_ATTN_SM90),
          clock.Time(work, head_dim, LONGSPAN_ATTN_PREFILL, LONGSPAN_ATTN_SM80)};
      std::printf("head_dim %3d, %2d x %5d, %3d queries: decode %8.1f us, prefill ", head_dim,
                  num_seqs, length, q_len, reading.decode_us);
      if (reading.sm90_prefill_us > 0.0) std::printf("sm_90a %8.1f, ", reading.sm90_prefill_us);
      std::printf("sm_80 %8.1f\n", reading.sm80_prefill_us);
      std::fflush(stdout);
      readings.push_back(reading);
    }
  }
  return TuneBorders(readings, row);
}

AttnTuningRow MeasureRangeCost(Clock& clock, int32_t head_dim, const AttnTuningKey& key,
                               const AttnTuningRow& row) {
  constexpr Work kWorks[] = {{1, 512, 1},  {1, 1024, 1}, {1, 2048, 1},
                             {1, 8192, 1}, {8, 1024, 1}, {32, 512, 1}};
  constexpr int32_t kCosts[] = {2, 4, 8, 16};
  std::vector<std::vector<double>> us;
  std::vector<TuneRange> ranges;
  for (const int32_t cost : kCosts) {
    AttnTuning tuning;
    tuning.rows.fill({row.decode_rows, row.sm80_q_len, cost});
    clock.Use(tuning, key);
    std::printf("head_dim %3d, decode, min_range_cost %2d:", head_dim, cost);
    us.emplace_back();
    for (const Work& work : kWorks) {
      us.back().push_back(clock.Time(work, head_dim, LONGSPAN_ATTN_DECODE, 0));
      std::printf(" %d x %d %.2f us%s", work.num_seqs, work.length, us.back().back(),
                  &work == std::end(kWorks) - 1 ? "\n" : ",");
    }
    std::fflush(stdout);
  }
  for (size_t i = 0; i < us.size(); ++i) ranges.push_back({kCosts[i], us[i]});
  return TuneRangeCost(ranges, row);
}

int Run(int argc, char** argv) {
  bool dry_run = false;
  std::optional<std::string> out;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--dry-run") == 0) {
      dry_run = true;
    } else if (std::strcmp(argv[i], "--out") == 0 && i + 1 < argc) {
      out = argv[++i];
    } else {
      std::fprintf(stderr, "usage: longspan-tune [--dry-run] [--out FILE]\n");
      return 2;
    }
  }
  std::string reason;
  const std::optional<GpuDevice> device = FindGpuDevice(&reason);
  if (!device) {
    std::fprintf(stderr, "no GPU: %s\n", reason.c_str());
    return 3;
  }
  if (device->compute_capability < 80) {
    std::fprintf(stderr, "%s is older than compute capability 8.0\n", device->name.c_str());
    return 3;
  }
  const AttnTuningKey key = {device->name, device->driver};
  const std::string path = out.value_or(AttnTuningPath(device->name));
  Clock clock;
  AttnTuning tuning;
  for (size_t i = 0; i < tuning.rows.size(); ++i) {
    const int32_t head_dim = kAttnTuningHeadDims[i];
    tuning.rows[i] = MeasureRangeCost(clock, head_dim, key, tuning.rows[i]);
    clock.Use(tuning, key);
    tuning.rows[i] = MeasureBorders(clock, head_dim, tuning.rows[i]);
  }
  const std::string text = FormatAttnTuning(tuning, key);
  std::printf("\n%s%s", text.c_str(),
              tuning == AttnTuning() ? "These are the built-in numbers.\n" : "");
  if (dry_run) return 0;
  if (const std::string failure = SaveAttnTuning(path, text); !failure.empty()) {
    std::fprintf(stderr, "%s\n", failure.c_str());
    return 4;
  }
  std::printf("Written to %s\n", path.c_str());
  return 0;
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) { return longspan::Run(argc, argv); }
