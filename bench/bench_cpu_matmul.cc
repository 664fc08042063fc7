// Matrix products on one core beside its ceilings: dot products or multiply-adds per second and
// bytes read per second, both measured in the same run. Processor time, not wall time, and the
// fastest fifth of the repetitions, since neighbours disturb. oneDNN on 16- and 32-bit weights is
// the yardstick where present.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/matmul.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(LONGSPAN_HAVE_ONEDNN)
extern "C" void omp_set_num_threads(int num_threads)
    __attribute__((weak));  // oneDNN's, if it uses OpenMP
#include <oneapi/dnnl/dnnl.hpp>
#endif

namespace longspan {
namespace {

constexpr int64_t kColdBytes = int64_t{96} << 20;  // more than the caches: weights come from memory

double ThreadSeconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double FastestFifth(std::vector<double>& seconds) {
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 5];
}

// ---- Ceilings ----

struct Ceiling {
  double flops_per_call;
  void (*run)();
};

#if defined(__x86_64__)
constexpr int kRounds = 4000;
constexpr int kChains = 16;

__attribute__((target("avx512f,avx512bf16"))) void BFloat16Peak() {
  __m512 sum[kChains];
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) {  // opaque, or equal chains would be computed once
    sum[c] = _mm512_setzero_ps();
    __asm__ volatile("" : "+v"(sum[c]));
  }
  __m512bh a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f803f80));
  for (int i = 0; i < kRounds; ++i) {
    __asm__ volatile("" : "+v"(a));
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) sum[c] = _mm512_dpbf16_ps(sum[c], a, a);
  }
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) __asm__ volatile("" : : "v"(sum[c]));
}

__attribute__((target("avx512f"))) void Avx512Peak() {
  __m512 sum[kChains];
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) {  // opaque, or equal chains would be computed once
    sum[c] = _mm512_setzero_ps();
    __asm__ volatile("" : "+v"(sum[c]));
  }
  __m512 a = _mm512_set1_ps(1.0f);
  for (int i = 0; i < kRounds; ++i) {
    __asm__ volatile("" : "+v"(a));
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) sum[c] = _mm512_fmadd_ps(a, a, sum[c]);
  }
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) __asm__ volatile("" : : "v"(sum[c]));
}

__attribute__((target("avx2,fma"))) void Avx2Peak() {
  constexpr int kFew = 12;
  __m256 sum[kFew];
#pragma GCC unroll 16
  for (int c = 0; c < kFew; ++c) {
    sum[c] = _mm256_setzero_ps();
    __asm__ volatile("" : "+x"(sum[c]));
  }
  __m256 a = _mm256_set1_ps(1.0f);
  for (int i = 0; i < kRounds; ++i) {
    __asm__ volatile("" : "+x"(a));
#pragma GCC unroll 16
    for (int c = 0; c < kFew; ++c) sum[c] = _mm256_fmadd_ps(a, a, sum[c]);
  }
#pragma GCC unroll 16
  for (int c = 0; c < kFew; ++c) __asm__ volatile("" : : "x"(sum[c]));
}
#endif

// What the arithmetic units of a table can do at most; null where nothing is measured.
Ceiling CeilingOf([[maybe_unused]] const MatmulKernels& kernels,
                  [[maybe_unused]] MatmulPrecision precision) {
#if defined(__x86_64__)
  if (kernels.native_bfloat16 && precision == MatmulPrecision::kBFloat16) {
    return {64.0 * kRounds * kChains, BFloat16Peak};
  }
  const std::string name = kernels.name;
  if (name.starts_with("avx512")) return {32.0 * kRounds * kChains, Avx512Peak};
  if (name == "avx2") return {16.0 * kRounds * 12, Avx2Peak};
#endif
  return {0.0, nullptr};
}

