// The sm_80 line's prefill and decode against the double oracle, on any card from compute
// capability 8.0 on, with poison wherever they must not look and guard words wherever they must not
// write. Every pair of options: attention_table_gpu_test.cc. Skips, saying why, on machines without
// a fitting device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/attention/sm80_gpu_problem.h"
#include "tests/support/attention_oracle.h"

namespace longspan {
namespace {

const char* FamilyName(bool decode) { return decode ? "decode" : "prefill"; }

AttentionCase Case(DType dtype = DType::kBFloat16) {
  AttentionCase spec;
  spec.q_dtype = spec.kv_dtype = dtype;
  spec.head_dim = 128;
  spec.num_q_heads = 8;
  spec.num_kv_heads = 2;
  spec.scale = 0.1f;
  return spec;
}

class Sm80 : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = NoSm80Device(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

std::vector<std::byte> Bits(const AttentionCase& spec, bool decode, int32_t num_ctas = 0,
                            uint8_t workspace_fill = 0xff) {
  PagedAttention problem(spec);
  Sm80GpuProblem device(problem, decode, num_ctas, workspace_fill);
  EXPECT_EQ(device.Run(), "");
  return problem.AllBits();
}

class Sm80Family : public Sm80, public testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(Families, Sm80Family, testing::Values(false, true),
                         [](const testing::TestParamInfo<bool>& family) {
                           return std::string(FamilyName(family.param));
                         });

void ExpectOracle(const AttentionCase& spec, bool decode, int32_t num_ctas = 0) {
  PagedAttention problem(spec);
  Sm80GpuProblem device(problem, decode, num_ctas);
  ASSERT_EQ(device.Run(), "");
  EXPECT_EQ(AgainstOracle(problem, AttentionOracle(problem.params())), "");
}

// The smallest problem of each instance: what fails here is no option and no border.
TEST_P(Sm80Family, OneTileOfEveryInstance) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int32_t head_dim : {64, 128, 256}) {
      SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " head_dim " << head_dim);
      AttentionCase spec = Case(dtype);
      spec.head_dim = head_dim;
      spec.num_q_heads = spec.num_kv_heads = 1;
      spec.causal = false;
      spec.q_lens = {16};
      spec.kv_lens = {64};
      ExpectOracle(spec, GetParam());
    }
  }
}

TEST_P(Sm80Family, Trap_20_PackedRowsFindTheirQueryAndHead) {
  for (const int32_t group : {1, 2, 3, 5, 6, 7, 8, 16, 32}) {
    for (const int32_t q_len : {1, 2, 5, 9}) {
      for (const int32_t window : {-1, 3}) {
        SCOPED_TRACE(testing::Message()
                     << "group " << group << " q_len " << q_len << " window " << window);
        AttentionCase spec = Case();
        spec.head_dim = 64;
        spec.num_kv_heads = 2;
        spec.num_q_heads = 2 * group;
        spec.window_left = window;
        spec.sinks = spec.alibi = true;
        spec.kv_lens = {q_len, 90, 67};
        spec.q_lens.assign(3, q_len);
        ExpectOracle(spec, GetParam());
      }
    }
  }
}

TEST_P(Sm80Family, Trap_06_EmptySequencesFirstInTheMiddleAndLastLeaveTheirNeighboursAlone) {
  for (const int32_t num_ctas : {0, 1, 2, 7, 1000}) {
    SCOPED_TRACE(num_ctas);
    AttentionCase spec = Case();
    spec.kv_lens = {0, 0, 300, 20, 0, 1, 700, 3, 0, 0};
    spec.q_lens = {0, 1, 2, 0, 2, 1, 3, 4, 0, 1};  // row 0 of {3, 4} sees no key
    ExpectOracle(spec, GetParam(), num_ctas);
  }
}

