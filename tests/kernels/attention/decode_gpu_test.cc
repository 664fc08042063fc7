// GPU decode attention against the double oracle, with poison wherever it must not look and guard
// words wherever it must not write. Skips, saying why, on machines without a fitting device.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tests/kernels/attention/gpu_decode_problem.h"
#include "tests/support/attention_oracle.h"

namespace longspan {
namespace {

class GpuDecode : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = NoHopperDevice(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

AttentionCase Case(DType dtype = DType::kBFloat16) {
  AttentionCase spec;
  spec.q_dtype = spec.kv_dtype = dtype;
  spec.head_dim = 128;
  spec.num_q_heads = 8;
  spec.num_kv_heads = 2;
  spec.scale = 0.1f;
  return spec;
}

bool HasFewRows(const AttentionParams& params) {
  const int32_t group = params.num_q_heads / params.num_kv_heads;
  for (int32_t seq = 0; seq < params.num_seqs; ++seq) {
    if ((params.cu_seqlens_q[seq + 1] - params.cu_seqlens_q[seq]) * group > 8) return false;
  }
  return true;
}

// The output is rounded to 16 bits; with many rows weights are too, before they are multiplied.
double Tolerance(PagedAttention& problem) {
  const double rounding = problem.params().q_dtype == DType::kBFloat16 ? 0x1p-9 : 0x1p-12;
  return (HasFewRows(problem.params()) ? 1.5 : 4.0) * rounding;
}

std::string AgainstOracle(PagedAttention& problem, const OracleOutput& oracle) {
  return CompareWithOracle(problem.params(), oracle, Tolerance(problem), 3e-5);
}

void ExpectOracle(const AttentionCase& spec, const GpuDecodeOptions& options = {}) {
  PagedAttention problem(spec);
  GpuDecodeProblem device(problem, options);
  ASSERT_TRUE(device.Run());
  EXPECT_EQ(AgainstOracle(problem, AttentionOracle(problem.params())), "");
}

std::vector<std::byte> Bits(const AttentionCase& spec, const GpuDecodeOptions& options = {}) {
  PagedAttention problem(spec);
  GpuDecodeProblem device(problem, options);
  EXPECT_TRUE(device.Run());
  return problem.AllBits();
}

TEST_F(GpuDecode, EveryInstanceMatchesTheOracleAtTileAndBlockBorders) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int32_t head_dim : {64, 128, 192}) {
      for (const int32_t block_size : {16, 32, 48, 64, 80, 96, 112, 128, 240, 256}) {
        SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " head_dim " << head_dim
                                        << " block_size " << block_size);
        AttentionCase spec = Case(dtype);
        spec.head_dim = head_dim;
        spec.block_size = block_size;
        spec.kv_lens = {1, 0, block_size - 1, block_size, block_size + 1, 63, 64, 65, 1009};
        spec.q_lens.assign(spec.kv_lens.size(), 1);
        ExpectOracle(spec);
        if (block_size > 64) continue;
        spec.q_lens.assign(spec.kv_lens.size(), 3);  // 12 rows: the other kernel of the instance
        ExpectOracle(spec);
      }
    }
  }
}

TEST_F(GpuDecode, Trap_20_PackedRowsFindTheirQueryAndHead) {
  for (const int32_t group : {1, 2, 3, 4, 5, 7, 8, 16, 32}) {
    for (int32_t q_len = 1; q_len <= 4; ++q_len) {
      SCOPED_TRACE(testing::Message() << "group " << group << " q_len " << q_len);
      AttentionCase spec = Case();
      spec.num_kv_heads = 2;
      spec.num_q_heads = 2 * group;
      spec.kv_lens = {q_len, 200, 67};
      spec.q_lens.assign(3, q_len);
      ExpectOracle(spec);
    }
  }
}

