// The traps of attention kernels that a CPU can fall into, each by name, most as "the same bits":
// numbers as in the kernel guide. (10, 11, 14, 16, 21 are about devices and 8-bit caches.)
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/attention/attention_cpu.h"
#include "kernels/attention/attention_tiling.h"
#include "tests/support/attention_oracle.h"
#include "tests/support/paged_attention.h"

namespace longspan {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class AttentionTraps : public testing::TestWithParam<CpuAttentionIsa> {
 protected:
  CpuAttentionOptions Options(int num_splits = 0) const {
    return {.num_splits = num_splits, .isa = GetParam()};
  }
  void ExpectOracle(PagedAttention& problem, int num_splits = 0, double tolerance = 1e-5) {
    ASSERT_TRUE(problem.Run(pool_, Options(num_splits)));
    EXPECT_EQ(
        CompareWithOracle(problem.params(), AttentionOracle(problem.params()), tolerance, 1e-5),
        "");
  }
  std::vector<std::byte> Bits(const AttentionCase& spec, int num_splits = 0) {
    PagedAttention problem(spec);
    EXPECT_TRUE(problem.Run(pool_, Options(num_splits)));
    return problem.AllBits();
  }
  ThreadPool pool_{3};
};

TEST_P(AttentionTraps, Trap_01_PoisonBehindTheLengthGivesTheSameBitsAsZeros) {
  for (const int32_t length : {1, 63, 64, 65, 511, 513, 577}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      AttentionCase spec;
      spec.q_lens = {std::min(length, 9)};
      spec.kv_lens = {length};
      spec.kv_dtype = dtype;
      spec.block_size = 24;
      spec.fill = KvFill::kZeros;
      const auto zeros = Bits(spec);
      spec.fill = KvFill::kNan;
      EXPECT_EQ(Bits(spec), zeros) << length;
      spec.fill = KvFill::kInf;
      EXPECT_EQ(Bits(spec), zeros) << length;
    }
  }
}

TEST_P(AttentionTraps, Trap_01_PoisonBeforeTheWindowGivesTheSameBitsAsZeros) {
  AttentionCase spec;
  spec.kv_lens = {700};
  spec.window_left = 100;
  const auto expected = Bits(spec);
  PagedAttention problem(spec);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int32_t position = 0; position < 599; ++position) {
    for (int32_t head = 0; head < 3; ++head) {
      problem.SetKv(0, position, head, false, nan);
      problem.SetKv(0, position, head, true, nan);
    }
  }
  for (int32_t block = 0; block < 599 / 16; ++block) {
    problem.block_table(0)[block] = std::numeric_limits<int32_t>::min();
  }
  ASSERT_TRUE(problem.Run(pool_, Options()));
  EXPECT_EQ(problem.AllBits(), expected);
}

TEST_P(AttentionTraps, Trap_02_PartsWithoutAVisibleKeyMergeToNothing) {
  AttentionCase spec;
  spec.q_lens = {1030};  // with fewer keys: the first rows see no key in any part, the last all
  spec.kv_lens = {600};
  spec.num_q_heads = spec.num_kv_heads = 1;
  spec.head_dim = 16;
  spec.window_left = 40;  // most rows see one part of two, some both
  PagedAttention problem(spec);
  ExpectOracle(problem, 2);
}

TEST_P(AttentionTraps, Trap_03_AnEmptyRowHasLseMinusInfinity) {
  AttentionCase spec;
  spec.q_lens = {1, 5};
  spec.kv_lens = {0, 3};
  PagedAttention problem(spec);
  ASSERT_TRUE(problem.Run(pool_, Options()));
  EXPECT_EQ(problem.lse(0, 8), -kInf);
  EXPECT_EQ(problem.lse(1, 8), -kInf);
  EXPECT_EQ(problem.lse(2, 8), -kInf);
  EXPECT_TRUE(std::isfinite(problem.lse(3, 8)));
}

TEST_P(AttentionTraps, Trap_04_LseIsANaturalLogarithm) {
  AttentionCase spec;
  spec.kv_lens = {5};
  spec.scale = 0.0f;
  PagedAttention problem(spec);
  ASSERT_TRUE(problem.Run(pool_, Options()));
  EXPECT_NEAR(problem.lse(0, 0), std::log(5.0f), 1e-6f);
}