TEST_P(Sm80Family, Trap_18_WindowBordersAreExact) {
  for (const bool causal : {true, false}) {
    for (const int32_t window : {0, 1, 15, 16, 63, 64, 65, 200}) {
      for (const int32_t q_len : {1, 3, 64}) {
        SCOPED_TRACE(testing::Message() << (causal ? "causal" : "not causal") << " window "
                                        << window << " q_len " << q_len);
        AttentionCase spec = Case();
        spec.head_dim = 64;
        spec.num_q_heads = 2;
        spec.causal = causal;
        spec.window_left = window;
        if (!causal) spec.window_right = window / 2;
        spec.kv_lens = {1, 64, 65, 129, 333, 2, 0};
        spec.q_lens.assign(7, q_len);
        ExpectOracle(spec, GetParam(), 5);
      }
    }
  }
}

TEST_P(Sm80Family, AnyFiniteScale) {
  for (const float scale : {-0.1f, 0.0f, -3.0f, 1e-30f}) {
    AttentionCase spec = Case();
    spec.scale = scale;
    spec.kv_lens = {300, 70};
    spec.q_lens = {1, 2};
    SCOPED_TRACE(scale);
    ExpectOracle(spec, GetParam());
  }
}

TEST_P(Sm80Family, Trap_05_HugeLogitsDoNotBeatTheMask) {
  AttentionCase spec = Case();
  spec.magnitude = 1e5f;
  spec.kv_lens = {700};
  spec.q_lens = {4};
  spec.window_left = 65;
  PagedAttention problem(spec);
  Sm80GpuProblem device(problem, GetParam());
  ASSERT_EQ(device.Run(), "");
  // Such logits are rounded to 0.02: only the winner counts, and it is a visible key's value.
  EXPECT_EQ(Differences(problem, AttentionOracle(problem.params()), 3e-2, 1e-5), "");
}

TEST_P(Sm80Family, Trap_26_SoftcapBeforeEveryMask) {
  for (const bool causal : {true, false}) {
    for (const int32_t left : {-1, 30}) {
      for (const int32_t right : {-1, 5}) {
        for (const float softcap : {0.5f, 50.0f}) {
          SCOPED_TRACE(testing::Message()
                       << causal << " " << left << " " << right << " cap " << softcap);
          AttentionCase spec = Case();
          spec.causal = causal;
          spec.window_left = left;
          spec.window_right = right;
          spec.softcap = softcap;
          spec.kv_lens = {100, 10};
          spec.q_lens = {40, 12};
          ExpectOracle(spec, GetParam());
        }
      }
    }
  }
}

TEST_P(Sm80Family, Trap_17_SinksCountOnceWhateverTheSplits) {
  for (const float sink : {-std::numeric_limits<float>::infinity(), 0.0f, 20.0f, 300.0f}) {
    for (const int32_t num_ctas : {1, 2, 7}) {
      SCOPED_TRACE(testing::Message() << "sink " << sink << " CTAs " << num_ctas);
      AttentionCase spec = Case();
      spec.sinks = true;
      spec.window_left = 500;
      spec.kv_lens = {900, 3, 0};
      spec.q_lens = {1, 5, 2};
      PagedAttention problem(spec);
      std::fill_n(problem.sinks(), spec.num_q_heads, sink);
      Sm80GpuProblem device(problem, GetParam(), num_ctas);
      ASSERT_EQ(device.Run(), "");
      EXPECT_EQ(AgainstOracle(problem, AttentionOracle(problem.params())), "");
    }
  }
}

