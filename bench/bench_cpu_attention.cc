// CPU attention against the machine's ceilings, measured in the same run and in turns: decode in
// bytes of KV cache per second against a STREAM-like read and against reading the same shuffled
// blocks, prefill in GFLOP/s against a loop of multiply-adds.
// bench_cpu_attention [--threads N] [--rounds N] [--json FILE] [--quick]
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention/attention_cpu.h"
#include "kernels/cpu/thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace longspan {
namespace {

constexpr int32_t kQueryHeads = 9, kKvHeads = 3, kHeadDim = 64;  // SmolLM2-135M
constexpr int64_t kLargerThanCaches = int64_t{256} << 20;

bool use_cpu_time = false;  // set once by the flag
int num_clocks = 1;         // threads that run at once: processor time counts each
volatile int64_t used = 0;

double Seconds() {
  if (use_cpu_time) {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec)) / num_clocks;
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

#if defined(__x86_64__)
// Twelve chains, each in a register of its own.
#define LONGSPAN_TWELVE(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11)
__attribute__((target("avx512f"))) float MultiplyAdds512(int64_t rounds) {
  const __m512 x = _mm512_set1_ps(1e-3f);
#define LONGSPAN_DECLARE(j) __m512 s##j = x;
#define LONGSPAN_STEP(j) asm volatile("vfmadd231ps %1, %1, %0" : "+v"(s##j) : "v"(x));
#define LONGSPAN_ADD(j) +_mm512_cvtss_f32(s##j)
  LONGSPAN_TWELVE(LONGSPAN_DECLARE)
  for (int64_t i = 0; i < rounds; ++i) {
    LONGSPAN_TWELVE(LONGSPAN_STEP)
  }
  return 0.0f LONGSPAN_TWELVE(LONGSPAN_ADD);
#undef LONGSPAN_DECLARE
#undef LONGSPAN_STEP
#undef LONGSPAN_ADD
}
__attribute__((target("avx2,fma"))) float MultiplyAdds256(int64_t rounds) {
  const __m256 x = _mm256_set1_ps(1e-3f);
#define LONGSPAN_DECLARE(j) __m256 s##j = x;
#define LONGSPAN_STEP(j) asm volatile("vfmadd231ps %1, %1, %0" : "+x"(s##j) : "x"(x));
#define LONGSPAN_ADD(j) +_mm256_cvtss_f32(s##j)
  LONGSPAN_TWELVE(LONGSPAN_DECLARE)
  for (int64_t i = 0; i < rounds; ++i) {
    LONGSPAN_TWELVE(LONGSPAN_STEP)
  }
  return 0.0f LONGSPAN_TWELVE(LONGSPAN_ADD);
#undef LONGSPAN_DECLARE
#undef LONGSPAN_STEP
#undef LONGSPAN_ADD
}
#endif

// FLOP/s of fused multiply-adds in registers, all threads; 0 where this file knows no way to
// measure it.
double MeasureMultiplyAdds(ThreadPool& pool) {
#if defined(__x86_64__)
  constexpr int64_t kRounds = 1 << 20;
  const bool wide = CpuAttentionIsaSupported(CpuAttentionIsa::kAvx512);
  if (!wide && !CpuAttentionIsaSupported(CpuAttentionIsa::kAvx2)) return 0.0;
  std::vector<float> sink(pool.num_threads());
  const double start = Seconds();
  pool.Run([&](int thread) {
    sink[thread] = wide ? MultiplyAdds512(kRounds) : MultiplyAdds256(kRounds);
  });
  return kRounds * 12.0 * (wide ? 32 : 16) * pool.num_threads() / (Seconds() - start);
#else
  (void)pool;
  return 0.0;
#endif
}

typedef int64_t Line __attribute__((vector_size(64)));

// Sum of pieces of memory in the order given; `ahead` > 0 asks for the pieces that many turns
// before theirs. Loads are as wide as the machine has them: with narrow ones this loop, not
// memory, would be the limit.
#if defined(__x86_64__)
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
int64_t
SumPieces(const Line* const* pieces, int64_t count, int64_t lines, int64_t ahead) {
  Line sum[4] = {};
  for (int64_t i = 0; i < count; ++i) {
    const Line* next = ahead > 0 && i + ahead < count ? pieces[i + ahead] : nullptr;
    for (int64_t line = 0; line + 4 <= lines; line += 4) {
      for (int j = 0; j < 4 && next != nullptr; ++j) __builtin_prefetch(next + line + j, 0, 2);
      for (int j = 0; j < 4; ++j) sum[j] += pieces[i][line + j];
    }
  }
  const Line total = sum[0] + sum[1] + sum[2] + sum[3];
  return total[0] + total[7];
}

// Bytes per second of such a sum, a share of the pieces per thread.
double MeasurePieces(ThreadPool& pool, const std::vector<const Line*>& pieces, int64_t piece_bytes,
                     int64_t ahead) {
  std::vector<int64_t> sums(pool.num_threads());  // used, so that nothing is optimised away
  const auto count = static_cast<int64_t>(pieces.size());
  const double start = Seconds();
  pool.Run([&](int thread) {
    const int64_t begin = count * thread / pool.num_threads();
    const int64_t end = count * (thread + 1) / pool.num_threads();
    sums[thread] = SumPieces(pieces.data() + begin, end - begin, piece_bytes / 64, ahead);
  });
  const double seconds = Seconds() - start;
  used = std::accumulate(sums.begin(), sums.end(), int64_t{0});
  return static_cast<double>(piece_bytes * count) / seconds;
}

struct Unmap {
  void* begin = nullptr;
  size_t bytes = 0;
  void operator()(void*) const { munmap(begin, bytes); }
};
using Pages = std::unique_ptr<void, Unmap>;
// On huge pages from the first byte to the last, as the server's KV pool advises.
Pages MapPages(int64_t bytes) {
  constexpr size_t kHuge = size_t{2} << 20;
  const size_t all = (static_cast<size_t>(bytes) + 2 * kHuge - 1) / kHuge * kHuge;
  void* begin = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) std::abort();
  madvise(begin, all, MADV_HUGEPAGE);
  const uintptr_t aligned = (reinterpret_cast<uintptr_t>(begin) + kHuge - 1) / kHuge * kHuge;
  return Pages(reinterpret_cast<void*>(aligned), Unmap{begin, all});
}

