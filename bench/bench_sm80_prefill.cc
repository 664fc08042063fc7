// Speed of the sm_80 line's prefill: causal prompts and a chunk against a long history, 32 query
// and 8 KV heads of 128 columns, bfloat16, shuffled blocks of 64.
//
//   bench_sm80_prefill [--quick]
//
// A reading: the median of 11 rounds of calls, 20 ms and more a round, between two events,
// after 0.4 s (--quick: 0.1 s) of the same.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu_memory_kernels.h"
#include "core/check.h"
#include "kernels/attention/prefill/sm80_prefill.h"
#include "kernels/runtime/buffer.h"
#include "kernels/runtime/device.h"
#include "kernels/runtime/stream.h"

namespace longspan {
namespace {

constexpr int32_t kQueryHeads = 32, kKvHeads = 8, kHeadDim = 128, kBlockSize = 64;

void Expect(GpuResult result) { CHECK(result.ok(), "device error: {}", result.text().data()); }

DeviceBuffer Allocate(int64_t bytes) {
  auto buffer = DeviceBuffer::Allocate(bytes);
  CHECK(buffer.has_value(), "no device memory for {} bytes", bytes);
  return std::move(*buffer);
}

DeviceBuffer Normal(int64_t elements, uint32_t seed, GpuStream& stream) {
  DeviceBuffer buffer = Allocate(2 * elements);
  FillNormal(buffer.data(), elements, seed, stream.handle());
  return buffer;
}

template <typename T>
DeviceBuffer Upload(const std::vector<T>& host, GpuStream& stream) {
  DeviceBuffer buffer = Allocate(static_cast<int64_t>(host.size() * sizeof(T)));
  Expect(buffer.CopyFrom(std::as_bytes(std::span(host)), stream.handle()));
  Expect(stream.Synchronize());
  return buffer;
}

double MedianMilliseconds(GpuStream& stream, const Sm80PrefillSetup& setup,
                          const AttentionParams& params, const Sm80PrefillLaunch& launch,
                          double sustain_ms) {
  GpuEvent start = GpuEvent::Create().value();
  GpuEvent end = GpuEvent::Create().value();
  auto time = [&](int calls) {
    Expect(start.Record(stream));
    for (int i = 0; i < calls; ++i) {
      const KernelStatus status = LaunchSm80Prefill(setup, params, launch, stream.handle());
      CHECK(status == KernelStatus::kOk, "{}", KernelStatusText(status).data());
    }
    Expect(end.Record(stream));
    Expect(end.Synchronize());
    return end.MillisecondsSince(start);
  };
  time(1);
  const int calls = std::max(1, static_cast<int>(20.0 / time(1)));
  for (double warm = 0.0; warm < sustain_ms;) warm += time(calls);
  std::vector<double> ms;
  for (int i = 0; i < 11; ++i) ms.push_back(time(calls) / calls);
  std::sort(ms.begin(), ms.end());
  return ms[ms.size() / 2];
}

void Measure(const GpuDevice& device, int32_t q_len, int32_t length, bool causal,
             double sustain_ms) {
  GpuStream stream = GpuStream::Create().value();
  AttentionParams p;
  p.num_seqs = 1;
  p.num_q_heads = kQueryHeads;
  p.num_kv_heads = kKvHeads;
  p.head_dim = kHeadDim;
  p.block_size = kBlockSize;
  p.q_dtype = p.kv_dtype = DType::kBFloat16;
  p.scale = 0.08838834764f;
  p.causal = causal;
  p.q_head_stride = p.o_head_stride = p.k_head_stride = p.v_head_stride = kHeadDim;
  p.q_token_stride = p.o_token_stride = kQueryHeads * kHeadDim;
  p.k_token_stride = p.v_token_stride = kKvHeads * kHeadDim;
  p.k_block_stride = p.v_block_stride = kBlockSize * p.k_token_stride;
  Sm80PrefillSetup setup;
  CHECK(PrepareSm80Prefill(p, device, &setup) == KernelStatus::kOk);

  const int32_t num_blocks = (length + kBlockSize - 1) / kBlockSize;
  std::vector<int32_t> table(num_blocks);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(1));
  const std::vector<int32_t> cu = {0, q_len}, lengths = {length};
  const int32_t group = kQueryHeads / kKvHeads;
  std::vector<PrefillBlock> plan(PrefillMaxBlocks(q_len, 1, group, setup.block_rows));
  const int64_t used = PlanPrefill({cu, lengths, group, setup.block_rows, causal}, plan);

  const DeviceBuffer k = Normal(num_blocks * p.k_block_stride, 1, stream);
  const DeviceBuffer v = Normal(num_blocks * p.v_block_stride, 2, stream);
  const DeviceBuffer q = Normal(q_len * p.q_token_stride, 3, stream);
  const DeviceBuffer o = Allocate(2 * q_len * p.o_token_stride);
  const DeviceBuffer device_table = Upload(table, stream);
  const DeviceBuffer device_plan = Upload(plan, stream);
  p.k = k.data();
  p.v = v.data();
  p.q = q.data();
  p.o = o.data();
  p.block_table = device_table.as<int32_t>();
  p.block_table_stride = num_blocks;
  const double ms =
      MedianMilliseconds(stream, setup, p, {device_plan.as<PrefillBlock>(), used}, sustain_ms);
  // Only what the mask keeps.
  const double keys = causal ? length - (q_len - 1) / 2.0 : length;
  const double flop = 4.0 * kQueryHeads * kHeadDim * keys * q_len;
  std::printf("q_len %6d length %6d %-6s %9.3f ms %6.1f TFLOP/s\n", q_len, length,
              causal ? "causal" : "full", ms, flop / ms / 1e9);
  std::fflush(stdout);
}

int Run(int argc, char** argv) {
  const bool quick = argc == 2 && std::strcmp(argv[1], "--quick") == 0;
  if (argc > 1 && !quick) {
    std::fprintf(stderr, "usage: bench_sm80_prefill [--quick]\n");
    return 2;
  }
  std::string reason;
  const std::optional<GpuDevice> device = FindGpuDevice(&reason);
  if (!device) {
    std::fprintf(stderr, "no GPU: %s\n", reason.c_str());
    return 3;
  }
  const double sustain_ms = quick ? 100.0 : 400.0;
  for (const int32_t length : {2048, 8192, 32768}) {
    Measure(*device, length, length, true, sustain_ms);
  }
  Measure(*device, 8192, 8192, false, sustain_ms);
  Measure(*device, 2048, 32768, true, sustain_ms);
  return 0;
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) { return longspan::Run(argc, argv); }