TEST_P(AttentionTraps, Trap_05_HugeLogitsDoNotBeatTheMask) {
  for (const float sign : {1.0f, -1.0f}) {
    AttentionCase spec;
    spec.q_lens = {70};
    spec.kv_lens = {700};
    spec.magnitude = 1e5f;
    spec.scale = sign;
    spec.window_left = 65;
    spec.num_q_heads = spec.num_kv_heads = 1;
    spec.kv_dtype = DType::kFloat32;
    PagedAttention problem(spec);
    ASSERT_TRUE(problem.Run(pool_, Options()));
    // Such logits are rounded to 0.02: only the winner counts, and it is a visible key's value.
    const OracleOutput oracle = AttentionOracle(problem.params());
    EXPECT_EQ(CompareWithOracle(problem.params(), oracle, 2e-2, 1e-5), "");
  }
}

TEST_P(AttentionTraps, Trap_06_NeighboursOfEmptySequencesKeepTheirRows) {
  AttentionCase spec;
  spec.q_lens = {0, 3, 0, 1, 2, 0};
  spec.kv_lens = {0, 1300, 20, 0, 700, 0};
  for (const int splits : {0, 1, 3}) {
    PagedAttention problem(spec);
    ExpectOracle(problem, splits);
  }
}

// A pool of 5 GB and more of address space, of which a few pages are ever touched.
TEST_P(AttentionTraps, Case_038_Trap_07_OffsetsBeyond32BitsReachTheRightBlock) {
  const int64_t bytes = int64_t{24} << 30;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no 24 GiB of address space";
  AttentionCase spec;
  spec.num_q_heads = spec.num_kv_heads = 1;
  spec.head_dim = 128;
  spec.kv_lens = {33};
  spec.fill = KvFill::kZeros;
  PagedAttention problem(spec);
  ASSERT_TRUE(problem.Run(pool_, Options()));
  const auto expected = problem.AllBits();
  AttentionParams& params = problem.params();
  const auto* k = static_cast<const uint16_t*>(params.k);
  const auto* v = static_cast<const uint16_t*>(params.v);
  const std::vector<int32_t> ids(problem.block_table(0), problem.block_table(0) + 3);
  auto* pool_k = static_cast<uint16_t*>(memory);
  auto* pool_v = pool_k + (bytes / 4);
  const int64_t block = 16 * 128;
  for (const int64_t middle : {int64_t{1} << 20, int64_t{1} << 21, int64_t{5} << 19}) {
    // Blocks one below, at and one above a power of two of elements (2^31 and 2^32 among them).
    for (int i = 0; i < 3; ++i) {
      std::memcpy(pool_k + (middle - 1 + i) * block, k + ids[i] * block, block * 2);
      std::memcpy(pool_v + (middle - 1 + i) * block, v + ids[i] * block, block * 2);
      problem.block_table(0)[i] = static_cast<int32_t>(middle - 1 + i);
    }
    params.k = pool_k;
    params.v = pool_v;
    ASSERT_TRUE(problem.Run(pool_, Options()));
    EXPECT_EQ(problem.AllBits(), expected) << middle;
  }
  munmap(memory, bytes);
}

TEST_P(AttentionTraps, Case_038_Trap_07_RowOffsetsOfQueriesBeyond32Bits) {
  // A token stride so large that token 3 starts behind 2^32 elements.
  const int64_t stride = (int64_t{1} << 32) / 3 + 64;
  const int64_t bytes = 4 * stride * 4;
  void* memory = mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no 140 GiB of address space";
  AttentionCase spec;
  spec.q_lens = {4};
  spec.kv_lens = {30};
  PagedAttention problem(spec);
  ASSERT_TRUE(problem.Run(pool_, Options()));
  AttentionParams params = problem.params();
  const auto* q = static_cast<const float*>(params.q);
  auto* far_q = static_cast<float*>(memory);
  float* far_o = far_q + bytes / 4;
  for (int64_t token = 0; token < 4; ++token) {
    std::memcpy(far_q + token * stride, q + token * params.q_token_stride, 9 * 64 * 4);
  }
  params.q = far_q;
  params.o = far_o;
  params.lse = nullptr;
  params.q_token_stride = params.o_token_stride = stride;
  params.o_head_stride = 64;
  const int64_t size = CpuAttentionWorkspaceBytes(params, 1, 4, 30, pool_.num_threads());
  std::vector<std::byte> workspace(size + 64);
  std::byte* aligned = workspace.data();
  while (reinterpret_cast<uintptr_t>(aligned) % 64 != 0) ++aligned;
  ASSERT_EQ(AttentionCpu(pool_, params, Options(), {aligned, static_cast<size_t>(size)}),
            KernelStatus::kOk);
  for (int64_t token = 0; token < 4; ++token) {
    for (int32_t head = 0; head < 9; ++head) {
      for (int32_t d = 0; d < 64; ++d) {
        ASSERT_EQ(far_o[token * stride + head * 64 + d], problem.output(token, head, d));
      }
    }
  }
  munmap(memory, 2 * bytes);
}