struct Shape {
  int32_t num_queries = 1;
  int32_t length = 0;
  int32_t block_size = 16;
  DType kv_dtype = DType::kFloat16;
  CpuAttentionPrecision precision = CpuAttentionPrecision::kFloat32;
};

// One sequence, several times over in memory, so that the caches never hold what is read next.
// Blocks lie as in the server's pool: [keys, values][head][token][dimension], in shuffled order.
class Problem {
 public:
  Problem(const Shape& shape, ThreadPool& pool)
      : pool_(pool), options_{.precision = shape.precision} {
    const int64_t blocks = (shape.length + shape.block_size - 1) / shape.block_size;
    const int64_t token = int64_t{kKvHeads} * kHeadDim;
    const int64_t bytes = blocks * shape.block_size * token * 2;
    kv_bytes_ = int64_t{shape.length} * token * 2 * 2;
    num_sets_ = shape.num_queries > 1 ? 1 : std::max<int64_t>(1, 2 * kLargerThanCaches / kv_bytes_);
    kv_ = MapPages(num_sets_ * 2 * bytes);
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> noise(4099);
    for (uint16_t& x : noise) {
      x = shape.kv_dtype == DType::kFloat16 ? FloatToFloat16(normal(rng))
                                            : FloatToBFloat16(normal(rng));
    }
    for (int64_t i = 0; i < num_sets_ * bytes; ++i) {
      static_cast<uint16_t*>(kv_.get())[i] = noise[i % 4099];
    }
    table_.resize(num_sets_ * blocks);
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), rng);
    blocks_ = blocks;
    q_.resize(int64_t{shape.num_queries} * kQueryHeads * kHeadDim);
    for (float& x : q_) x = normal(rng);
    o_.resize(q_.size());
    cu_seqlens_ = {0, shape.num_queries};
    length_ = shape.length;

    params_.q = q_.data();
    params_.o = o_.data();
    params_.q_token_stride = params_.o_token_stride = kQueryHeads * kHeadDim;
    params_.q_head_stride = params_.o_head_stride = kHeadDim;
    const int64_t head = int64_t{shape.block_size} * kHeadDim;
    params_.k = kv_.get();
    params_.v = static_cast<uint16_t*>(kv_.get()) + kKvHeads * head;
    params_.k_block_stride = params_.v_block_stride = 2 * kKvHeads * head;
    params_.k_token_stride = params_.v_token_stride = kHeadDim;
    params_.k_head_stride = params_.v_head_stride = head;
    params_.cu_seqlens_q = cu_seqlens_.data();
    params_.seq_lens = &length_;
    params_.block_table_stride = blocks;
    params_.num_seqs = 1;
    params_.num_q_heads = kQueryHeads;
    params_.num_kv_heads = kKvHeads;
    params_.head_dim = kHeadDim;
    params_.block_size = shape.block_size;
    params_.kv_dtype = shape.kv_dtype;
    params_.scale = 0.125f;
    const int64_t need = CpuAttentionWorkspaceBytes(params_, 1, shape.num_queries, shape.length,
                                                    pool.num_threads(), options_);
    workspace_ = MapPages(need);
    workspace_bytes_ = need;
  }

  // Seconds of one call, over all sets.
  double Run() {
    const double start = Seconds();
    for (int64_t set = 0; set < num_sets_; ++set) {
      params_.block_table = table_.data() + set * blocks_;
      const KernelStatus status = AttentionCpu(
          pool_, params_, options_,
          {static_cast<std::byte*>(workspace_.get()), static_cast<size_t>(workspace_bytes_)});
      if (status != KernelStatus::kOk) std::abort();
    }
    return (Seconds() - start) / static_cast<double>(num_sets_);
  }
  int64_t kv_bytes() const { return kv_bytes_; }

  // Bytes per second of reading the same memory from its first byte to its last (STREAM-like).
  double ReadInOrder() {
    constexpr int64_t kPiece = int64_t{1} << 20;
    std::vector<const Line*> pieces;
    for (int64_t at = 0; at + kPiece <= num_sets_ * kv_bytes_; at += kPiece) {
      pieces.push_back(LineAt(at));
    }
    return MeasurePieces(pool_, pieces, kPiece, 0);
  }
  // The same for the pieces that lie together in the order in which attention needs them, asked
  // for early, without its arithmetic: the most that a walk through shuffled blocks can reach.
  double ReadInTurns() {
    constexpr int64_t kBytesAhead = 16384;
    const int64_t piece = int64_t{params_.block_size} * kHeadDim * 2;
    std::vector<const Line*> pieces;
    for (const int32_t block : table_) {
      for (int part = 0; part < 2 * kKvHeads; ++part) {
        pieces.push_back(LineAt((int64_t{block} * 2 * kKvHeads + part) * piece));
      }
    }
    return MeasurePieces(pool_, pieces, piece, std::max<int64_t>(1, kBytesAhead / piece));
  }

 private:
  const Line* LineAt(int64_t byte) const {
    return reinterpret_cast<const Line*>(static_cast<const char*>(kv_.get()) + byte);
  }

  ThreadPool& pool_;
  CpuAttentionOptions options_;
  AttentionParams params_;
  Pages kv_, workspace_;
  std::vector<int32_t> table_;
  std::vector<float> q_, o_;
  std::vector<int32_t> cu_seqlens_;
  int32_t length_ = 0;
  int64_t blocks_ = 0, num_sets_ = 1, kv_bytes_ = 0, workspace_bytes_ = 0;
};