TEST_P(Sm80Family, Trap_01_PoisonGivesTheSameBitsAsZeros) {
  struct Shape {
    int32_t head_dim, block_size;
  };
  for (const Shape shape : {Shape{64, 16}, {80, 48}, {128, 256}, {128, 16}, {256, 48}}) {
    for (const int32_t window : {-1, 70}) {
      for (const int32_t q_len : {1, 40}) {
        SCOPED_TRACE(testing::Message()
                     << "head_dim " << shape.head_dim << " block " << shape.block_size << " window "
                     << window << " q_len " << q_len);
        AttentionCase spec = Case(shape.head_dim == 80 ? DType::kFloat16 : DType::kBFloat16);
        spec.head_dim = shape.head_dim;
        spec.block_size = shape.block_size;
        spec.window_left = window;
        spec.kv_lens = {1, 63, 64, 65, 511, 577, 0};
        spec.q_lens.assign(7, q_len);
        spec.fill = KvFill::kZeros;
        const auto zeros = Bits(spec, GetParam(), 0, 0);
        spec.fill = KvFill::kNan;
        EXPECT_EQ(FirstByteApart(Bits(spec, GetParam()), zeros), "") << "NaN";
        spec.fill = KvFill::kInf;
        EXPECT_EQ(FirstByteApart(Bits(spec, GetParam()), zeros), "") << "Inf";
      }
    }
  }
}

TEST_P(Sm80Family, Trap_01_WhatLiesBeforeTheWindowIsNotUsed) {
  AttentionCase spec = Case();
  spec.kv_lens = {700};
  spec.q_lens = {2};
  spec.window_left = 100;
  const auto expected = Bits(spec, GetParam());
  PagedAttention problem(spec);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int32_t position = 0; position < 598; ++position) {
    for (int32_t head = 0; head < 2; ++head) {
      problem.SetKv(0, position, head, false, nan);
      problem.SetKv(0, position, head, true, nan);
    }
  }
  for (int32_t block = 0; block < 598 / 16; ++block) {
    problem.block_table(0)[block] = std::numeric_limits<int32_t>::min();
  }
  Sm80GpuProblem device(problem, GetParam());
  ASSERT_EQ(device.Run(), "");
  EXPECT_EQ(FirstByteApart(problem.AllBits(), expected), "");
}

TEST_P(Sm80Family, NanInAKeyStaysInItsSequence) {
  AttentionCase spec = Case();
  spec.kv_lens = {500, 900, 300};
  spec.q_lens = {1, 2, 1};
  PagedAttention clean(spec);
  Sm80GpuProblem clean_device(clean, GetParam());
  ASSERT_EQ(clean_device.Run(), "");
  PagedAttention problem(spec);
  problem.SetKv(1, 450, 0, false, std::numeric_limits<float>::quiet_NaN());
  problem.SetKv(1, 451, 1, true, std::numeric_limits<float>::quiet_NaN());
  Sm80GpuProblem device(problem, GetParam());
  ASSERT_EQ(device.Run(), "");
  EXPECT_TRUE(std::isnan(problem.output(1, 0, 0)));
  EXPECT_TRUE(std::isnan(problem.output(1, 4, 0)));
  for (const int seq : {0, 2}) EXPECT_EQ(problem.RowBits(seq, 0, 1), clean.RowBits(seq, 0, 1));
}

TEST_P(Sm80Family, Trap_21_TwentyRunsGiveTheSameBits) {
  for (const int32_t head_dim : {64, 128, 256}) {
    SCOPED_TRACE(head_dim);
    AttentionCase spec = Case();
    spec.head_dim = head_dim;
    spec.block_size = 64;
    spec.sinks = true;
    spec.kv_lens = {9000, 5, 4097, 64, 2500};
    spec.q_lens = {1, 1, 2, 1, 1};
    if (!GetParam()) spec.q_lens = {300, 5, 999, 64, 170};
    PagedAttention problem(spec);
    Sm80GpuProblem device(problem, GetParam());
    ASSERT_EQ(device.Run(), "");
    const auto expected = problem.AllBits();
    for (int run = 1; run < 20; ++run) {
      device.Upload();
      ASSERT_EQ(device.Run(), "");
      ASSERT_EQ(FirstByteApart(problem.AllBits(), expected), "") << "run " << run;
    }
  }
}