// Bytes per second of a plain sum over memory that no cache holds.
double ReadCeiling() {
  static const double bytes_per_second = [] {
    std::vector<uint64_t> words(kColdBytes / sizeof(uint64_t), 1);
    std::vector<double> seconds;
    for (int pass = 0; pass < 10; ++pass) {
      const double start = ThreadSeconds();
      uint64_t sum[8] = {};
      for (size_t i = 0; i + 8 <= words.size(); i += 8) {
        for (size_t j = 0; j < 8; ++j) sum[j] += words[i + j];
      }
      for (const uint64_t s : sum) benchmark::DoNotOptimize(s);
      seconds.push_back(ThreadSeconds() - start);
    }
    return static_cast<double>(kColdBytes) / FastestFifth(seconds);
  }();
  return bytes_per_second;
}

// ---- Products ----

std::vector<float> RandomFloats(int64_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(random);
  return values;
}

// Every byte in 0x20..0x2f: scales are then small normal halves, as in real files.
std::vector<uint8_t> RandomBlocks(WeightFormat format, int64_t elements, std::mt19937& random) {
  std::vector<uint8_t> data(
      static_cast<size_t>(elements / WeightBlockElements(format) * WeightBlockBytes(format)));
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(0x20 | (random() & 15));
  return data;
}

struct Shape {
  const char* name;
  int64_t rows;
  int64_t cols;
};

// Runs `call` for every iteration, with the ceiling measured in between, and reports.
void Report(benchmark::State& state, double flops, double weight_bytes, const Ceiling& ceiling,
            const std::function<void()>& call) {
  std::vector<double> seconds;
  std::vector<double> peak_seconds;
  for (auto _ : state) {
    double start = ThreadSeconds();
    call();
    seconds.push_back(ThreadSeconds() - start);
    state.SetIterationTime(seconds.back());
    if (ceiling.run == nullptr) continue;
    start = ThreadSeconds();
    ceiling.run();
    peak_seconds.push_back(ThreadSeconds() - start);
  }
  const double best = FastestFifth(seconds);
  state.counters["GFLOP/s"] = flops / best * 1e-9;
  state.counters["GB/s"] = weight_bytes / best * 1e-9;
  state.counters["read%"] = 100.0 * weight_bytes / best / ReadCeiling();
  if (ceiling.run != nullptr) {
    const double peak = ceiling.flops_per_call / FastestFifth(peak_seconds);
    state.counters["peak%"] = 100.0 * flops / best / peak;
  }
}

void RunProduct(benchmark::State& state, const MatmulKernels& kernels, WeightFormat format,
                MatmulPrecision precision, const Shape& shape, int64_t num_rows) {
  std::mt19937 random(1);
  const std::vector<uint8_t> data = RandomBlocks(format, shape.rows * shape.cols, random);
  std::vector<std::unique_ptr<PackedMatrix>> copies;
  do {
    std::unique_ptr<PackedMatrix> packed;
    if (PackFor(kernels, format, shape.rows, shape.cols, data.data(), precision, packed) !=
        KernelStatus::kOk) {
      return state.SkipWithError("does not pack");
    }
    copies.push_back(std::move(packed));
    // A decode step streams all weights; with many rows they are read once per many operations.
  } while (num_rows < 8 &&
           static_cast<int64_t>(copies.size()) * copies[0]->size_bytes() < kColdBytes);
  const std::vector<float> x = RandomFloats(num_rows * shape.cols, random);
  std::vector<float> y(static_cast<size_t>(num_rows * shape.rows));
  MatmulParams product{.w = copies[0].get(),
                       .x = x.data(),
                       .x_stride = shape.cols,
                       .y = y.data(),
                       .y_stride = shape.rows};
  ThreadPool pool(1);
  const int64_t bytes = MatmulWorkspaceBytes({&product, 1}, num_rows, 1);
  std::vector<std::byte> workspace(static_cast<size_t>(bytes) + 64);
  void* aligned = workspace.data();
  size_t space = workspace.size();
  std::align(64, static_cast<size_t>(bytes), aligned, space);
  size_t next = 0;
  Report(state, 2.0 * static_cast<double>(num_rows) * static_cast<double>(shape.rows * shape.cols),
         static_cast<double>(copies[0]->size_bytes()), CeilingOf(kernels, precision), [&] {
           product.w = copies[next++ % copies.size()].get();
           if (Matmul(pool, {&product, 1}, num_rows,
                      {static_cast<std::byte*>(aligned), static_cast<size_t>(bytes)}) !=
               KernelStatus::kOk) {
             std::abort();
           }
         });
}