const char* PrecisionName(CpuAttentionPrecision precision) {
  return precision == CpuAttentionPrecision::kFloat32 ? "float32" : "bfloat16";
}

nlohmann::json MeasureDecode(const Shape& shape, ThreadPool& pool, int rounds) {
  Problem problem(shape, pool);
  problem.Run();
  double best = 1e9;
  double in_order = 0.0;
  double in_turns = 0.0;
  for (int round = 0; round < rounds; ++round) {
    best = std::min(best, problem.Run());
    in_order = std::max(in_order, problem.ReadInOrder());
    in_turns = std::max(in_turns, problem.ReadInTurns());
  }
  const double rate = static_cast<double>(problem.kv_bytes()) / best;
  std::printf(
      "decode  %7d tokens, block %3d, KV %-8s %-8s: %6.2f GB/s of %6.2f = %3.0f %%, of %6.2f in "
      "shuffled blocks = %3.0f %%, %9.1f us\n",
      shape.length, shape.block_size, std::string(DTypeName(shape.kv_dtype)).c_str(),
      PrecisionName(shape.precision), rate / 1e9, in_order / 1e9, 100 * rate / in_order,
      in_turns / 1e9, 100 * rate / in_turns, best * 1e6);
  return {{"section", "decode"},
          {"context", shape.length},
          {"block_size", shape.block_size},
          {"kv_dtype", DTypeName(shape.kv_dtype)},
          {"precision", PrecisionName(shape.precision)},
          {"us", best * 1e6},
          {"kv_gbs", rate / 1e9},
          {"read_gbs", in_order / 1e9},
          {"pct_read", 100 * rate / in_order},
          {"read_shuffled_gbs", in_turns / 1e9},
          {"pct_read_shuffled", 100 * rate / in_turns}};
}