TEST_P(Sm80Family, Trap_10_AGraphServesEveryLengthThatThePlanBrings) {
  AttentionCase spec = Case();
  spec.kv_lens = {1500, 1500, 1500, 1500};
  spec.q_lens = {1, 3, 1, 2};
  PagedAttention problem(spec);
  Sm80GpuProblem device(problem, GetParam());
  std::vector<int32_t> lengths = {1, 1, 1, 1};
  problem.params().seq_lens = lengths.data();
  device.Plan();
  auto graph =
      GpuGraph::Capture(device.stream(), [&] { EXPECT_EQ(device.Enqueue(), KernelStatus::kOk); });
  ASSERT_TRUE(graph.has_value());
  for (const std::vector<int32_t>& next : std::vector<std::vector<int32_t>>{
           {1, 1, 1, 1}, {1500, 1, 0, 64}, {0, 0, 0, 0}, {65, 1499, 1500, 17}, {0, 0, 0, 1}}) {
    SCOPED_TRACE(testing::Message() << "lengths " << next[0] << " " << next[1] << " " << next[2]);
    lengths = next;
    device.Plan();
    ASSERT_TRUE(graph->Launch(device.stream()).ok());
    ASSERT_EQ(device.Download(), "");
    const auto replayed = problem.AllBits();
    EXPECT_EQ(AgainstOracle(problem, AttentionOracle(problem.params())), "");
    ASSERT_EQ(device.Run(), "");
    EXPECT_EQ(FirstByteApart(problem.AllBits(), replayed), "") << "eager run";
  }
}

TEST_P(Sm80Family, Trap_07_BlocksBeyond32BitOffsets) {
  AttentionCase spec = Case();
  spec.num_kv_heads = 1;
  spec.num_q_heads = 4;
  spec.kv_lens = {33};
  spec.q_lens = {2};
  const auto expected = Bits(spec, GetParam());
  PagedAttention problem(spec);
  Sm80GpuProblem device(problem, GetParam());
  const int64_t block = problem.params().k_block_stride;  // elements
  const int64_t num_blocks = ((int64_t{1} << 31) + (int64_t{1} << 28)) / block;
  auto memory = DeviceBuffer::Allocate(2 * num_blocks * block * 2);
  if (!memory) GTEST_SKIP() << "no 9.7 GB of device memory";
  const int64_t v_begin = num_blocks * block * 2;  // bytes
  const PagedAttention::Memory host = problem.memory();
  const auto size = static_cast<size_t>(block * 2);
  for (int i = 0; i < 3; ++i) {
    const int64_t from = problem.block_table(0)[i] * block * 2;
    const int64_t to = (num_blocks - 1 - 7 * i) * block * 2;
    const std::span<const std::byte> k(host.k), v(host.v);
    ASSERT_TRUE(memory->CopyFrom(k.subspan(from, size), device.stream().handle(), to).ok());
    ASSERT_TRUE(
        memory->CopyFrom(v.subspan(from, size), device.stream().handle(), v_begin + to).ok());
    problem.block_table(0)[i] = static_cast<int32_t>(num_blocks - 1 - 7 * i);
  }
  device.Upload();
  device.device_params().k = memory->data();
  device.device_params().v = memory->as<std::byte>() + v_begin;
  ASSERT_EQ(device.Run(), "");
  EXPECT_EQ(FirstByteApart(problem.AllBits(), expected), "");
}

TEST_P(Sm80Family, NoSequenceAndNoLse) {
  AttentionCase spec = Case();
  spec.q_lens = {};
  spec.kv_lens = {};
  PagedAttention empty(spec);
  Sm80GpuProblem nothing(empty, GetParam());
  EXPECT_EQ(nothing.Run(), "");
  spec.q_lens = {1};
  spec.kv_lens = {500};
  PagedAttention problem(spec);
  Sm80GpuProblem device(problem, GetParam());
  device.device_params().lse = nullptr;
  ASSERT_EQ(device.Run(), "");
  EXPECT_EQ(problem.lse(0, 0), 12345.0f);
}