// The table's last used entry ends its page; the next one is not readable.
TEST_P(AttentionTraps, Trap_08_NoTableEntryBehindTheLengthIsRead) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  void* memory =
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(mprotect(static_cast<std::byte*>(memory) + page, page, PROT_NONE), 0);
  for (const int32_t length : {1, 16, 17, 512, 1025}) {
    AttentionCase spec;
    spec.kv_lens = {length};
    PagedAttention problem(spec);
    const int32_t blocks = (length + 15) / 16;
    auto* table = reinterpret_cast<int32_t*>(static_cast<std::byte*>(memory) + page) - blocks;
    std::copy_n(problem.block_table(0), blocks, table);
    const auto expected = Bits(spec);
    problem.params().block_table = table;
    problem.params().block_table_stride = blocks;
    ASSERT_TRUE(problem.Run(pool_, Options()));
    EXPECT_EQ(problem.AllBits(), expected);
  }
  munmap(memory, 2 * page);
}

// The last key's row ends its page: a vector load past head_dim would fault.
TEST_P(AttentionTraps, Trap_08_NoElementBehindTheLastRowIsRead) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    AttentionCase spec;
    spec.num_q_heads = spec.num_kv_heads = 1;
    spec.head_dim = 72;
    spec.block_size = 1;
    spec.kv_lens = {3};
    spec.kv_dtype = dtype;
    spec.spare_blocks = 0;
    PagedAttention problem(spec);
    const int64_t row = 72 * DTypeBytes(dtype);
    std::byte* memory[2];
    for (std::byte*& map : memory) {
      map = static_cast<std::byte*>(
          mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      ASSERT_NE(map, MAP_FAILED);
      ASSERT_EQ(mprotect(map + page, page, PROT_NONE), 0);
    }
    std::memcpy(memory[0] + page - 3 * row, problem.params().k, 3 * row);
    std::memcpy(memory[1] + page - 3 * row, problem.params().v, 3 * row);
    const auto expected = Bits(spec);
    problem.params().k = memory[0] + page - 3 * row;
    problem.params().v = memory[1] + page - 3 * row;
    ASSERT_TRUE(problem.Run(pool_, Options()));
    EXPECT_EQ(problem.AllBits(), expected);
    for (std::byte* map : memory) munmap(map, 2 * page);
  }
}

TEST_P(AttentionTraps, Trap_12_NothingButZeroLengthsIsLegal) {
  AttentionCase spec;
  spec.q_lens = {};
  spec.kv_lens = {};
  PagedAttention none(spec);
  EXPECT_TRUE(none.Run(pool_, Options()));
  spec.q_lens = {0, 0, 0};
  spec.kv_lens = {0, 0, 0};
  for (const int splits : {0, 4}) {
    PagedAttention zeros(spec);
    EXPECT_TRUE(zeros.Run(pool_, Options(splits)));
  }
}

TEST_P(AttentionTraps, Trap_13_ARowsBitsDoNotDependOnItsNeighbours) {
  std::mt19937 rng(5);
  AttentionCase alone;
  alone.q_lens = {1};
  alone.kv_lens = {1300};
  alone.content = {42};
  const auto expected = Bits(alone);
  for (const int32_t batch : {2, 5, 32}) {
    AttentionCase spec;
    spec.q_lens.clear();
    spec.kv_lens.clear();
    for (int32_t i = 0; i < batch; ++i) {
      const int32_t q_len = static_cast<int32_t>(rng() % 4);
      spec.q_lens.push_back(q_len);
      spec.kv_lens.push_back(q_len + static_cast<int32_t>(rng() % 200));
      spec.content.push_back(static_cast<uint32_t>(100 + i));
    }
    const int32_t mine = static_cast<int32_t>(rng()) & (batch - 1);
    const int32_t place = std::abs(mine) % batch;
    spec.q_lens[place] = 1;
    spec.kv_lens[place] = 1300;
    spec.content[place] = 42;
    spec.block_order_seed = batch;
    PagedAttention problem(spec);
    ASSERT_TRUE(problem.Run(pool_, Options()));
    EXPECT_EQ(problem.RowBits(place, 0, 1), expected) << batch;
  }
}