nlohmann::json MeasurePrefill(const Shape& shape, ThreadPool& pool, int rounds) {
  Problem problem(shape, pool);
  problem.Run();
  double best = 1e9;
  double peak = 0.0;
  for (int round = 0; round < rounds; ++round) {
    best = std::min(best, problem.Run());
    peak = std::max(peak, MeasureMultiplyAdds(pool));
  }
  const double n = shape.num_queries;
  const double keys = n * shape.length - n * (n - 1) / 2;  // that the mask keeps
  const double rate = 4.0 * kQueryHeads * kHeadDim * keys / best;
  std::printf("prefill %7d of %d, KV %-8s %-8s: %6.1f GFLOP/s of %6.1f f32 = %3.0f %%, %9.2f ms\n",
              shape.num_queries, shape.length, std::string(DTypeName(shape.kv_dtype)).c_str(),
              PrecisionName(shape.precision), rate / 1e9, peak / 1e9,
              peak > 0 ? 100 * rate / peak : 0.0, best * 1e3);
  return {{"section", "prefill"},
          {"queries", shape.num_queries},
          {"context", shape.length},
          {"kv_dtype", DTypeName(shape.kv_dtype)},
          {"precision", PrecisionName(shape.precision)},
          {"ms", best * 1e3},
          {"gflops", rate / 1e9},
          {"fma_gflops", peak / 1e9}};
}

int Main(int argc, char** argv) {
  int threads = 2;
  int rounds = 7;
  bool quick = false;
  std::string json_file;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--quick") {
      quick = true;
    } else if (flag == "--cpu-time") {
      use_cpu_time = true;
    } else if (i + 1 < argc && flag == "--threads") {
      threads = std::max(1, std::atoi(argv[++i]));
    } else if (i + 1 < argc && flag == "--rounds") {
      rounds = std::max(1, std::atoi(argv[++i]));
    } else if (i + 1 < argc && flag == "--json") {
      json_file = argv[++i];
    } else {
      std::fprintf(
          stderr,
          "bench_cpu_attention [--threads N] [--rounds N] [--json FILE] [--quick] [--cpu-time]\n");
      return 2;
    }
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // rows as they come, into a pipe too
  num_clocks = threads;
  ThreadPool pool(threads);
  nlohmann::json records = nlohmann::json::array();
  std::vector<CpuAttentionPrecision> precisions = {CpuAttentionPrecision::kFloat32};
  if (CpuAttentionHasBFloat16()) precisions.push_back(CpuAttentionPrecision::kBFloat16);
  for (const CpuAttentionPrecision precision : precisions) {
    for (const int32_t length : quick ? std::vector{8192} : std::vector{2048, 8192, 100000}) {
      for (const int32_t block_size : {16, 64}) {
        for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
          if (dtype == DType::kBFloat16 && length != 8192) continue;
          records.push_back(MeasureDecode({1, length, block_size, dtype, precision}, pool, rounds));
        }
      }
    }
    for (const int32_t length : quick ? std::vector{512} : std::vector{512, 4096}) {
      records.push_back(
          MeasurePrefill({length, length, 16, DType::kFloat16, precision}, pool, rounds));
    }
    if (!quick) {
      records.push_back(MeasurePrefill({512, 8192, 16, DType::kFloat16, precision}, pool, rounds));
    }
  }
  if (!json_file.empty()) {
    const nlohmann::json out = {{"meta",
                                 {{"threads", threads},
                                  {"rounds", rounds},
                                  {"clock", use_cpu_time ? "processor" : "elapsed"}}},
                                {"records", records}};
    std::ofstream(json_file) << out.dump(1) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) { return longspan::Main(argc, argv); }