#if defined(LONGSPAN_HAVE_ONEDNN)
// Plain 16- or 32-bit weights in the layout that oneDNN prefers, activations converted outside the
// timing: less work than ours, which also converts x and decodes.
void RunOneDnn(benchmark::State& state, bool bfloat16, const Shape& shape, int64_t num_rows) {
  using dnnl::memory;
  const auto type = bfloat16 ? memory::data_type::bf16 : memory::data_type::f32;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const memory::desc x_desc({num_rows, shape.cols}, type, memory::format_tag::ab);
  const memory::desc w_any({shape.cols, shape.rows}, type, memory::format_tag::any);
  const memory::desc y_desc({num_rows, shape.rows}, memory::data_type::f32, memory::format_tag::ab);
  const dnnl::matmul::primitive_desc desc({x_desc, w_any, y_desc}, engine);
  const dnnl::matmul matmul(desc);
  memory x(x_desc, engine);
  memory w(desc.weights_desc(), engine);
  memory y(y_desc, engine);
  const double bytes = static_cast<double>(desc.weights_desc().get_size());
  std::memset(x.get_data_handle(), 0x3f,
              desc.src_desc().get_size());  // 0.75: neither zero nor denormal
  std::memset(w.get_data_handle(), 0x3f, desc.weights_desc().get_size());
  const MatmulPrecision precision =
      bfloat16 ? MatmulPrecision::kBFloat16 : MatmulPrecision::kFloat32;
  Report(state, 2.0 * static_cast<double>(num_rows) * static_cast<double>(shape.rows * shape.cols),
         bytes, CeilingOf(*SupportedMatmulKernels().front(), precision), [&] {
           matmul.execute(stream, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}});
           stream.wait();
         });
}
#endif

void Register() {
  static constexpr Shape kShapes[] = {{"up", 1536, 576}, {"down", 576, 1536}};
  const auto add = [](const std::string& name, auto run) {
    benchmark::RegisterBenchmark(name.c_str(), run)->UseManualTime()->Unit(benchmark::kMicrosecond);
  };
  for (const MatmulKernels* kernels : SupportedMatmulKernels()) {
    for (const WeightFormat format : {WeightFormat::kQ4_1, WeightFormat::kQ4_0, WeightFormat::kQ8_0,
                                      WeightFormat::kBF16, WeightFormat::kQ6_K}) {
      for (const MatmulPrecision precision :
           {MatmulPrecision::kBFloat16, MatmulPrecision::kFloat32}) {
        for (const Shape& shape : kShapes) {
          if (shape.cols % WeightBlockElements(format) != 0) continue;
          for (const int64_t num_rows : {1, 2, 4, 8, 16, 32, 128, 512}) {
            const char* arithmetic = precision == MatmulPrecision::kBFloat16 ? "bf16" : "f32";
            add(std::string(kernels->name) + "/" + std::string(WeightFormatName(format)) + "/" +
                    arithmetic + "/" + shape.name + "/M" + std::to_string(num_rows),
                [=](benchmark::State& state) {
                  RunProduct(state, *kernels, format, precision, shape, num_rows);
                });
          }
        }
      }
    }
  }
#if defined(LONGSPAN_HAVE_ONEDNN)
  for (const bool bfloat16 : {true, false}) {
    for (const Shape& shape : kShapes) {
      for (const int64_t num_rows : {1, 8, 32, 128, 512}) {
        add(std::string("onednn/") + (bfloat16 ? "bf16/" : "f32/") + shape.name + "/M" +
                std::to_string(num_rows),
            [=](benchmark::State& state) { RunOneDnn(state, bfloat16, shape, num_rows); });
      }
    }
  }
#endif
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
#if defined(LONGSPAN_HAVE_ONEDNN)
  if (omp_set_num_threads != nullptr) omp_set_num_threads(1);
#endif
  longspan::Register();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