TEST_P(AttentionTraps, Trap_13_BitsDoNotDependOnSplitsThreadsOrBlocks) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    AttentionCase spec;
    spec.q_lens = {1, 40};
    spec.kv_lens = {2100, 600};
    spec.kv_dtype = dtype;
    const auto expected = Bits(spec);
    for (const int splits : {1, 2, 3, 4, 7, 16}) EXPECT_EQ(Bits(spec, splits), expected) << splits;
    for (const int threads : {1, 2, 5}) {
      ThreadPool pool(threads);
      PagedAttention problem(spec);
      ASSERT_TRUE(problem.Run(pool, Options()));
      EXPECT_EQ(problem.AllBits(), expected) << threads;
    }
    for (const int32_t block_size : {1, 3, 4, 16, 64, 100, 256}) {
      spec.block_size = block_size;
      spec.block_order_seed = block_size;
      spec.heads_first = block_size % 2 == 0;
      EXPECT_EQ(Bits(spec), expected) << block_size;
    }
  }
}

TEST_P(AttentionTraps, Trap_15_ScaleOfQueriesIsAppliedOnceAndToScoresOnly) {
  AttentionCase spec;
  spec.q_lens = {3};
  spec.kv_lens = {50};
  spec.magnitude = 7.0f;
  spec.scale = 0.31f;
  PagedAttention problem(spec);
  ExpectOracle(problem);
}

TEST_P(AttentionTraps, Trap_17_ASinkCountsOnceWhateverTheSplits) {
  AttentionCase spec;
  spec.kv_lens = {3700};
  spec.sinks = true;
  for (const float sink : {-kInf, 0.0f, 20.0f, 1e4f}) {
    std::vector<std::byte> expected;
    for (const int splits : {1, 2, 7}) {
      PagedAttention problem(spec);
      std::fill_n(problem.sinks(), 9, sink);
      ExpectOracle(problem, splits);
      if (splits == 1) expected = problem.AllBits();
      EXPECT_EQ(problem.AllBits(), expected) << sink << " " << splits;
    }
  }
}

TEST_P(AttentionTraps, Trap_18_EveryWindowOfEveryShortShape) {
  // All (q_len, L, l, r) up to a bound, one value per key: the output says which keys were seen.
  AttentionCase spec;
  spec.num_q_heads = spec.num_kv_heads = 1;
  spec.head_dim = 16;
  spec.scale = 0.0f;
  spec.kv_dtype = DType::kFloat32;
  spec.block_size = 5;
  for (const int32_t length : {1, 2, 7, 12}) {
    for (int32_t q_len = 1; q_len <= length + 2; q_len += 2) {
      spec.q_lens = {q_len};
      spec.kv_lens = {length};
      PagedAttention problem(spec);
      for (int32_t left = -1; left <= 12; ++left) {
        for (int32_t right = -1; right <= 12; ++right) {
          for (const bool causal : {false, true}) {
            AttentionParams& params = problem.params();
            params.window_left = left;
            params.window_right = right;
            params.causal = causal;
            ASSERT_TRUE(problem.Run(pool_, Options()));
            ASSERT_EQ(CompareWithOracle(params, AttentionOracle(params), 1e-5, 1e-5), "")
                << q_len << " " << length << " " << left << " " << right << " " << causal;
          }
        }
      }
    }
  }
}

TEST_P(AttentionTraps, Trap_18_WindowsAroundATileAndAPart) {
  for (const int32_t left : {62, 63, 64, 65, 127, 128, 511, 512, 513}) {
    AttentionCase spec;
    spec.q_lens = {7};
    spec.kv_lens = {1100};
    spec.window_left = left;
    PagedAttention problem(spec);
    ExpectOracle(problem);
  }
}

