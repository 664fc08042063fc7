// Speed of the GPU's attention kernels against the card's read ceiling, measured in the same run.
//
//   bench_attention [--out result.json] [--quick] [--only SUBSTRING] [--line auto|sm80]
//                   [--kv-dtype bf16|e4m3|int8] [--heads-first]
//
// 8-bit keys and values have a scale per block and head. --heads-first: blocks are [head, token,
// d], not [token, head, d].
//
// A reading: R calls in one graph, going round input sets of 0.5 GiB and more in all so that keys
// and values come from memory, R such that a replay takes 2 ms and more; after 0.4 s of the same
// call (--quick: 0.1 s) the median of 20 replays between two events, divided by R.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "bench/gpu_memory_kernels.h"
#include "core/check.h"
#include "kernels/attention/decode/decode.h"
#include "kernels/runtime/buffer.h"
#include "kernels/runtime/device.h"
#include "kernels/runtime/stream.h"

namespace longspan {
namespace {

constexpr int32_t kQueryHeads = 32, kKvHeads = 8, kHeadDim = 128;
constexpr int64_t kTokenElements = int64_t{2} * kKvHeads * kHeadDim;  // of K and V
constexpr int64_t kPoolTokens = int64_t{2} << 20;
constexpr int64_t kMinSetBytes = int64_t{1} << 29;
constexpr int64_t kMaxBlocks = kPoolTokens / 16;
constexpr int kReplays = 20;

struct Options {
  std::string out;
  std::string only;
  bool quick = false;
  GpuLine line = GpuLine::kAuto;
  DType kv_dtype = DType::kBFloat16;
  bool heads_first = false;
};

struct Case {
  std::string name;
  std::vector<int32_t> lengths;
  int32_t block_size = 64;
  int32_t q_len = 1;
};

struct Reading {
  int calls = 0;
  double us = 0, us_min = 0, us_max = 0;
};

DeviceBuffer Allocate(int64_t bytes) {
  auto buffer = DeviceBuffer::Allocate(bytes);
  CHECK(buffer.has_value(), "no device memory for {} bytes", bytes);
  return std::move(*buffer);
}

void Expect(GpuResult result) { CHECK(result.ok(), "device error: {}", result.text().data()); }

// Time of one call of call(i); i counts up within a replay.
Reading Measure(GpuStream& stream, double expected_us, int round_to, double sustain_seconds,
                const std::function<void(int)>& call) {
  Reading reading;
  reading.calls = std::max(3, static_cast<int>(2500.0 / expected_us));
  reading.calls = (reading.calls + round_to - 1) / round_to * round_to;
  auto graph = GpuGraph::Capture(stream, [&] {
    for (int i = 0; i < reading.calls; ++i) call(i);
  });
  CHECK(graph.has_value(), "capture failed");
  GpuEvent start = GpuEvent::Create().value();
  GpuEvent end = GpuEvent::Create().value();
  std::vector<double> us;
  for (double warm_ms = 0.0; us.size() < kReplays;) {
    Expect(start.Record(stream));
    Expect(graph->Launch(stream));
    Expect(end.Record(stream));
    Expect(end.Synchronize());
    const double ms = end.MillisecondsSince(start);
    if (warm_ms >= 1000.0 * sustain_seconds) us.push_back(1000.0 * ms / reading.calls);
    warm_ms += ms;
  }
  std::sort(us.begin(), us.end());
  reading.us = us[us.size() / 2];
  reading.us_min = us.front();
  reading.us_max = us.back();
  return reading;
}

// One pool of random keys and values, and everything a launch needs.
class Bench {
 public:
  Bench(const Options& options, const GpuDevice& device)
      : options_(options),
        device_(device),
        stream_(GpuStream::Create().value()),
        token_bytes_(kTokenElements * DTypeBytes(options.kv_dtype)),
        k_(Allocate(kPoolTokens * token_bytes_ / 2)),
        v_(Allocate(kPoolTokens * token_bytes_ / 2)),
        scales_(Allocate(0)) {
    constexpr int64_t kElements = kPoolTokens * kTokenElements / 2;
    FillNormal(k_.data(), kElements, 1, stream_.handle(), options.kv_dtype);
    FillNormal(v_.data(), kElements, 2, stream_.handle(), options.kv_dtype);
    if (options.kv_dtype != DType::kBFloat16) MakeScales();
    Expect(stream_.Synchronize());
  }

  // GB/s of the bare reading of many bytes.
  double ReadCeiling() {
    const int64_t bytes = k_.size_bytes() / 2;
    const Reading reading = Read(bytes);
    return bytes / reading.us / 1e3;
  }