// A row's bits do not depend on which rows came with it, nor on the other sequences.
TEST_F(Sm80, Trap_19_ChunksGiveTheBitsOfOnePrompt) {
  for (const int32_t window : {-1, 100}) {
    AttentionCase spec = Case();
    spec.window_left = window;
    spec.kv_lens = {400};
    spec.q_lens = {400};
    spec.content = {0};
    PagedAttention whole(spec);
    Sm80GpuProblem device(whole, false);
    ASSERT_EQ(device.Run(), "");
    EXPECT_EQ(AgainstOracle(whole, AttentionOracle(whole.params())), "");
    int32_t begin = 0;
    for (const int32_t end : {1, 64, 65, 129, 300, 400}) {
      spec.kv_lens = {77, end};
      spec.q_lens = {3, end - begin};
      spec.content = {5, 0};
      PagedAttention chunk(spec);
      Sm80GpuProblem chunk_device(chunk, false);
      ASSERT_EQ(chunk_device.Run(), "");
      EXPECT_EQ(FirstByteApart(chunk.RowBits(1, 0, end - begin), whole.RowBits(0, begin, end)), "")
          << "window " << window << ", rows " << begin << ".." << end;
      begin = end;
    }
  }
}

TEST_F(Sm80, Trap_23_EveryCutOfTheTilesGivesTheSameResult) {
  for (const int32_t head_dim : {64, 80, 128, 256}) {
    AttentionCase spec = Case();
    spec.head_dim = head_dim;
    spec.kv_lens = {3000, 64, 129, 1001, 1};
    spec.q_lens = {1, 1, 2, 1, 5};
    PagedAttention problem(spec);
    const OracleOutput oracle = AttentionOracle(problem.params());
    for (const int32_t num_ctas : {1, 2, 5, 13, 50, 132, 333, 2000}) {
      Sm80GpuProblem device(problem, true, num_ctas);
      ASSERT_EQ(device.Run(), "");
      EXPECT_EQ(AgainstOracle(problem, oracle), "") << "head_dim " << head_dim << ", " << num_ctas;
    }
  }
}

// With at most 8 packed rows the weights are not rounded to 16 bits.
TEST_F(Sm80, DecodeErrorIsThatOfRoundingTheOutput) {
  AttentionCase spec = Case();
  spec.num_q_heads = 16;
  spec.num_kv_heads = 4;
  spec.kv_lens = {4096, 1000};
  spec.q_lens = {1, 1};
  PagedAttention problem(spec);
  Sm80GpuProblem device(problem, true);
  ASSERT_EQ(device.Run(), "");
  const OracleOutput oracle = AttentionOracle(problem.params());
  EXPECT_LE(RelativeError(problem, oracle), 2.0e-3);
}