TEST_P(AttentionTraps, Trap_19_RandomChunksGiveTheBitsOfOneShot) {
  std::mt19937 rng(9);
  for (const bool windowed : {false, true}) {
    AttentionCase spec;
    spec.q_lens = {700};
    spec.kv_lens = {700};
    spec.content = {3};
    spec.num_q_heads = 6;
    spec.num_kv_heads = 2;
    spec.head_dim = 32;
    if (windowed) spec.window_left = 150;
    const auto whole = Bits(spec);
    for (const int32_t largest : {16, 64, 400}) {
      std::vector<std::byte> chunked;
      for (int32_t done = 0; done < 700;) {
        const int32_t chunk =
            std::min<int32_t>(700 - done, 1 + static_cast<int32_t>(rng() % largest));
        done += chunk;
        spec.q_lens = {chunk};
        spec.kv_lens = {done};
        const auto bits = Bits(spec);
        chunked.insert(chunked.end(), bits.begin(), bits.end());
      }
      EXPECT_EQ(chunked, whole) << largest;
    }
  }
}

TEST_P(AttentionTraps, Trap_20_OddGroupsWithSeveralQueries) {
  for (const int32_t group : {1, 2, 3, 5, 6, 7, 8, 16, 32}) {
    for (const int32_t q_len : {1, 2, 4, 9}) {
      AttentionCase spec;
      spec.num_q_heads = 2 * group;
      spec.num_kv_heads = 2;
      spec.head_dim = 16;
      spec.q_lens = {q_len};
      spec.kv_lens = {70};
      for (const bool causal : {false, true}) {
        for (const int32_t window : {-1, 9}) {
          spec.causal = causal;
          spec.window_left = window;
          PagedAttention problem(spec);
          ExpectOracle(problem);
        }
      }
    }
  }
}

TEST_P(AttentionTraps, Trap_22_TokensBehindTheBatchAreNotWritten) {
  AttentionCase
      spec;  // Run() has canary rows before and behind; a step may hold more rows than it uses
  spec.q_lens = {130, 1};
  spec.kv_lens = {130, 600};
  PagedAttention problem(spec);
  EXPECT_TRUE(problem.Run(pool_, Options()));
}

TEST_P(AttentionTraps, Trap_24_CapacityOfTheTableChangesNothing) {
  AttentionCase spec;
  spec.kv_lens = {100};
  const auto expected = Bits(spec);
  spec.extra_table_entries = 1 << 16;  // 1M tokens
  EXPECT_EQ(Bits(spec), expected);
}

TEST_P(AttentionTraps, Trap_26_SoftcapDoesNotUnmask) {
  for (const int mask : {0, 1, 2}) {
    AttentionCase spec;
    spec.q_lens = {20};
    spec.kv_lens = {80};
    spec.softcap = 2.0f;
    spec.causal = mask != 1;
    if (mask == 2) spec.window_left = 5;
    PagedAttention problem(spec);
    ExpectOracle(problem);
  }
}

TEST_P(AttentionTraps, Trap_27_EveryBlockSize) {
  for (int32_t block_size = 1; block_size <= 256; block_size += block_size < 20 ? 1 : 13) {
    AttentionCase spec;
    spec.kv_lens = {300};
    spec.num_q_heads = 3;
    spec.num_kv_heads = 1;
    spec.head_dim = 16;
    spec.block_size = block_size;
    PagedAttention problem(spec);
    ExpectOracle(problem);
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, AttentionTraps, testing::ValuesIn(SupportedAttentionIsas()),
                         [](const auto& param_info) {
                           return std::string(AttentionIsaName(param_info.param));
                         });

TEST(AttentionTraps, Trap_23_PlanAndKernelShareOneTileAndPart) {
  static_assert(kAttentionPartTokens % kAttentionTileTokens == 0);
  // Trap 25 (an in-place merge) cannot arise: the merge is internal and only ever adds a part to a
  // total.
  AttentionCase spec;
  spec.kv_lens = {kAttentionPartTokens * 3 + 1};
  ThreadPool pool(2);
  PagedAttention problem(spec);
  ASSERT_TRUE(problem.Run(pool, {.num_splits = 100}));
  EXPECT_EQ(CompareWithOracle(problem.params(), AttentionOracle(problem.params()), 1e-5, 1e-5), "");
}

}  // namespace
}  // namespace longspan