  nlohmann::json Decode(const Case& spec, bool overlap, double read_gbs) {
    AttentionParams params = Shape(spec);
    DecodeSetup setup;
    CheckStatus(PrepareDecode(params, device_, &setup, options_.line));
    const auto num_seqs = static_cast<int32_t>(spec.lengths.size());
    const int64_t total_q = int64_t{num_seqs} * spec.q_len;
    DeviceBuffer q = Allocate(total_q * kQueryHeads * kHeadDim * 2);
    DeviceBuffer o = Allocate(q.size_bytes());
    FillNormal(q.data(), q.size_bytes() / 2, 3, stream_.handle());
    params.q = q.data();
    params.o = o.data();
    DecodeKvMaps maps;
    if (DecodeNeedsKvMaps(setup)) {
      CheckStatus(MakeDecodeKvMaps(params, kPoolTokens / spec.block_size, &maps));
    }

    int num_sets = 0;
    DeviceBuffer tables = Tables(spec, &params, &num_sets);
    double plan_us = 0.0;
    DeviceBuffer plan = Plan(spec, params, setup, &plan_us);
    DeviceBuffer workspace = Allocate(DecodeWorkspaceBytes(setup));
    Expect(workspace.Fill(0, stream_.handle()));
    const DecodeLaunch launch = {plan.data(), spec.q_len, workspace.data(), workspace.size_bytes(),
                                 overlap};
    const int32_t* first_table = params.block_table;
    auto call = [&](int i) {
      params.block_table = first_table + (i % num_sets) * num_seqs * params.block_table_stride;
      CheckStatus(LaunchDecode(setup, params, maps, launch, stream_.handle()));
    };
    const int64_t tokens = std::accumulate(spec.lengths.begin(), spec.lengths.end(), int64_t{0});
    const double bytes = static_cast<double>(tokens * token_bytes_);
    const Reading reading = Measure(stream_, bytes / 4.6e6 + 4.0, num_sets, SustainSeconds(), call);
    const double gbs = bytes / reading.us / 1e3;
    const std::string line = options_.line == GpuLine::kSm80 ? "longspan sm80" : "longspan";
    const bool is_8bit = options_.kv_dtype != DType::kBFloat16;
    return {{"section", is_8bit ? "fp8_decode" : "decode"},
            {"peer", line + " paged " + std::to_string(spec.block_size)},
            {"D", kHeadDim},
            {"Hq", kQueryHeads},
            {"Hkv", kKvHeads},
            {"case", spec.name},
            {"B", num_seqs},
            {"ctx", spec.lengths[0]},
            {"Lq", spec.q_len},
            {"kv_dtype", DTypeName(options_.kv_dtype)},
            {"page", spec.block_size},
            {"heads_first", options_.heads_first},
            {"overlap", overlap},
            {"calls", reading.calls},
            {"sets", num_sets},
            {"reps", kReplays},
            {"mode", "graph"},
            {"us", reading.us},
            {"us_min", reading.us_min},
            {"us_max", reading.us_max},
            {"kv_gbs", gbs},
            {"pct_read", 100.0 * gbs / read_gbs},
            {"read_us", Read(tokens * token_bytes_).us},
            {"plan_us", plan_us}};
  }

 private:
  static void CheckStatus(KernelStatus status) {
    CHECK(status == KernelStatus::kOk, "{}", KernelStatusText(status).data());
  }
  double SustainSeconds() const { return options_.quick ? 0.1 : 0.4; }

  // The bare reading of as many bytes, going round the pool likewise.
  Reading Read(int64_t bytes) {
    const int64_t half = std::min(bytes, k_.size_bytes()) / 16384 * 16384;
    const auto num_sets =
        static_cast<int>(std::clamp<int64_t>(k_.size_bytes() / half, 1, kMinSetBytes / half + 1));
    Reading reading = Measure(stream_, static_cast<double>(half) / 4.6e6 + 2.0, num_sets,
                              SustainSeconds(), [&](int i) {
                                ReadMemory(k_.as<std::byte>() + (i % num_sets) * half, half,
                                           device_.num_sms, stream_.handle());
                              });
    const double scale = static_cast<double>(bytes) / static_cast<double>(half);
    reading.us *= scale;
    return reading;
  }