TEST_F(Sm80, WrongArgumentsAreRefusedWithTheirReason) {
  PagedAttention problem(Case());
  Sm80GpuProblem prefill(problem, false);
  Sm80GpuProblem decode(problem, true);
  prefill.Plan();
  decode.Plan();
  auto launch_with = [&](auto change) {
    AttentionParams params = prefill.device_params();
    change(params);
    const KernelStatus status = LaunchSm80Prefill(
        prefill.prefill_setup(), params, prefill.prefill_launch(), prefill.stream().handle());
    params = decode.device_params();
    change(params);
    const KernelStatus other = LaunchDecode(decode.decode_setup(), params, {},
                                            decode.decode_launch(), decode.stream().handle());
    EXPECT_EQ(status, other);
    return status;
  };
  using P = AttentionParams&;
  EXPECT_EQ(launch_with([](P) {}), KernelStatus::kOk);
  EXPECT_EQ(launch_with([](P p) { p.q_token_stride += 1; }), KernelStatus::kBadStride);
  EXPECT_EQ(launch_with([](P p) { p.o_head_stride += 1; }), KernelStatus::kBadStride);
  EXPECT_EQ(launch_with([](P p) { p.k_token_stride += 4; }), KernelStatus::kBadStride);
  EXPECT_EQ(launch_with([](P p) { p.v_block_stride += 2; }), KernelStatus::kBadStride);
  EXPECT_EQ(launch_with([](P p) { p.q = static_cast<const char*>(p.q) + 2; }),
            KernelStatus::kMisaligned);
  EXPECT_EQ(launch_with([](P p) { p.v = static_cast<const char*>(p.v) + 8; }),
            KernelStatus::kMisaligned);
  EXPECT_EQ(launch_with([](P p) { p.o = static_cast<char*>(p.o) + 2; }), KernelStatus::kMisaligned);
  EXPECT_EQ(launch_with([](P p) { p.k = nullptr; }), KernelStatus::kBadShape);
  EXPECT_EQ(launch_with([](P p) { p.kv_dtype = DType::kFloat16; }),
            KernelStatus::kUnsupportedDType);
  EXPECT_EQ(launch_with([](P p) { p.head_dim = 136; }), KernelStatus::kUnsupportedHeadDim);
  EXPECT_EQ(launch_with([](P p) { p.softcap = -1.0f; }), KernelStatus::kUnsupportedOption);
  EXPECT_EQ(prefill.Download(), "");
  EXPECT_EQ(decode.Download(), "");
}

// These need no device: the answer comes before anything is asked of one.
TEST(Sm80Refusals, PrepareNamesWhatIsNotSupported) {
  PagedAttention problem(Case());
  const GpuDevice ampere = {.name = "A100", .compute_capability = 80, .num_sms = 108};
  const GpuDevice turing = {.name = "T4", .compute_capability = 75, .num_sms = 40};
  auto prepare = [&](auto change, const GpuDevice& device) {
    AttentionParams params = problem.params();
    change(params);
    DecodeSetup decode;
    Sm80PrefillSetup prefill;
    const KernelStatus status = PrepareSm80Prefill(params, device, &prefill);
    EXPECT_EQ(PrepareDecode(params, device, &decode), status);
    return status;
  };
  using P = AttentionParams&;
  EXPECT_EQ(prepare([](P) {}, turing), KernelStatus::kUnsupportedDevice);
  EXPECT_EQ(prepare([](P p) { p.q_dtype = DType::kFloat32; }, ampere),
            KernelStatus::kUnsupportedDType);
  EXPECT_EQ(prepare([](P p) { p.kv_dtype = DType::kFloat16; }, ampere),
            KernelStatus::kUnsupportedDType);
  for (const int32_t head_dim : {8, 100, 264, 0, -8}) {
    EXPECT_EQ(prepare([&](P p) { p.head_dim = head_dim; }, ampere),
              KernelStatus::kUnsupportedHeadDim);
  }
  for (const int32_t block_size : {1, 8, 24, 512}) {
    EXPECT_EQ(prepare([&](P p) { p.block_size = block_size; }, ampere),
              KernelStatus::kUnsupportedBlockSize);
  }
  EXPECT_EQ(prepare([](P p) { p.num_q_heads = 9; }, ampere), KernelStatus::kUnsupportedHeads);
  EXPECT_EQ(prepare([](P p) { p.scale = INFINITY; }, ampere), KernelStatus::kUnsupportedOption);
  EXPECT_EQ(prepare([](P p) { p.softcap = -1.0f; }, ampere), KernelStatus::kUnsupportedOption);
  EXPECT_EQ(prepare([](P p) { p.window_left = -2; }, ampere), KernelStatus::kUnsupportedOption);
  EXPECT_EQ(prepare([](P p) { p.window_right = -2; }, ampere), KernelStatus::kUnsupportedOption);
}

}  // namespace
}  // namespace longspan