TEST_F(GpuDecode, Trap_06_EmptySequencesFirstInTheMiddleAndLastLeaveTheirNeighboursAlone) {
  for (const int32_t num_ctas : {0, 1, 2, 3, 7, 31, 1000}) {
    SCOPED_TRACE(num_ctas);
    AttentionCase spec = Case();
    spec.kv_lens = {0, 0, 300, 20, 0, 1, 700, 3, 0, 0};
    spec.q_lens = {0, 1, 2, 0, 2, 1, 3, 4, 0, 1};  // row 0 of {3, 4} sees no key
    ExpectOracle(spec, {.num_ctas = num_ctas});
  }
}

TEST_F(GpuDecode, Trap_23_EveryCutOfTheTilesGivesTheSameResult) {
  AttentionCase spec = Case();
  spec.kv_lens = {5000, 64, 129, 3001, 1};
  spec.q_lens = {1, 1, 2, 1, 1};
  PagedAttention problem(spec);
  const OracleOutput oracle = AttentionOracle(problem.params());
  for (const int32_t num_ctas : {1, 2, 5, 13, 50, 132, 333, 2000}) {
    GpuDecodeProblem device(problem, {.num_ctas = num_ctas});
    ASSERT_TRUE(device.Run());
    EXPECT_EQ(AgainstOracle(problem, oracle), "") << num_ctas;
  }
}

TEST_F(GpuDecode, LongBesideShort) {
  AttentionCase spec = Case();
  spec.num_q_heads = 4;
  spec.num_kv_heads = 1;
  spec.block_size = 64;
  spec.kv_lens = {7, 131073, 1024, 1};
  spec.q_lens = {1, 1, 1, 1};
  ExpectOracle(spec);
}

TEST_F(GpuDecode, ErrorIsThatOfRoundingTheOutput) {
  AttentionCase spec = Case();
  spec.num_q_heads = 16;
  spec.num_kv_heads = 4;
  spec.kv_lens = {4096, 1000};
  spec.q_lens = {1, 1};
  PagedAttention problem(spec);
  GpuDecodeProblem device(problem);
  ASSERT_TRUE(device.Run());
  const OracleOutput oracle = AttentionOracle(problem.params());
  double difference = 0.0, norm = 0.0;
  for (int64_t token = 0; token < 2; ++token) {
    for (int32_t head = 0; head < 16; ++head) {
      for (int32_t d = 0; d < 128; ++d) {
        const double expected = oracle.o[(token * 16 + head) * 128 + d];
        const double off = problem.output(token, head, d) - expected;
        difference += off * off;
        norm += expected * expected;
      }
    }
  }
  EXPECT_LE(std::sqrt(difference / norm), 2.0e-3);
}

TEST_F(GpuDecode, Trap_18_WindowBordersAreExact) {
  for (const bool causal : {true, false}) {
    for (const int32_t window : {0, 1, 15, 16, 62, 63, 64, 65, 200, 100000}) {
      for (const int32_t q_len : {1, 3}) {
        SCOPED_TRACE(testing::Message() << causal << " window " << window << " q_len " << q_len);
        AttentionCase spec = Case();
        spec.causal = causal;
        spec.window_left = window;
        spec.kv_lens = {1, 64, 65, 129, 777, 2, 0};
        spec.q_lens.assign(7, q_len);
        ExpectOracle(spec, {.num_ctas = 5});
      }
    }
  }
}

TEST_F(GpuDecode, AnyFiniteScale) {
  for (const float scale : {-0.1f, 0.0f, -3.0f, 1e-30f}) {
    AttentionCase spec = Case();
    spec.scale = scale;
    spec.kv_lens = {300, 70};
    spec.q_lens = {1, 2};
    SCOPED_TRACE(scale);
    ExpectOracle(spec);
  }
}