  // One for each block and head of the smallest blocks, keys' first.
  void MakeScales() {
    std::vector<float> scales(2 * kMaxBlocks * kKvHeads);
    for (size_t i = 0; i < scales.size(); ++i) {
      scales[i] = (options_.kv_dtype == DType::kInt8 ? 1.0f / 32 : 1.0f) *
                  (1.0f + static_cast<float>(i % 17) / 64);
    }
    scales_ = Upload(std::as_bytes(std::span(scales)));
  }

  AttentionParams Shape(const Case& spec) const {
    AttentionParams p;
    p.k = k_.data();
    p.v = v_.data();
    p.k_head_stride = p.v_head_stride = p.q_head_stride = p.o_head_stride = kHeadDim;
    p.k_token_stride = p.v_token_stride = kKvHeads * kHeadDim;
    if (options_.heads_first) {
      p.k_head_stride = p.v_head_stride = int64_t{spec.block_size} * kHeadDim;
      p.k_token_stride = p.v_token_stride = kHeadDim;
    }
    p.k_block_stride = p.v_block_stride = int64_t{spec.block_size} * kKvHeads * kHeadDim;
    p.q_token_stride = p.o_token_stride = kQueryHeads * kHeadDim;
    p.num_seqs = static_cast<int32_t>(spec.lengths.size());
    p.num_q_heads = kQueryHeads;
    p.num_kv_heads = kKvHeads;
    p.head_dim = kHeadDim;
    p.block_size = spec.block_size;
    p.q_dtype = DType::kBFloat16;
    p.kv_dtype = options_.kv_dtype;
    if (p.kv_dtype != DType::kBFloat16) {
      p.scales.k = scales_.as<float>();
      p.scales.v = p.scales.k + kMaxBlocks * kKvHeads;
      p.scales.k_block_stride = p.scales.v_block_stride = kKvHeads;
      p.scales.k_head_stride = p.scales.v_head_stride = 1;
    }
    p.scale = 0.08838834764f;
    return p;
  }

  // Block tables of as many disjoint sets as the pool holds or are needed; shuffled blocks.
  DeviceBuffer Tables(const Case& spec, AttentionParams* params, int* num_sets) {
    auto blocks_of = [&](int32_t length) {
      return (length + spec.block_size - 1) / spec.block_size;
    };
    const int64_t num_blocks = kPoolTokens / spec.block_size;
    int64_t per_set = 0;
    int32_t widest = 1;
    for (const int32_t length : spec.lengths) {
      per_set += blocks_of(length);
      widest = std::max(widest, blocks_of(length));
    }
    CHECK(per_set <= num_blocks, "{}: the pool is too small", spec.name);
    const int64_t set_bytes = per_set * spec.block_size * token_bytes_;
    *num_sets = static_cast<int>(
        std::clamp<int64_t>(num_blocks / per_set, 1, kMinSetBytes / set_bytes + 1));
    std::vector<int32_t> ids(num_blocks);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    std::vector<int32_t> tables;
    int64_t next = 0;
    for (int set = 0; set < *num_sets; ++set) {
      for (const int32_t length : spec.lengths) {
        for (int32_t i = 0; i < widest; ++i) {
          tables.push_back(i < blocks_of(length) ? ids[next++] : INT32_MAX);
        }
      }
    }
    DeviceBuffer device = Upload(std::as_bytes(std::span(tables)));
    params->block_table = device.as<int32_t>();
    params->block_table_stride = widest;
    return device;
  }

  DeviceBuffer Plan(const Case& spec, const AttentionParams& params, const DecodeSetup& setup,
                    double* plan_us) {
    std::vector<int32_t> cu(spec.lengths.size() + 1);
    for (size_t i = 0; i < cu.size(); ++i) cu[i] = static_cast<int32_t>(i) * spec.q_len;
    std::vector<std::byte> bytes(GpuDecodePlanBytes(setup.num_ctas, params.num_seqs));
    int64_t used = 0;
    std::vector<double> us;
    for (int i = 0; i < 51; ++i) {
      const auto start = std::chrono::steady_clock::now();
      used = PlanGpuDecode({cu, spec.lengths, params.num_kv_heads,
                            params.num_q_heads / params.num_kv_heads, -1, setup.num_ctas},
                           bytes);
      const std::chrono::duration<double, std::micro> taken =
          std::chrono::steady_clock::now() - start;
      us.push_back(taken.count());
    }
    std::sort(us.begin(), us.end());
    *plan_us = us[us.size() / 2];
    return Upload(std::span(bytes).first(used));
  }

  DeviceBuffer Upload(std::span<const std::byte> bytes) {
    DeviceBuffer device = Allocate(static_cast<int64_t>(bytes.size()));
    Expect(device.CopyFrom(bytes, stream_.handle()));
    Expect(stream_.Synchronize());
    return device;
  }

