// GPU decode attention on 8-bit keys and values against the double oracle on what the pool holds,
// with scales of every granularity that differ everywhere, and NaN where no scale may be read.
// Skips, saying why, on machines without a fitting device.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "tests/kernels/attention/gpu_decode_problem.h"
#include "tests/support/attention_oracle.h"

namespace longspan {
namespace {

class GpuDecodeKv8 : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = NoHopperDevice(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

constexpr DType kKvTypes[] = {DType::kFloat8E4M3, DType::kInt8};
constexpr DType kQTypes[] = {DType::kBFloat16, DType::kFloat16};
constexpr KvScaling kGranularities[] = {KvScaling::kTensor, KvScaling::kHead,
                                        KvScaling::kBlockAndHead};

AttentionCase Case(DType kv_dtype, DType q_dtype = DType::kBFloat16) {
  AttentionCase spec;
  spec.q_dtype = q_dtype;
  spec.kv_dtype = kv_dtype;
  spec.head_dim = 128;
  spec.num_q_heads = 8;
  spec.num_kv_heads = 2;
  spec.scale = 0.1f;
  return spec;
}

// The output is rounded to 16 bits. Weights are float16: with a float16 output their rounding
// shows.
double Tolerance(const AttentionParams& params) {
  return params.q_dtype == DType::kBFloat16 ? 1.5 * 0x1p-9 : 3.0 * 0x1p-12;
}

std::string AgainstOracle(PagedAttention& problem) {
  const AttentionParams& params = problem.params();
  return CompareWithOracle(params, AttentionOracle(params), Tolerance(params), 3e-5);
}

void ExpectOracle(const AttentionCase& spec, const GpuDecodeOptions& options = {}) {
  PagedAttention problem(spec);
  GpuDecodeProblem device(problem, options);
  ASSERT_TRUE(device.Run());
  EXPECT_EQ(AgainstOracle(problem), "");
}

std::vector<std::byte> Bits(const AttentionCase& spec, const GpuDecodeOptions& options = {}) {
  PagedAttention problem(spec);
  GpuDecodeProblem device(problem, options);
  EXPECT_TRUE(device.Run());
  return problem.AllBits();
}

TEST_F(GpuDecodeKv8, EveryInstanceMatchesTheOracleAtTileAndBlockBorders) {
  for (const DType kv_dtype : kKvTypes) {
    for (const int32_t head_dim : {64, 128, 192, 256}) {
      for (const int32_t block_size : {16, 32, 48, 64, 80, 128, 240, 256}) {
        for (const int32_t q_len : {1, 3}) {  // 4 rows, and 12: both kernels of the instance
          SCOPED_TRACE(testing::Message() << DTypeName(kv_dtype) << " head_dim " << head_dim
                                          << " block_size " << block_size << " q_len " << q_len);
          AttentionCase spec = Case(kv_dtype, block_size % 3 ? kQTypes[0] : kQTypes[1]);
          spec.head_dim = head_dim;
          spec.block_size = block_size;
          spec.kv_lens = {1, 0, block_size - 1, block_size, block_size + 1, 63, 64, 65, 129, 1009};
          spec.q_lens.assign(spec.kv_lens.size(), q_len);
          ExpectOracle(spec);
        }
      }
    }
  }
}

TEST_F(GpuDecodeKv8, SmallerHeadsRunPaddedAndTouchNothingBehindThem) {
  for (const DType kv_dtype : kKvTypes) {
    for (const int32_t head_dim : {16, 32, 48, 80, 96, 112}) {
      for (const bool heads_first : {false, true}) {
        SCOPED_TRACE(testing::Message() << DTypeName(kv_dtype) << " head_dim " << head_dim);
        AttentionCase spec = Case(kv_dtype);
        spec.head_dim = head_dim;
        spec.heads_first = heads_first;
        spec.block_size = 64;
        spec.kv_lens = {300, 17, 64};
        spec.q_lens = {1, 2, 3};
        ExpectOracle(spec);
      }
    }
  }
}

TEST_F(GpuDecodeKv8, Trap_15_EveryScaleIsUsedWhereItBelongs) {
  for (const DType kv_dtype : kKvTypes) {
    for (const DType q_dtype : kQTypes) {
      for (const KvScaling scaling : kGranularities) {
        for (const int32_t block_size : {16, 48, 64, 256}) {
          SCOPED_TRACE(testing::Message() << DTypeName(kv_dtype) << " " << DTypeName(q_dtype) << " "
                                          << static_cast<int>(scaling) << " " << block_size);
          AttentionCase spec = Case(kv_dtype, q_dtype);
          spec.num_q_heads = 15;
          spec.num_kv_heads = 5;
          spec.scaling = scaling;
          spec.block_size = block_size;
          spec.kv_lens = {700, 65, 300};
          spec.q_lens = {1, 1, 2};
          ExpectOracle(spec, {.num_ctas = 7});
        }
      }
    }
  }
}

// Scales put weights times values far outside of float16's range.
TEST_F(GpuDecodeKv8, Trap_15_AnyMagnitudeOfScales) {
  for (const float value_scale : {1e-20f, 1e-6f, 1e5f, 1e15f}) {
    for (const float key_scale : {1e-4f, 10.0f}) {
      SCOPED_TRACE(testing::Message() << "values " << value_scale << " keys " << key_scale);
      AttentionCase spec = Case(DType::kFloat8E4M3);
      spec.kv_lens = {1000, 65};
      spec.q_lens = {1, 2};
      PagedAttention problem(spec);
      for (float& scale : problem.memory().k_scales) scale *= key_scale;
      for (float& scale : problem.memory().v_scales) scale *= value_scale;
      GpuDecodeProblem device(problem);
      ASSERT_TRUE(device.Run());
      const OracleOutput oracle = AttentionOracle(problem.params());
      double difference = 0.0, norm = 0.0;
      for (int64_t token = 0; token < 3; ++token) {
        for (int32_t head = 0; head < 8; ++head) {
          EXPECT_NEAR(problem.lse(token, head), oracle.lse[token * 8 + head],
                      1e-4 * (1.0 + std::fabs(oracle.lse[token * 8 + head])));
          for (int32_t d = 0; d < 128; ++d) {
            const double expected = oracle.o[(token * 8 + head) * 128 + d];
            const double off = problem.output(token, head, d) - expected;
            difference += off * off;
            norm += expected * expected;
          }
        }
      }
      EXPECT_LE(std::sqrt(difference / norm), 2.0e-3);
    }
  }
}

TEST_F(GpuDecodeKv8, Trap_16_All256CodesMeanWhatTheFormatSays) {
  for (const DType kv_dtype : kKvTypes) {
    for (const bool values : {false, true}) {
      SCOPED_TRACE(testing::Message() << DTypeName(kv_dtype) << " values " << values);
      AttentionCase spec = Case(kv_dtype, DType::kFloat16);
      spec.scale = 0.001f;
      spec.kv_lens = {256};
      spec.scaling = KvScaling::kTensor;
      PagedAttention problem(spec);
      std::vector<std::byte>& pool = values ? problem.memory().v : problem.memory().k;
      const AttentionParams& p = problem.params();
      for (int32_t position = 0; position < 256; ++position) {
        std::byte* row = pool.data() + problem.block_table(0)[position / 16] * p.k_block_stride +
                         position % 16 * p.k_token_stride;
        for (int32_t i = 0; i < 2 * 128; ++i) {  // every code in every dimension
          const auto code = static_cast<uint8_t>(position + 3 * i);
          const bool is_nan = kv_dtype == DType::kFloat8E4M3 && (code & 0x7f) == 0x7f;
          row[i] = static_cast<std::byte>(is_nan ? 0 : code);
        }
      }
      GpuDecodeProblem device(problem);
      ASSERT_TRUE(device.Run());
      EXPECT_EQ(CompareWithOracle(p, AttentionOracle(p), 8.0 * 0x1p-12, 3e-5), "");
    }
  }
}

TEST_F(GpuDecodeKv8, Trap_20_PackedRowsFindTheirQueryAndHead) {
  for (const int32_t group : {1, 3, 4, 7, 8, 16}) {
    for (const int32_t q_len : {1, 2, 3, 5, 8, 16}) {
      SCOPED_TRACE(testing::Message() << "group " << group << " q_len " << q_len);
      AttentionCase spec = Case(q_len % 2 ? DType::kFloat8E4M3 : DType::kInt8);
      spec.num_kv_heads = 2;
      spec.num_q_heads = 2 * group;
      spec.kv_lens = {q_len, 200, 67};
      spec.q_lens.assign(3, q_len);
      ExpectOracle(spec);
      spec.causal = false;
      ExpectOracle(spec);
    }
  }
}

TEST_F(GpuDecodeKv8, Trap_06_EmptySequencesFirstInTheMiddleAndLastLeaveTheirNeighboursAlone) {
  for (const int32_t num_ctas : {0, 1, 2, 7, 1000}) {
    SCOPED_TRACE(num_ctas);
    AttentionCase spec = Case(DType::kFloat8E4M3);
    spec.kv_lens = {0, 0, 300, 20, 0, 1, 700, 3, 0, 0};
    spec.q_lens = {0, 1, 2, 0, 2, 1, 3, 4, 0, 1};  // row 0 of {3, 4} sees no key
    ExpectOracle(spec, {.num_ctas = num_ctas});
  }
}

TEST_F(GpuDecodeKv8, Trap_23_EveryCutOfTheTilesGivesTheSameResult) {
  for (const int32_t head_dim : {64, 128, 256}) {
    AttentionCase spec = Case(DType::kFloat8E4M3);
    spec.head_dim = head_dim;
    spec.kv_lens = {5000, 64, 129, 3001, 1};
    spec.q_lens = {1, 1, 2, 1, 1};
    for (const int32_t num_ctas : {1, 2, 13, 50, 132, 333}) {
      SCOPED_TRACE(testing::Message() << head_dim << " " << num_ctas);
      ExpectOracle(spec, {.num_ctas = num_ctas});
    }
  }
}

TEST_F(GpuDecodeKv8, LongBesideShort) {
  for (const DType kv_dtype : kKvTypes) {
    AttentionCase spec = Case(kv_dtype);
    spec.num_q_heads = 4;
    spec.num_kv_heads = 1;
    spec.block_size = 64;
    spec.kv_lens = {7, 131073, 1024, 1};
    spec.q_lens = {1, 1, 1, 1};
    ExpectOracle(spec);
  }
}

double RelativeError(PagedAttention& problem) {
  const AttentionParams& p = problem.params();
  const OracleOutput oracle = AttentionOracle(p);
  double difference = 0.0, norm = 0.0;
  for (int64_t token = 0; token < p.cu_seqlens_q[p.num_seqs]; ++token) {
    for (int32_t head = 0; head < p.num_q_heads; ++head) {
      for (int32_t d = 0; d < p.head_dim; ++d) {
        const double expected = oracle.o[(token * p.num_q_heads + head) * p.head_dim + d];
        const double off = problem.output(token, head, d) - expected;
        difference += off * off;
        norm += expected * expected;
      }
    }
  }
  return std::sqrt(difference / norm);
}

TEST_F(GpuDecodeKv8, ErrorIsThatOfRoundingTheOutput) {
  for (const DType kv_dtype : kKvTypes) {
    for (const int32_t q_len : {1, 3}) {
      AttentionCase spec = Case(kv_dtype);
      spec.num_q_heads = 16;
      spec.num_kv_heads = 4;
      spec.kv_lens = {4096, 1000};
      spec.q_lens = {q_len, 1};
      PagedAttention problem(spec);
      GpuDecodeProblem device(problem);
      ASSERT_TRUE(device.Run());
      EXPECT_LE(RelativeError(problem), 2.0e-3) << DTypeName(kv_dtype);
      spec.q_dtype = DType::kFloat16;
      PagedAttention fine(spec);
      GpuDecodeProblem fine_device(fine);
      ASSERT_TRUE(fine_device.Run());
      EXPECT_LE(RelativeError(fine), 4.0e-4) << DTypeName(kv_dtype);
    }
  }
}

// With a float16 output, so that rounding it does not hide what sums lose.
TEST_F(GpuDecodeKv8, Trap_14_ErrorDoesNotGrowWithLength) {
  for (const DType kv_dtype : kKvTypes) {
    double errors[2];
    for (const bool is_long : {false, true}) {
      AttentionCase spec = Case(kv_dtype, DType::kFloat16);
      spec.num_q_heads = 4;
      spec.num_kv_heads = 1;
      spec.kv_lens = {is_long ? 131072 : 4096};
      PagedAttention problem(spec);
      GpuDecodeProblem device(problem, {.num_ctas = 2});  // long sums in one warp
      ASSERT_TRUE(device.Run());
      errors[is_long] = RelativeError(problem);
    }
    EXPECT_LE(errors[1], 1.5 * errors[0]) << DTypeName(kv_dtype);
    EXPECT_LE(errors[1], 4.0e-4) << DTypeName(kv_dtype);
  }
}

// A row's power of two must be undone, rows of zeros and of very large and small numbers among
// them.
TEST_F(GpuDecodeKv8, QueriesOfAnyMagnitude) {
  for (const float magnitude : {0.0f, 1e-30f, 1e-6f, 1e4f, 1e30f}) {
    SCOPED_TRACE(magnitude);
    AttentionCase spec = Case(DType::kFloat8E4M3);
    spec.magnitude = magnitude;
    spec.scale = magnitude > 1.0f ? 0.1f / magnitude : 0.1f;
    spec.kv_lens = {300, 70};
    spec.q_lens = {1, 3};
    ExpectOracle(spec);
  }
}

TEST_F(GpuDecodeKv8, Trap_18_WindowBordersAreExact) {
  for (const bool causal : {true, false}) {
    for (const int32_t window : {0, 1, 15, 16, 63, 64, 65, 200, 100000}) {
      for (const int32_t q_len : {1, 3}) {
        SCOPED_TRACE(testing::Message() << causal << " window " << window << " q_len " << q_len);
        AttentionCase spec = Case(DType::kFloat8E4M3);
        spec.causal = causal;
        spec.window_left = window;
        spec.kv_lens = {1, 64, 65, 129, 777, 2, 0};
        spec.q_lens.assign(7, q_len);
        ExpectOracle(spec, {.num_ctas = 5});
      }
    }
  }
}

TEST_F(GpuDecodeKv8, AnyFiniteScale) {
  for (const float scale : {-0.1f, 0.0f, -3.0f, 1e-30f}) {
    AttentionCase spec = Case(DType::kFloat8E4M3);
    spec.scale = scale;
    spec.kv_lens = {300, 70};
    spec.q_lens = {1, 2};
    SCOPED_TRACE(scale);
    ExpectOracle(spec);
  }
}

TEST_F(GpuDecodeKv8, Trap_05_HugeLogitsDoNotBeatTheMask) {
  for (const float magnitude : {1e5f, 1e9f}) {
    AttentionCase spec = Case(DType::kFloat8E4M3);
    spec.magnitude = magnitude;
    spec.kv_lens = {700};
    spec.q_lens = {4};
    spec.window_left = 65;
    PagedAttention problem(spec);
    GpuDecodeProblem device(problem);
    ASSERT_TRUE(device.Run());
    // Such logits are rounded to 0.02: only the winner counts, and it is a visible key's value.
    EXPECT_EQ(CompareWithOracle(problem.params(), AttentionOracle(problem.params()), 3e-2, 1e-5),
              "")
        << magnitude;
  }
}

// Slots that nobody owns, table entries and scales of blocks that nobody sees.
TEST_F(GpuDecodeKv8, Trap_01_PoisonGivesTheSameBitsAsZeros) {
  for (const DType kv_dtype : kKvTypes) {
    for (const int32_t block_size : {16, 48, 64, 256}) {
      for (const int32_t window : {-1, 70}) {
        for (const int32_t q_len : {1, 4}) {
          AttentionCase spec = Case(kv_dtype);
          spec.block_size = block_size;
          spec.window_left = window;
          spec.kv_lens = {1, 63, 64, 65, 511, 513, 577, 0};
          spec.q_lens.assign(8, q_len);
          spec.fill = KvFill::kZeros;
          const auto zeros = Bits(spec, {.workspace_fill = 0});
          spec.fill = KvFill::kNan;
          EXPECT_EQ(Bits(spec), zeros) << block_size << " " << window;
          spec.fill = KvFill::kInf;
          EXPECT_EQ(Bits(spec), zeros) << block_size << " " << window;
        }
      }
    }
  }
}

TEST_F(GpuDecodeKv8, Trap_01_WhatLiesBeforeTheWindowIsNotUsed) {
  AttentionCase spec = Case(DType::kFloat8E4M3);
  spec.kv_lens = {700};
  spec.window_left = 100;
  const auto expected = Bits(spec);
  PagedAttention problem(spec);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int32_t position = 0; position < 599; ++position) {
    for (int32_t head = 0; head < 2; ++head) {
      problem.SetKv(0, position, head, false, nan);
      problem.SetKv(0, position, head, true, nan);
    }
  }
  const KvScales& scales = problem.params().scales;
  for (int32_t block = 0; block < 599 / 16; ++block) {
    const int64_t id = problem.block_table(0)[block];
    for (int32_t head = 0; head < 2; ++head) {
      problem.memory().k_scales[id * scales.k_block_stride + head * scales.k_head_stride] = nan;
      problem.memory().v_scales[id * scales.v_block_stride + head * scales.v_head_stride] = nan;
    }
    problem.block_table(0)[block] = std::numeric_limits<int32_t>::min();
  }
  GpuDecodeProblem device(problem);
  ASSERT_TRUE(device.Run());
  EXPECT_EQ(problem.AllBits(), expected);
}

TEST_F(GpuDecodeKv8, NanInAKeyStaysInItsSequence) {
  AttentionCase spec = Case(DType::kFloat8E4M3);
  spec.kv_lens = {500, 900, 300};
  spec.q_lens = {1, 1, 1};
  PagedAttention clean(spec);
  GpuDecodeProblem clean_device(clean);
  ASSERT_TRUE(clean_device.Run());
  PagedAttention problem(spec);
  problem.SetKv(1, 450, 0, false, std::numeric_limits<float>::quiet_NaN());
  problem.SetKv(1, 451, 1, true, std::numeric_limits<float>::quiet_NaN());
  GpuDecodeProblem device(problem);
  ASSERT_TRUE(device.Run());
  EXPECT_TRUE(std::isnan(problem.output(1, 0, 0)));
  EXPECT_TRUE(std::isnan(problem.output(1, 7, 0)));
  for (const int seq : {0, 2}) EXPECT_EQ(problem.RowBits(seq, 0, 1), clean.RowBits(seq, 0, 1));
}

TEST_F(GpuDecodeKv8, Trap_21_TwentyRunsGiveTheSameBits) {
  for (const int32_t head_dim : {64, 128, 256}) {
    AttentionCase spec = Case(DType::kFloat8E4M3);
    spec.head_dim = head_dim;
    spec.kv_lens = {9000, 5, 4097, 64, 2500};
    spec.q_lens = {1, 1, 2, 1, 1};
    PagedAttention problem(spec);
    GpuDecodeProblem device(problem);
    ASSERT_TRUE(device.Run());
    const auto expected = problem.AllBits();
    for (int run = 1; run < 20; ++run) {
      device.Upload();
      ASSERT_TRUE(device.Run());
      ASSERT_EQ(problem.AllBits(), expected) << "head_dim " << head_dim << " run " << run;
    }
  }
}

TEST_F(GpuDecodeKv8, Trap_10_AGraphServesEveryLengthThatThePlanBrings) {
  AttentionCase spec = Case(DType::kInt8);
  spec.kv_lens = {3000, 3000, 3000, 3000};
  spec.q_lens = {1, 1, 1, 1};
  PagedAttention problem(spec);
  GpuDecodeProblem device(problem);
  std::vector<int32_t> lengths = {1, 1, 1, 1};
  problem.params().seq_lens = lengths.data();
  device.Plan();
  auto graph =
      GpuGraph::Capture(device.stream(), [&] { EXPECT_EQ(device.Enqueue(), KernelStatus::kOk); });
  ASSERT_TRUE(graph.has_value());
  for (const std::vector<int32_t>& next : std::vector<std::vector<int32_t>>{
           {1, 1, 1, 1}, {3000, 1, 0, 64}, {65, 2999, 3000, 17}, {0, 0, 0, 1}}) {
    lengths = next;
    device.Plan();
    ASSERT_TRUE(graph->Launch(device.stream()).ok());
    ASSERT_TRUE(device.Download());
    EXPECT_EQ(AgainstOracle(problem), "") << next[0];
  }
}

TEST_F(GpuDecodeKv8, OverlappedLaunchesSeeWhatTheOneBeforeWrote) {
  AttentionCase spec = Case(DType::kFloat8E4M3);
  spec.kv_lens = {4000, 70, 900};
  spec.q_lens = {1, 1, 1};
  std::vector<std::byte> expected;
  for (const bool overlap : {false, true, true, true}) {
    PagedAttention problem(spec);
    GpuDecodeProblem device(problem, {.overlap_previous = overlap});
    device.Plan();
    ASSERT_EQ(device.Enqueue(), KernelStatus::kOk);
    AttentionParams& params = device.device_params();
    params.q = params.o;  // in place: a row is read before it is written, by the same unit
    params.q_token_stride = params.o_token_stride;
    params.q_head_stride = params.o_head_stride;
    for (int i = 0; i < 30; ++i) ASSERT_EQ(device.Enqueue(), KernelStatus::kOk);
    ASSERT_TRUE(device.Download());
    if (expected.empty()) expected = problem.AllBits();
    EXPECT_EQ(problem.AllBits(), expected);
  }
}

TEST_F(GpuDecodeKv8, Trap_07_BlocksAndScalesBeyond32BitOffsets) {
  AttentionCase spec = Case(DType::kFloat8E4M3);
  spec.num_kv_heads = 1;
  spec.num_q_heads = 4;
  spec.kv_lens = {33};
  const auto expected = Bits(spec);
  PagedAttention problem(spec);
  GpuDecodeProblem device(problem);
  AttentionParams& params = device.device_params();
  const int64_t block = params.k_block_stride;  // bytes
  const int64_t num_blocks = ((int64_t{1} << 32) + (int64_t{1} << 28)) / block;
  constexpr int64_t kScaleStride = 1 << 10;  // floats: scales of the last blocks are beyond 2^31
  auto memory = DeviceBuffer::Allocate(2 * num_blocks * block + num_blocks * kScaleStride * 4);
  if (!memory) GTEST_SKIP() << "no 19 GB of device memory";
  const int64_t v_begin = num_blocks * block;
  const int64_t scales_begin = 2 * num_blocks * block;
  auto copy = [&](std::span<const std::byte> from, int64_t to) {
    ASSERT_TRUE(memory->CopyFrom(from, device.stream().handle(), to).ok());
  };
  const PagedAttention::Memory host = problem.memory();
  for (int i = 0; i < 3; ++i) {
    const int64_t old_id = problem.block_table(0)[i];
    const int64_t id = num_blocks - 1 - 7 * i;
    const auto size = static_cast<size_t>(block);
    copy(std::span(host.k).subspan(old_id * block, size), id * block);
    copy(std::span(host.v).subspan(old_id * block, size), v_begin + id * block);
    for (const bool values : {false, true}) {  // side by side
      copy(std::as_bytes(std::span(&problem.scale(values, old_id, 0), 1)),
           scales_begin + (id * kScaleStride + (values ? 1 : 0)) * 4);
    }
    problem.block_table(0)[i] = static_cast<int32_t>(id);
  }
  device.Upload();
  params.k = memory->data();
  params.v = memory->as<std::byte>() + v_begin;
  params.scales.k = reinterpret_cast<const float*>(memory->as<std::byte>() + scales_begin);
  params.scales.v = params.scales.k + 1;
  params.scales.k_block_stride = params.scales.v_block_stride = kScaleStride;
  DecodeKvMaps maps;
  ASSERT_EQ(MakeDecodeKvMaps(params, num_blocks, &maps), KernelStatus::kOk);
  device.Plan();
  ASSERT_EQ(LaunchDecode(device.setup(), params, maps, device.launch(), device.stream().handle()),
            KernelStatus::kOk);
  ASSERT_TRUE(device.Download());
  EXPECT_EQ(problem.AllBits(), expected);
}

TEST_F(GpuDecodeKv8, WrongScalesAreRefusedWithTheirReason) {
  PagedAttention problem(Case(DType::kFloat8E4M3));
  GpuDecodeProblem device(problem);
  device.Plan();
  auto launch_with = [&](auto change) {
    AttentionParams params = device.device_params();
    change(params);
    return LaunchDecode(device.setup(), params, device.maps(), device.launch(),
                        device.stream().handle());
  };
  using P = AttentionParams&;
  EXPECT_EQ(launch_with([](P) {}), KernelStatus::kOk);
  EXPECT_EQ(launch_with([](P p) { p.scales.k = nullptr; }), KernelStatus::kUnsupportedScales);
  EXPECT_EQ(launch_with([](P p) { p.scales.v = nullptr; }), KernelStatus::kUnsupportedScales);
  EXPECT_EQ(launch_with([](P p) { p.scales.v_block_stride = -1; }),
            KernelStatus::kUnsupportedScales);
  EXPECT_EQ(launch_with([](P p) { p.kv_dtype = DType::kInt8; }), KernelStatus::kUnsupportedDType);
  EXPECT_EQ(launch_with([](P p) { p.q_dtype = DType::kFloat32; }), KernelStatus::kUnsupportedDType);
  EXPECT_EQ(launch_with([](P p) { p.head_dim = 256; }), KernelStatus::kUnsupportedHeadDim);
  AttentionParams odd = device.device_params();
  DecodeKvMaps maps;
  odd.k_token_stride += 8;  // bytes
  EXPECT_EQ(MakeDecodeKvMaps(odd, 4, &maps), KernelStatus::kBadStride);
  EXPECT_TRUE(device.Download());

  PagedAttention wide(Case(DType::kBFloat16));
  GpuDecodeProblem wide_device(wide);
  wide_device.Plan();
  AttentionParams scaled = wide_device.device_params();
  scaled.scales = device.device_params().scales;
  EXPECT_EQ(LaunchDecode(wide_device.setup(), scaled, wide_device.maps(), wide_device.launch(),
                         wide_device.stream().handle()),
            KernelStatus::kUnsupportedScales);
}

}  // namespace
}  // namespace longspan
