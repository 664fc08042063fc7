// Traps of the kernel guide, graphs and streams, for every kind of GPU attention kernel through the
// drop-in's C functions. Traps that only one line can fall into are in the lines' own tests.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "tests/kernels/attention/attention_kernel.h"
#include "tests/kernels/attention/walled_device_memory.h"

namespace longspan {
namespace {

INSTANTIATE_TEST_SUITE_P(Every, AttentionKernel, testing::ValuesIn(kAttentionKernels),
                         AttentionKernel::Name);

// For kinds whose rows do not depend on where a plan cuts.
class PrefillKernel : public AttentionKernel {};
INSTANTIATE_TEST_SUITE_P(Every, PrefillKernel,
                         testing::Values(kAttentionKernels[1], kAttentionKernels[3]),
                         AttentionKernel::Name);

// The first new lengths of a batch: its last sequences are gone, their rows are nobody's.
std::vector<int32_t> CuSeqlensOfFirst(PagedAttention& problem, int32_t num_seqs) {
  const AttentionParams& p = problem.params();
  std::vector<int32_t> cu(p.cu_seqlens_q, p.cu_seqlens_q + p.num_seqs + 1);
  std::fill(cu.begin() + num_seqs, cu.end(), cu[num_seqs]);
  return cu;
}

TEST_P(AttentionKernel, Trap_02_PartsWithoutAVisibleKeyMergeToNothing) {
  // Of the first sequence 100 rows see no key; of the second, rows see different tiles.
  AttentionCase spec = Case({700, 16}, {600, 8200});
  spec.head_dim = 64;
  spec.num_q_heads = 2;
  spec.num_kv_heads = 1;
  spec.window_left = 40;
  ExpectOracle(spec);
  spec.window_left = -1;
  spec.q_lens = {100, 16};
  spec.kv_lens = {3, 9};
  ExpectOracle(spec);
}

TEST_P(AttentionKernel, Trap_03_Trap_04_LseIsMinusInfinityWithoutKeysAndANaturalLogarithm) {
  AttentionCase spec = Case({1, 5, 2, 1}, {0, 3, 5, 1000});
  spec.magnitude = 0.0f;  // all logits 0: lse = ln of the number of keys
  PagedAttention problem(spec);
  AttnGpuProblem device(problem, GetParam().options());
  ASSERT_EQ(Run(device), "");
  const float none = -std::numeric_limits<float>::infinity();
  const float expected[] = {none,           none,           none,
                            0.0f,           std::log(2.0f), std::log(3.0f),
                            std::log(4.0f), std::log(5.0f), std::log(1000.0f)};
  for (int64_t token = 0; token < 9; ++token) {
    for (int32_t head = 0; head < spec.num_q_heads; ++head) {
      if (std::isfinite(expected[token])) {
        EXPECT_NEAR(problem.lse(token, head), expected[token], 1e-5f) << token;
        continue;
      }
      EXPECT_EQ(problem.lse(token, head), none) << token;
      for (int32_t d = 0; d < spec.head_dim; ++d) ASSERT_EQ(problem.output(token, head, d), 0.0f);
    }
  }
}

TEST_P(AttentionKernel, Trap_05_HugeLogitsDoNotBeatTheMask) {
  AttentionCase spec = Case({4}, {700});
  spec.magnitude = 1e5f;
  spec.window_left = 65;
  PagedAttention problem(spec);
  AttnGpuProblem device(problem, GetParam().options());
  ASSERT_EQ(Run(device), "");
  // Such logits are rounded to 0.02: only the winner counts, and it is a visible key's value.
  EXPECT_EQ(CompareWithOracle(problem.params(), AttentionOracle(problem.params()), 3e-2, 1e-5), "");
}

TEST_P(AttentionKernel, Trap_06_Trap_09_EmptyAndSplitSequencesLeaveTheirNeighboursAlone) {
  const std::vector<int32_t> few = {0, 2, 1, 0, 3, 1, 0, 1, 0};
  const std::vector<int32_t> many = {0, 40, 1, 0, 3, 200, 0, 1, 0};
  AttentionCase spec =
      Case(GetParam().is_decode() ? few : many, {0, 9000, 3, 0, 4097, 70, 5, 0, 0});
  spec.num_q_heads = 2;
  spec.num_kv_heads = 1;
  ExpectOracle(spec);
  spec.heads_first = true;
  spec.window_left = 4000;
  ExpectOracle(spec);
}

// More elements than 2^32 in a pool; the sequence's blocks at its end.
TEST_P(AttentionKernel, Trap_07_BlocksBeyond32BitOffsets) {
  AttentionCase spec = Case({2}, {33});
  spec.num_kv_heads = 1;
  spec.num_q_heads = 4;
  const auto expected = Bits(spec);
  PagedAttention problem(spec);
  const AttentionParams& p = problem.params();
  const int64_t block = p.k_block_stride;  // elements
  const int64_t num_blocks = ((int64_t{1} << 32) + (int64_t{1} << 28)) / block;
  auto memory = DeviceBuffer::Allocate(2 * num_blocks * block * 2);
  if (!memory) GTEST_SKIP() << "no 18 GB of device memory";
  AttnGpuProblem device(problem, GetParam().options());
  const PagedAttention::Memory host = problem.memory();
  const auto size = static_cast<size_t>(block * 2);
  for (int i = 0; i < 3; ++i) {
    const int64_t from = problem.block_table(0)[i] * block * 2;
    const int64_t to = (num_blocks - 1 - 7 * i) * block * 2;
    const std::span<const std::byte> k(host.k), v(host.v);
    ASSERT_TRUE(memory->CopyFrom(k.subspan(from, size), device.stream().handle(), to).ok());
    ASSERT_TRUE(
        memory
            ->CopyFrom(v.subspan(from, size), device.stream().handle(), num_blocks * block * 2 + to)
            .ok());
    problem.block_table(0)[i] = static_cast<int32_t>(num_blocks - 1 - 7 * i);
  }
  device.call().k = memory->data();
  device.call().v = memory->as<std::byte>() + num_blocks * block * 2;
  device.call().num_blocks = num_blocks;
  ASSERT_EQ(device.Run(), "");
  EXPECT_EQ(problem.AllBits(), expected);
}

// Keys, values, block table and queries end where nothing is mapped.
class WalledKernel : public AttentionKernel {
 protected:
  static void ExpectTheSameBits(const AttentionCase& spec) {
    const auto expected = Bits(spec);
    PagedAttention problem(spec);
    AttnGpuProblem device(problem, GetParam().options());
    const PagedAttention::Memory host = problem.memory();
    // Behind the last query element there are 8 more in each token's row, and 8 behind all.
    const std::span<const std::byte> q(host.q.data(), host.q.size() - 16 * 2);
    auto walled_q = WalledDeviceMemory::CopyOf(q);
    auto walled_k = WalledDeviceMemory::CopyOf(host.k);
    auto walled_v = WalledDeviceMemory::CopyOf(host.v);
    auto walled_table = WalledDeviceMemory::CopyOf(std::as_bytes(std::span(host.block_table)));
    if (!walled_q || !walled_k || !walled_v || !walled_table) {
      GTEST_SKIP() << "the driver maps no memory piece by piece";
    }
    device.call().q = walled_q->data();
    device.call().k = walled_k->data();
    device.call().v = walled_v->data();
    device.call().block_table = static_cast<const int32_t*>(walled_table->data());
    ASSERT_EQ(device.Run(), "");
    EXPECT_TRUE(problem.AllBits() == expected);
  }
};
INSTANTIATE_TEST_SUITE_P(Every, WalledKernel, testing::ValuesIn(kAttentionKernels),
                         AttentionKernel::Name);

TEST_P(WalledKernel, Trap_08_NothingIsReadBehindTheEndOfPoolTableAndQueries) {
  std::vector<DType> types = {DType::kBFloat16};
  if (GetParam().line == LONGSPAN_ATTN_SM80) types.push_back(DType::kFloat8E4M3);
  for (const DType kv_dtype : types) {
    for (const int32_t block_size : {16, 64, 256}) {
      for (const int32_t length : {1, 16, 17, 64, 127, 128, 256, 511, 512}) {
        for (const uint32_t order : {0u, 5u}) {
          SCOPED_TRACE(testing::Message() << DTypeName(kv_dtype) << ", block " << block_size
                                          << ", length " << length << ", order " << order);
          AttentionCase spec = Case({1, std::min(length, 40)}, {1, length});
          spec.kv_dtype = kv_dtype;
          spec.block_size = block_size;
          spec.spare_blocks = spec.extra_table_entries = 0;
          spec.block_order_seed = order;
          ExpectTheSameBits(spec);
          if (HasFatalFailure() || IsSkipped()) return;
        }
      }
    }
  }
}

TEST_P(AttentionKernel, Trap_10_Trap_11_AGraphCapturedAtLengthOneServesGrownAndShrunkBatches) {
  const bool decode = GetParam().is_decode();
  AttentionCase spec = Case(decode ? std::vector{1, 3, 1, 2} : std::vector{1, 40, 130, 20},
                            {1500, 1500, 1500, 1500});
  spec.num_q_heads = 4;
  PagedAttention problem(spec);
  AttnGpuProblem device(problem, GetParam().options());
  ASSERT_EQ(NotThisKernel(device), "");
  std::vector<int32_t> lengths = {1, 1, 1, 1};
  problem.params().seq_lens = lengths.data();
  device.Reset();
  device.Plan();
  auto graph =
      GpuGraph::Capture(device.stream(), [&] { EXPECT_EQ(device.Enqueue(), LONGSPAN_ATTN_OK); });
  ASSERT_TRUE(graph.has_value());
  // The prefill kernels of sm_90a take as many pieces of queries as were captured.
  const bool shrinks = decode || GetParam().line == LONGSPAN_ATTN_SM80;
  const struct {
    std::vector<int32_t> lengths;
    int32_t num_seqs;
  } replays[] = {{{1, 1, 1, 1}, 4},    {{1500, 1, 0, 64}, 4}, {{65, 1499, 1500, 17}, 2},
                 {{700, 0, 0, 0}, 1},  {{0, 0, 0, 0}, 4},     {{1500, 1500, 1500, 1500}, 4},
                 {{9, 900, 90, 1}, 3}, {{0, 0, 0, 1}, 4}};
  for (const auto& replay : replays) {
    SCOPED_TRACE(testing::Message() << "lengths " << replay.lengths[0] << " " << replay.lengths[1]
                                    << ", sequences " << replay.num_seqs);
    lengths = replay.lengths;
    const std::vector<int32_t> cu = CuSeqlensOfFirst(problem, shrinks ? replay.num_seqs : 4);
    const int32_t* all = problem.params().cu_seqlens_q;
    problem.params().cu_seqlens_q = cu.data();
    device.Reset();
    device.Plan();
    ASSERT_TRUE(graph->Launch(device.stream()).ok());
    ASSERT_EQ(device.Download(), "");
    const auto replayed = problem.AllBits();
    EXPECT_EQ(AgainstOracle(problem, AttentionOracle(problem.params())), "");
    ASSERT_EQ(device.Run(), "");
    EXPECT_TRUE(problem.AllBits() == replayed) << "eager run";
    problem.params().cu_seqlens_q = all;
  }
}

// The plan of a larger batch was there before; behind the new one stands garbage.
TEST_P(AttentionKernel, Trap_11_WhatThePlanDoesNotFillIsNotUsed) {
  const AttentionCase spec = Case({2, 3, 1, 5}, {900, 40, 1300, 7});
  PagedAttention problem(spec), fresh(spec);
  AttnGpuProblem device(problem, GetParam().options()), other(fresh, GetParam().options());
  ASSERT_EQ(Run(device), "");
  const std::vector<int32_t> cu = CuSeqlensOfFirst(problem, 1);
  problem.params().cu_seqlens_q = fresh.params().cu_seqlens_q = cu.data();
  ASSERT_EQ(device.Run(), "");
  ASSERT_EQ(other.Run(), "");
  EXPECT_TRUE(problem.AllBits() == fresh.AllBits());
  EXPECT_EQ(AgainstOracle(problem, AttentionOracle(problem.params())), "");
}

TEST_P(AttentionKernel, Trap_12_NothingButZeroLengthsIsLegal) {
  using L = std::vector<int32_t>;
  for (const auto& [q_lens, kv_lens] : {std::pair{L{}, L{}},
                                        {L{0, 0, 0}, L{0, 0, 0}},
                                        {L{0, 0}, L{5, 0}},
                                        {L{1, 4}, L{0, 0}},
                                        {L{0, 1, 0}, L{0, 70, 0}}}) {
    ExpectOracle(Case(q_lens, kv_lens));
  }
}

TEST_P(PrefillKernel, Trap_13_ARowsBitsDoNotDependOnItsNeighbours) {
  std::mt19937 random(5);
  AttentionCase alone = Case({100}, {1300});
  alone.content = {42};
  const auto expected = Bits(alone);
  for (const int32_t batch : {2, 5, 32}) {
    AttentionCase spec = Case({}, {});
    for (int32_t i = 0; i < batch; ++i) {
      spec.q_lens.push_back(static_cast<int32_t>(random() % 70));
      spec.kv_lens.push_back(spec.q_lens.back() + static_cast<int32_t>(random() % 400));
      spec.content.push_back(static_cast<uint32_t>(100 + i));
    }
    const auto place = static_cast<int32_t>(random() % static_cast<uint32_t>(batch));
    spec.q_lens[place] = 100;
    spec.kv_lens[place] = 1300;
    spec.content[place] = 42;
    PagedAttention problem(spec);
    AttnGpuProblem device(problem, GetParam().options());
    ASSERT_EQ(Run(device), "");
    EXPECT_TRUE(problem.RowBits(place, 0, 100) == expected) << batch;
  }
}

// Relative Frobenius error where every value is alike, but for one that a key of some heads finds.
double ErrorWithNeedle(const AttentionCase& spec, const AttnGpuOptions& options) {
  PagedAttention problem(spec);
  const int32_t length = spec.kv_lens[0];
  for (int32_t key = 0; key < length; ++key) problem.SetKv(0, key, 0, true, 0.7f);
  problem.SetKv(0, length / 3, 0, false, 12.0f);
  problem.SetKv(0, length / 3, 0, true, 3.0f);
  AttnGpuProblem device(problem, options);
  EXPECT_EQ(device.Run(), "");
  const OracleOutput oracle = AttentionOracle(problem.params());
  double difference = 0.0, norm = 0.0;
  for (int32_t head = 0; head < spec.num_q_heads; ++head) {
    for (int32_t d = 0; d < spec.head_dim; ++d) {
      const double expected = oracle.o[head * spec.head_dim + d];
      difference += std::pow(problem.output(0, head, d) - expected, 2);
      norm += expected * expected;
    }
  }
  return std::sqrt(difference / norm);
}

TEST_P(AttentionKernel, Trap_14_TheErrorDoesNotGrowWithTheLength) {
  AttentionCase spec = Case({1}, {4096});
  spec.head_dim = 64;
  spec.num_kv_heads = 1;
  spec.scale = 0.125f;
  const double at_4k = ErrorWithNeedle(spec, GetParam().options());
  spec.kv_lens = {131072};
  const double at_128k = ErrorWithNeedle(spec, GetParam().options());
  // Rounding the output alone is up to 2^-9.
  EXPECT_LE(at_128k, 1.5 * std::max(at_4k, 0x1p-9)) << at_4k << " with 4096 keys";
}

TEST_P(AttentionKernel, Trap_21_TwentyRunsGiveTheSameBits) {
  const bool decode = GetParam().is_decode();
  for (const int32_t head_dim : {64, 128}) {
    AttentionCase spec =
        Case(decode ? std::vector{1, 1, 2, 1} : std::vector{300, 5, 999, 64}, {9000, 5, 4097, 64});
    spec.head_dim = head_dim;
    spec.block_size = 64;
    PagedAttention problem(spec);
    AttnGpuProblem device(problem, GetParam().options());
    ASSERT_EQ(Run(device), "");
    const auto expected = problem.AllBits();
    for (int run = 1; run < 20; ++run) {
      ASSERT_EQ(device.Run(), "");
      ASSERT_TRUE(problem.AllBits() == expected) << "head_dim " << head_dim << ", run " << run;
    }
  }
}

// Beside every kind of kernel, itself included.
TEST_P(AttentionKernel, Trap_21_TwoStreamsAtOnceGiveTheBitsOfOne) {
  PagedAttention problem(Case({1, 7, 4}, {3000, 700, 1300}));
  AttnGpuProblem device(problem, GetParam().options());
  ASSERT_EQ(Run(device), "");
  const auto expected = problem.AllBits();
  for (const AttentionKernelKind& kind : kAttentionKernels) {
    if (!NoDeviceFor(kind).empty()) continue;
    SCOPED_TRACE(kind.name);
    PagedAttention beside(Case({2, 3, 40}, {5000, 90, 1100}));
    AttnGpuProblem other(beside, kind.options());
    ASSERT_EQ(other.Run(), "");
    const auto expected_beside = beside.AllBits();
    for (int round = 0; round < 6; ++round) {
      device.Reset();
      other.Reset();
      for (int i = 0; i < 10; ++i) {
        ASSERT_EQ(device.Enqueue(), LONGSPAN_ATTN_OK);
        ASSERT_EQ(other.Enqueue(), LONGSPAN_ATTN_OK);
      }
      ASSERT_EQ(device.Download(), "");
      ASSERT_EQ(other.Download(), "");
      ASSERT_TRUE(problem.AllBits() == expected) << round;
      ASSERT_TRUE(beside.AllBits() == expected_beside) << round;
    }
  }
}

TEST_P(AttentionKernel, Trap_22_RowsBehindTheBatchAreNotWritten) {
  PagedAttention problem(Case({3, 70, 130}, {300, 70, 500}));
  const auto untouched = problem.AllBits();
  AttnGpuProblem device(problem, GetParam().options());
  ASSERT_EQ(NotThisKernel(device), "");
  for (const int32_t num_seqs : {0, 1, 2}) {
    const int32_t* all = problem.params().cu_seqlens_q;
    const std::vector<int32_t> cu = CuSeqlensOfFirst(problem, num_seqs);
    problem.params().cu_seqlens_q = cu.data();
    ASSERT_EQ(device.Run(), "");
    EXPECT_EQ(AgainstOracle(problem, AttentionOracle(problem.params())), "") << num_seqs;
    problem.params().cu_seqlens_q = all;
    const auto bits = problem.AllBits();
    const auto begin = static_cast<std::ptrdiff_t>(bits.size() / all[3] * cu[num_seqs]);
    EXPECT_TRUE(std::equal(bits.begin() + begin, bits.end(), untouched.begin() + begin))
        << num_seqs;
  }
}

TEST_P(AttentionKernel, Trap_24_CapacityOfTheTableChangesNothing) {
  AttentionCase spec = Case({1, 5}, {100, 700});
  const auto expected = Bits(spec);
  spec.extra_table_entries = 1 << 16;  // 1M tokens
  EXPECT_TRUE(Bits(spec) == expected);
}

TEST_P(AttentionKernel, Trap_25_OutputMayBeWrittenOverTheQueries) {
  PagedAttention problem(Case({1, 7, 130, 2}, {3000, 700, 1300, 2}));
  AttnGpuProblem device(problem, GetParam().options());
  ASSERT_EQ(Run(device), "");
  // The output is the next launch's queries: once from a copy, once in place.
  const std::vector<std::byte> queries = problem.memory().o;
  auto copy = DeviceBuffer::Allocate(static_cast<int64_t>(queries.size()));
  ASSERT_TRUE(copy.has_value());
  ASSERT_TRUE(copy->CopyFrom(queries, device.stream().handle()).ok());
  longspan_attn_call& call = device.call();
  const auto offset = static_cast<const std::byte*>(problem.params().o) - problem.memory().o.data();
  call.q_token_stride = call.o_token_stride;
  call.q_head_stride = call.o_head_stride;
  call.q = copy->as<std::byte>() + offset;
  ASSERT_EQ(device.Run(), "");
  const auto expected = problem.AllBits();
  call.q = call.o;
  problem.memory().o = queries;
  device.Upload();
  ASSERT_EQ(device.Enqueue(), LONGSPAN_ATTN_OK);
  ASSERT_EQ(device.Download(), "");
  EXPECT_TRUE(problem.AllBits() == expected);
}

TEST_P(AttentionKernel, Trap_27_EveryBlockSizeIsRightOrRefused) {
  for (const int32_t block_size : {16, 32, 48, 64, 96, 128, 240, 256}) {
    SCOPED_TRACE(block_size);
    AttentionCase spec = Case({1, 4, 9}, {block_size + 1, 1, 600});
    spec.block_size = block_size;
    ExpectOracle(spec);
  }
  for (const int32_t block_size : {1, 8, 24, 512}) {
    AttentionCase spec = Case({1}, {30});
    spec.block_size = block_size;
    PagedAttention problem(spec);
    const AttnGpuProblem device(problem, GetParam().options());
    EXPECT_EQ(device.status(), LONGSPAN_ATTN_BLOCK_SIZE) << block_size;
  }
}

}  // namespace
}  // namespace longspan