  Options options_;
  GpuDevice device_;
  GpuStream stream_;
  int64_t token_bytes_;  // of K and V of a token
  DeviceBuffer k_, v_;
  DeviceBuffer scales_;
};

std::vector<Case> Cases(bool quick) {
  std::vector<int32_t> skewed(64, 1024);
  skewed[0] = 262144;
  auto equal = [](int num, int32_t length) { return std::vector<int32_t>(num, length); };
  std::vector<Case> cases = {{"1x1048576", equal(1, 1 << 20)},  {"8x131072", equal(8, 131072)},
                             {"64x32768", equal(64, 32768)},    {"1x131072", equal(1, 131072)},
                             {"1x8192", equal(1, 8192)},        {"8x8192", equal(8, 8192)},
                             {"256x2048", equal(256, 2048)},    {"262144+63x1024", skewed},
                             {"8x131072", equal(8, 131072), 16}};
  if (!quick) {
    for (const int32_t block_size : {16, 256}) {
      for (size_t i = 0; i < 8; ++i) {
        if (block_size == 16 && i == 1) continue;  // already there
        cases.push_back(cases[i]);
        cases.back().block_size = block_size;
      }
    }
    cases.push_back({"8x131072 q_len 4", equal(8, 131072), 64, 4});
  }
  return cases;
}

bool Usage() {
  std::fprintf(stderr,
               "usage: bench_attention [--out FILE] [--quick] [--only SUBSTRING] "
               "[--line auto|sm80] [--kv-dtype bf16|e4m3|int8] [--heads-first]\n");
  return false;
}

bool ParseOptions(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      options->quick = true;
    } else if (std::strcmp(argv[i], "--out") == 0 && i + 1 < argc) {
      options->out = argv[++i];
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      options->only = argv[++i];
    } else if (std::strcmp(argv[i], "--line") == 0 && i + 1 < argc) {
      options->line = std::strcmp(argv[++i], "sm80") == 0 ? GpuLine::kSm80 : GpuLine::kAuto;
    } else if (std::strcmp(argv[i], "--heads-first") == 0) {
      options->heads_first = true;
    } else if (std::strcmp(argv[i], "--kv-dtype") == 0 && i + 1 < argc) {
      const std::string_view name = argv[++i];
      if (name != "bf16" && name != "e4m3" && name != "int8") return Usage();
      options->kv_dtype = name == "bf16"   ? DType::kBFloat16
                          : name == "e4m3" ? DType::kFloat8E4M3
                                           : DType::kInt8;
    } else {
      return Usage();
    }
  }
  return true;
}

int Run(int argc, char** argv) {
  Options options;
  if (!ParseOptions(argc, argv, &options)) return 2;
  std::string reason;
  const std::optional<GpuDevice> device = FindGpuDevice(&reason);
  if (!device) {
    std::fprintf(stderr, "no GPU: %s\n", reason.c_str());
    return 3;
  }
  Bench bench(options, *device);
  const double read_gbs = bench.ReadCeiling();
  std::printf("%s, %d SMs, read ceiling %.0f GB/s\n", device->name.c_str(), device->num_sms,
              read_gbs);
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%S", std::gmtime(&now));
  nlohmann::json result;
  result["meta"] = {
      {"date", date},           {"gpu", device->name},         {"sms", device->num_sms},
      {"l2", device->l2_bytes}, {"mem", device->memory_bytes}, {"read_gbs", read_gbs}};
  result["records"] = nlohmann::json::array();
  for (const Case& spec : Cases(options.quick)) {
    if (spec.name.find(options.only) == std::string::npos) continue;
    for (const bool overlap : {false, true}) {
      if (overlap && options.line == GpuLine::kSm80) continue;  // that line never overlaps
      const nlohmann::json record = bench.Decode(spec, overlap, read_gbs);
      std::printf(
          "%-18s block %3d %-8s %8.2f us (%.2f..%.2f), %5.1f %% of read, bare read %.2f us, plan "
          "%.1f us\n",
          spec.name.c_str(), spec.block_size, overlap ? "overlap" : "", record["us"].get<double>(),
          record["us_min"].get<double>(), record["us_max"].get<double>(),
          record["pct_read"].get<double>(), record["read_us"].get<double>(),
          record["plan_us"].get<double>());
      std::fflush(stdout);
      result["records"].push_back(record);
      if (!options.out.empty()) std::ofstream(options.out) << result.dump(1) << "\n";
    }
  }
  return 0;
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) { return longspan::Run(argc, argv); }