TEST_F(GpuDecode, Trap_05_HugeLogitsDoNotBeatTheMask) {
  AttentionCase spec = Case(DType::kBFloat16);
  spec.magnitude = 1e5f;
  spec.kv_lens = {700};
  spec.q_lens = {4};
  spec.window_left = 65;
  PagedAttention problem(spec);
  GpuDecodeProblem device(problem);
  ASSERT_TRUE(device.Run());
  // Such logits are rounded to 0.02: only the winner counts, and it is a visible key's value.
  EXPECT_EQ(CompareWithOracle(problem.params(), AttentionOracle(problem.params()), 3e-2, 1e-5), "");
}

TEST_F(GpuDecode, HeadsFirstPoolsAndAscendingBlocks) {
  AttentionCase spec = Case();
  spec.heads_first = true;
  spec.kv_lens = {333, 40};
  spec.q_lens = {2, 1};
  ExpectOracle(spec);
  spec.block_order_seed = 0;
  ExpectOracle(spec);
}

TEST_F(GpuDecode, Trap_01_PoisonGivesTheSameBitsAsZeros) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int32_t block_size : {16, 48, 64, 256}) {
      for (const int32_t window : {-1, 70}) {
        for (const int32_t q_len : {1, 4}) {
          AttentionCase spec = Case(dtype);
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

TEST_F(GpuDecode, Trap_01_WhatLiesBeforeTheWindowIsNotUsed) {
  AttentionCase spec = Case();
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
  for (int32_t block = 0; block < 599 / 16; ++block) {
    problem.block_table(0)[block] = std::numeric_limits<int32_t>::min();
  }
  GpuDecodeProblem device(problem);
  ASSERT_TRUE(device.Run());
  EXPECT_EQ(problem.AllBits(), expected);
}

TEST_F(GpuDecode, NanInAKeyStaysInItsSequence) {
  AttentionCase spec = Case();
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
  for (const int seq : {0, 2}) EXPECT_EQ(problem.RowBits(seq, 0, 1), clean.RowBits(seq, 0, 1));
}

TEST_F(GpuDecode, Trap_21_TwentyRunsGiveTheSameBits) {
  AttentionCase spec = Case();
  spec.kv_lens = {9000, 5, 4097, 64, 2500};
  spec.q_lens = {1, 1, 2, 1, 1};
  PagedAttention problem(spec);
  GpuDecodeProblem device(problem);
  ASSERT_TRUE(device.Run());
  const auto expected = problem.AllBits();
  for (int run = 1; run < 20; ++run) {
    device.Upload();
    ASSERT_TRUE(device.Run());
    ASSERT_EQ(problem.AllBits(), expected) << "run " << run;
  }
}

TEST_F(GpuDecode, Trap_10_AGraphServesEveryLengthThatThePlanBrings) {
  AttentionCase spec = Case();
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
           {1, 1, 1, 1}, {3000, 1, 0, 64}, {0, 0, 0, 0}, {65, 2999, 3000, 17}, {0, 0, 0, 1}}) {
    lengths = next;
    device.Plan();
    ASSERT_TRUE(graph->Launch(device.stream()).ok());
    ASSERT_TRUE(device.Download());
    const auto replayed = problem.AllBits();
    EXPECT_EQ(AgainstOracle(problem, AttentionOracle(problem.params())), "") << next[0];
    ASSERT_TRUE(device.Run());
    EXPECT_EQ(problem.AllBits(), replayed) << "eager run, lengths " << next[0];
  }
}

// A chain in which each launch's queries are the output of the launch before.
TEST_F(GpuDecode, OverlappedLaunchesSeeWhatTheOneBeforeWrote) {
  AttentionCase spec = Case();
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

TEST_F(GpuDecode, Trap_07_BlocksBeyond32BitOffsets) {
  AttentionCase spec = Case();
  spec.num_kv_heads = 1;
  spec.num_q_heads = 4;
  spec.kv_lens = {33};
  const auto expected = Bits(spec);
  PagedAttention problem(spec);
  GpuDecodeProblem device(problem);
  const int64_t block = problem.params().k_block_stride;  // elements
  const int64_t num_blocks = ((int64_t{1} << 31) + (int64_t{1} << 28)) / block;
  auto memory = DeviceBuffer::Allocate(2 * num_blocks * block * 2);
  if (!memory) GTEST_SKIP() << "no 9.7 GB of device memory";
  const int64_t v_begin = num_blocks * block * 2;  // bytes
  const PagedAttention::Memory host = problem.memory();
  for (int i = 0; i < 3; ++i) {
    const int64_t from = problem.block_table(0)[i] * block * 2;
    const int64_t to = (num_blocks - 1 - 7 * i) * block * 2;
    const auto size = static_cast<size_t>(block * 2);
    ASSERT_TRUE(
        memory->CopyFrom(std::span(host.k).subspan(from, size), device.stream().handle(), to).ok());
    ASSERT_TRUE(memory
                    ->CopyFrom(std::span(host.v).subspan(from, size), device.stream().handle(),
                               v_begin + to)
                    .ok());
    problem.block_table(0)[i] = static_cast<int32_t>(num_blocks - 1 - 7 * i);
  }
  device.Upload();
  AttentionParams& params = device.device_params();
  params.k = memory->data();
  params.v = memory->as<std::byte>() + v_begin;
  DecodeKvMaps maps;
  ASSERT_EQ(MakeDecodeKvMaps(params, num_blocks, &maps), KernelStatus::kOk);
  device.Plan();
  ASSERT_EQ(LaunchDecode(device.setup(), params, maps, device.launch(), device.stream().handle()),
            KernelStatus::kOk);
  ASSERT_TRUE(device.Download());
  EXPECT_EQ(problem.AllBits(), expected);
}

TEST_F(GpuDecode, NoSequenceAndNoLse) {
  AttentionCase spec = Case();
  spec.q_lens = {};
  spec.kv_lens = {};
  PagedAttention empty(spec);
  GpuDecodeProblem nothing(empty);
  EXPECT_TRUE(nothing.Run());
  spec.q_lens = {1};
  spec.kv_lens = {500};
  PagedAttention problem(spec);
  GpuDecodeProblem device(problem);
  device.device_params().lse = nullptr;
  ASSERT_TRUE(device.Run());
  EXPECT_EQ(problem.lse(0, 0), 12345.0f);
}

TEST_F(GpuDecode, WrongArgumentsAreRefusedWithTheirReason) {
  PagedAttention problem(Case());
  GpuDecodeProblem device(problem);
  device.Plan();
  const AttentionParams good = device.device_params();
  auto launch_with = [&](auto change) {
    AttentionParams params = good;
    DecodeLaunch launch = device.launch();
    change(params, launch);
    return LaunchDecode(device.setup(), params, device.maps(), launch, device.stream().handle());
  };
  using P = AttentionParams&;
  using L = DecodeLaunch&;
  EXPECT_EQ(launch_with([](P, L) {}), KernelStatus::kOk);
  EXPECT_EQ(launch_with([](P p, L) { p.q_token_stride += 1; }), KernelStatus::kBadStride);
  EXPECT_EQ(launch_with([](P p, L) { p.o_head_stride += 2; }), KernelStatus::kBadStride);
  EXPECT_EQ(launch_with([](P p, L) { p.q = static_cast<const char*>(p.q) + 2; }),
            KernelStatus::kMisaligned);
  EXPECT_EQ(launch_with([](P p, L) { p.o = static_cast<char*>(p.o) + 4; }),
            KernelStatus::kMisaligned);
  EXPECT_EQ(launch_with([](P, L l) { l.workspace_bytes -= 1; }), KernelStatus::kWorkspaceTooSmall);
  EXPECT_EQ(launch_with([](P, L l) { l.plan = nullptr; }), KernelStatus::kBadShape);
  EXPECT_EQ(launch_with([](P p, L) { p.kv_dtype = DType::kFloat16; }),
            KernelStatus::kUnsupportedDType);
  EXPECT_EQ(launch_with([](P p, L) { p.head_dim = 64; }), KernelStatus::kUnsupportedHeadDim);
  EXPECT_EQ(launch_with([](P p, L) { p.softcap = 30.0f; }), KernelStatus::kUnsupportedOption);
  DecodeKvMaps maps;
  AttentionParams odd = good;
  odd.k_token_stride += 4;
  EXPECT_EQ(MakeDecodeKvMaps(odd, 4, &maps), KernelStatus::kBadStride);
  odd = good;
  odd.v = static_cast<const char*>(odd.v) + 8;
  EXPECT_EQ(MakeDecodeKvMaps(odd, 4, &maps), KernelStatus::kMisaligned);
  EXPECT_TRUE(device.Download());
}

// These need no device: the answer comes before anything is asked of one.
TEST(DecodeRefusals, PrepareNamesWhatIsNotSupported) {
  PagedAttention problem(Case());
  const GpuDevice hopper = {.name = "H200", .compute_capability = 90, .num_sms = 132};
  const GpuDevice turing = {.name = "T4", .compute_capability = 75, .num_sms = 40};
  DecodeSetup setup;
  auto prepare = [&](auto change, const GpuDevice& device) {
    AttentionParams params = problem.params();
    change(params);
    return PrepareDecode(params, device, &setup);
  };
  using P = AttentionParams&;
  EXPECT_EQ(prepare([](P) {}, turing), KernelStatus::kUnsupportedDevice);
  EXPECT_EQ(prepare([](P p) { p.q_dtype = DType::kFloat32; }, hopper),
            KernelStatus::kUnsupportedDType);
  EXPECT_EQ(prepare([](P p) { p.kv_dtype = DType::kFloat16; }, hopper),
            KernelStatus::kUnsupportedDType);
  EXPECT_EQ(prepare([](P p) { p.head_dim = 100; }, hopper), KernelStatus::kUnsupportedHeadDim);
  EXPECT_EQ(prepare([](P p) { p.block_size = 24; }, hopper), KernelStatus::kUnsupportedBlockSize);
  EXPECT_EQ(prepare([](P p) { p.block_size = 512; }, hopper), KernelStatus::kUnsupportedBlockSize);
  EXPECT_EQ(prepare([](P p) { p.num_q_heads = 9; }, hopper), KernelStatus::kUnsupportedHeads);
  EXPECT_EQ(prepare([](P p) { p.scale = INFINITY; }, hopper), KernelStatus::kUnsupportedOption);
  EXPECT_EQ(prepare([](P p) { p.window_left = -2; }, hopper), KernelStatus::kUnsupportedOption);
}

// What sm_90a does not compute, the sm_80 line does.
TEST_F(GpuDecode, ShapesThatTheFastLineDoesNotServeGoToTheOther) {
  PagedAttention problem(Case());
  const GpuDevice device = FindGpuDevice().value();
  auto needs_maps = [&](auto change, GpuLine line = GpuLine::kAuto) {
    AttentionParams params = problem.params();
    change(params);
    DecodeSetup setup;
    EXPECT_EQ(PrepareDecode(params, device, &setup, line), KernelStatus::kOk);
    return DecodeNeedsKvMaps(setup);
  };
  using P = AttentionParams&;
  const float sinks[8] = {};
  EXPECT_TRUE(needs_maps([](P) {}));
  EXPECT_FALSE(needs_maps([](P) {}, GpuLine::kSm80));
  EXPECT_FALSE(needs_maps([](P p) { p.head_dim = 96; }));
  EXPECT_FALSE(needs_maps([](P p) { p.softcap = 30.0f; }));
  EXPECT_FALSE(needs_maps([](P p) { p.causal = false, p.window_right = 3; }));
  EXPECT_FALSE(needs_maps([&](P p) { p.sinks = sinks; }));
}

}  // namespace
}  // namespace longspan
