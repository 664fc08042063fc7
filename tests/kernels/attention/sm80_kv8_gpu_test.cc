// 8-bit keys and values and tree masks in the sm_80 line's prefill and decode, against the double
// oracle over what is stored. (The table of attention_table.h has both too, crossed with every
// mask.)
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/kernels/attention/sm80_gpu_problem.h"
#include "tests/support/attention_oracle.h"

namespace longspan {
namespace {

constexpr DType k8BitTypes[] = {DType::kFloat8E4M3, DType::kInt8};

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

class Sm80Kv8 : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = NoSm80Device(); !reason.empty()) GTEST_SKIP() << reason;
  }
};
class Sm80Kv8Family : public Sm80Kv8, public testing::WithParamInterface<bool> {};
class Sm80Tree : public Sm80Kv8 {};

INSTANTIATE_TEST_SUITE_P(Families, Sm80Kv8Family, testing::Values(false, true),
                         [](const testing::TestParamInfo<bool>& family) {
                           return std::string(family.param ? "decode" : "prefill");
                         });

void ExpectOracle(const AttentionCase& spec, bool decode, int32_t num_ctas = 0) {
  PagedAttention problem(spec);
  Sm80GpuProblem device(problem, decode, num_ctas);
  ASSERT_EQ(device.Run(), "");
  EXPECT_EQ(AgainstOracle(problem, AttentionOracle(problem.params())), "");
}

std::vector<std::byte> Bits(const AttentionCase& spec, bool decode) {
  PagedAttention problem(spec);
  Sm80GpuProblem device(problem, decode);
  EXPECT_EQ(device.Run(), "");
  return problem.AllBits();
}

TEST_P(Sm80Kv8Family, OneTileOfEveryInstance) {
  for (const DType q_dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const DType kv_dtype : k8BitTypes) {
      for (const int32_t head_dim : {64, 128, 256}) {
        SCOPED_TRACE(testing::Message() << DTypeName(q_dtype) << " " << DTypeName(kv_dtype)
                                        << " head_dim " << head_dim);
        AttentionCase spec = Case(kv_dtype, q_dtype);
        spec.head_dim = head_dim;
        spec.num_q_heads = spec.num_kv_heads = 1;
        spec.causal = false;
        spec.q_lens = {16};
        spec.kv_lens = {64};
        ExpectOracle(spec, GetParam());
      }
    }
  }
}

TEST_P(Sm80Kv8Family, Trap_15_EveryScaleIsItsOwnInEveryBlockSize) {
  for (const DType kv_dtype : k8BitTypes) {
    for (const int32_t block_size : {16, 32, 48, 64, 96, 128, 240, 256}) {
      for (const KvScaling scaling :
           {KvScaling::kTensor, KvScaling::kHead, KvScaling::kBlockAndHead}) {
        SCOPED_TRACE(testing::Message() << DTypeName(kv_dtype) << " block " << block_size
                                        << " scaling " << static_cast<int>(scaling));
        AttentionCase spec = Case(kv_dtype);
        spec.block_size = block_size;
        spec.scaling = scaling;
        spec.num_kv_heads = 3;
        spec.num_q_heads = 6;
        spec.kv_lens = {block_size + 1, 300, 64, 0, 5};
        spec.q_lens = {3, 1, 2, 1, 7};
        if (!GetParam()) spec.q_lens = {3, 140, 64, 1, 7};
        ExpectOracle(spec, GetParam());
      }
    }
  }
}

// Sequence b has one key: code b in one column. So lse is that code's score, and the output are the
// codes of its value.
TEST_P(Sm80Kv8Family, Trap_16_All256CodesMinusZeroAndNanAmongThem) {
  for (const DType kv_dtype : k8BitTypes) {
    for (const DType q_dtype : {DType::kBFloat16, DType::kFloat16}) {
      for (const int32_t head_dim : {128, 256, 72}) {
        SCOPED_TRACE(testing::Message() << DTypeName(kv_dtype) << " head_dim " << head_dim);
        AttentionCase spec = Case(kv_dtype, q_dtype);
        spec.head_dim = head_dim;
        spec.num_q_heads = 2;
        spec.num_kv_heads = 1;
        spec.scale = 100.0f;  // the smallest code's score stands out of lse's rounding
        spec.q_lens.assign(256, 1);
        spec.kv_lens.assign(256, 1);
        PagedAttention problem(spec);
        const AttentionParams& p = problem.params();
        for (int32_t seq = 0; seq < 256; ++seq) {
          const int64_t row = problem.block_table(seq)[0] * p.k_block_stride;
          for (int32_t d = 0; d < head_dim; ++d) {
            problem.memory().k[row + d] = std::byte{0};
            problem.memory().v[row + d] = static_cast<std::byte>(3 * seq + d);
          }
          problem.memory().k[row + seq % head_dim] = static_cast<std::byte>(seq);
        }
        Sm80GpuProblem device(problem, GetParam());
        ASSERT_EQ(device.Run(), "");
        const OracleOutput oracle = AttentionOracle(p);
        int num_bad = 0;
        auto expect = [&](double got, double expected, double tolerance, int seq, int d) {
          const double room = tolerance * std::fabs(expected) + (d < 0 ? 4e-6 : 0.0);
          const bool good =
              std::isnan(expected) ? std::isnan(got) : std::fabs(got - expected) <= room;
          if (!good && num_bad++ < 5) {
            ADD_FAILURE() << "sequence " << seq << " column " << d << ": " << got << ", not "
                          << expected;
          }
        };
        for (int32_t seq = 0; seq < 256; ++seq) {
          for (int32_t head = 0; head < 2; ++head) {
            expect(problem.lse(seq, head), oracle.lse[2 * seq + head], 1e-5, seq, -1);
            if (std::isnan(oracle.lse[2 * seq + head])) continue;
            for (int32_t d = 0; d < head_dim; ++d) {
              expect(problem.output(seq, head, d), oracle.o[(2 * seq + head) * head_dim + d],
                     q_dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-10, seq, d);
            }
          }
        }
        EXPECT_EQ(num_bad, 0);
      }
    }
  }
}

TEST_P(Sm80Kv8Family, Trap_01_PoisonGivesTheSameBitsAsZeros) {
  for (const DType kv_dtype : k8BitTypes) {
    for (const int32_t head_dim : {72, 128, 256}) {
      for (const int32_t window : {-1, 70}) {
        SCOPED_TRACE(testing::Message()
                     << DTypeName(kv_dtype) << " head_dim " << head_dim << " window " << window);
        AttentionCase spec = Case(kv_dtype);
        spec.head_dim = head_dim;
        spec.window_left = window;
        spec.kv_lens = {1, 63, 64, 65, 511, 577, 0};
        spec.q_lens.assign(7, GetParam() ? 1 : 40);
        spec.fill = KvFill::kZeros;
        const auto zeros = Bits(spec, GetParam());
        spec.fill = KvFill::kNan;
        EXPECT_EQ(FirstByteApart(Bits(spec, GetParam()), zeros), "") << "0x7f";
        spec.fill = KvFill::kInf;
        EXPECT_EQ(FirstByteApart(Bits(spec, GetParam()), zeros), "") << "0xff";
      }
    }
  }
}

TEST_P(Sm80Kv8Family, Trap_01_ScalesBeforeTheWindowAreNotUsed) {
  AttentionCase spec = Case(DType::kFloat8E4M3);
  spec.kv_lens = {700};
  spec.q_lens = {2};
  spec.window_left = 100;
  const auto expected = Bits(spec, GetParam());
  PagedAttention problem(spec);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int32_t block = 0; block < 598 / 16; ++block) {
    for (int32_t head = 0; head < 2; ++head) {
      problem.scale(false, problem.block_table(0)[block], head) = nan;
      problem.scale(true, problem.block_table(0)[block], head) = nan;
    }
    problem.block_table(0)[block] = std::numeric_limits<int32_t>::min();
  }
  Sm80GpuProblem device(problem, GetParam());
  ASSERT_EQ(device.Run(), "");
  EXPECT_EQ(FirstByteApart(problem.AllBits(), expected), "");
}

// Steps of 8 bytes: rows of keys and values are no multiples of 16 bytes apart.
TEST_P(Sm80Kv8Family, RowsThatAreNotMultiplesOf16BytesApart) {
  for (const int32_t head_dim : {24, 72, 136, 248}) {
    for (const bool heads_first : {false, true}) {
      SCOPED_TRACE(testing::Message() << head_dim << " heads first " << heads_first);
      AttentionCase spec = Case(DType::kInt8, DType::kFloat16);
      spec.head_dim = head_dim;
      spec.heads_first = heads_first;
      spec.num_kv_heads = 1;
      spec.kv_lens = {90, 200};
      spec.q_lens = {2, 5};
      ExpectOracle(spec, GetParam());
    }
  }
}

// Queries are multiplied by a power of two a row to fit float16.
TEST_P(Sm80Kv8Family, QueriesOfAnyMagnitude) {
  for (const float magnitude : {1e-38f, 1e-20f, 1e20f, 1e36f}) {
    SCOPED_TRACE(magnitude);
    AttentionCase spec = Case(DType::kFloat8E4M3);
    spec.magnitude = magnitude;
    spec.scale = std::max(0.1f / magnitude, 1e-37f);
    spec.kv_lens = {90, 200};
    spec.q_lens = {2, 5};
    PagedAttention problem(spec);
    // One query of zeros: the same weight for every key.
    std::fill_n(problem.memory().q.begin(), 128 * 2, std::byte{0});
    Sm80GpuProblem device(problem, GetParam());
    ASSERT_EQ(device.Run(), "");
    EXPECT_EQ(AgainstOracle(problem, AttentionOracle(problem.params())), "");
  }
}

TEST_P(Sm80Kv8Family, ScalesOfAnyMagnitudeSideBySide) {
  AttentionCase spec = Case(DType::kFloat8E4M3);
  spec.num_q_heads = spec.num_kv_heads = 1;
  spec.kv_lens = {400};
  spec.q_lens = {3};
  PagedAttention problem(spec);
  constexpr float kScales[] = {1e-20f, 3e-3f, 1e-9f, 7e-3f, 1e-2f, 1e-30f, 5e-7f};
  for (int32_t i = 0; i < 400 / 16; ++i) {
    problem.scale(true, problem.block_table(0)[i], 0) = kScales[i % 7];
  }
  Sm80GpuProblem device(problem, GetParam());
  ASSERT_EQ(device.Run(), "");
  EXPECT_EQ(AgainstOracle(problem, AttentionOracle(problem.params())), "");
}

// Weights of 2^-25 of the largest are a third of a per cent together: float16 must not lose them.
TEST_P(Sm80Kv8Family, Trap_14_ManySmallWeightsCount) {
  AttentionCase spec = Case(DType::kFloat8E4M3, DType::kFloat16);
  spec.num_q_heads = spec.num_kv_heads = 1;
  spec.scaling = KvScaling::kTensor;
  spec.block_size = 256;
  spec.kv_lens = {65536};
  PagedAttention problem(spec);
  AttentionParams& p = problem.params();
  for (int64_t position = 0; position < 65536; ++position) {
    problem.SetKv(0, position, 0, false, position == 777 ? 8.0f : 0.0f);
    problem.SetKv(0, position, 0, true, position == 777 ? 0.0f : 96.0f);
  }
  double sum = 0.0;
  for (int d = 0; d < 128; ++d) {
    uint16_t bits;
    std::memcpy(&bits, problem.memory().q.data() + 2 * d, 2);
    sum += Float16ToFloat(bits);
  }
  p.scale = static_cast<float>(17.2 / (sum * 8.0 * problem.scale(false, 0, 0)));
  Sm80GpuProblem device(problem, GetParam());
  ASSERT_EQ(device.Run(), "");
  const OracleOutput oracle = AttentionOracle(p);
  EXPECT_NEAR(problem.output(0, 0, 5) / oracle.o[5], 1.0, 2e-3);
}

TEST_P(Sm80Kv8Family, Trap_21_TwentyRunsGiveTheSameBits) {
  for (const DType kv_dtype : k8BitTypes) {
    for (const int32_t head_dim : {128, 256}) {
      AttentionCase spec = Case(kv_dtype);
      spec.head_dim = head_dim;
      spec.kv_lens = {3000, 5, 1097, 64};
      spec.q_lens = {1, 1, 2, 1};
      if (!GetParam()) spec.q_lens = {300, 5, 199, 64};
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
}

TEST_F(Sm80Kv8, Trap_23_EveryCutOfTheTilesGivesTheSameResult) {
  for (const DType kv_dtype : k8BitTypes) {
    AttentionCase spec = Case(kv_dtype);
    spec.kv_lens = {3000, 64, 129, 1001, 1};
    spec.q_lens = {1, 1, 2, 1, 5};
    PagedAttention problem(spec);
    const OracleOutput oracle = AttentionOracle(problem.params());
    for (const int32_t num_ctas : {1, 2, 5, 13, 50, 132, 333}) {
      Sm80GpuProblem device(problem, true, num_ctas);
      ASSERT_EQ(device.Run(), "");
      EXPECT_EQ(AgainstOracle(problem, oracle), "") << num_ctas;
    }
  }
}

TEST_F(Sm80Kv8, DecodeErrorIsThatOfRoundingTheOutput) {
  for (const DType kv_dtype : k8BitTypes) {
    for (const int32_t head_dim : {128, 256}) {
      AttentionCase spec = Case(kv_dtype);
      spec.head_dim = head_dim;
      spec.num_q_heads = 16;
      spec.num_kv_heads = 4;
      spec.kv_lens = {4096, 1000};
      spec.q_lens = {1, 1};
      PagedAttention problem(spec);
      Sm80GpuProblem device(problem, true);
      ASSERT_EQ(device.Run(), "");
      EXPECT_LE(RelativeError(problem, AttentionOracle(problem.params())), 2.0e-3)
          << DTypeName(kv_dtype) << " head_dim " << head_dim;
    }
  }
}

TEST_F(Sm80Tree, MasksWithWindowsSoftcapAndGroups) {
  for (const DType kv_dtype : {DType::kBFloat16, DType::kFloat8E4M3}) {
    for (const TreeMask tree : {TreeMask::kAncestors, TreeMask::kAny}) {
      for (const int32_t q_len : {1, 2, 16, 63, 64}) {
        for (const int32_t group : {1, 3, 8}) {
          for (const int32_t window : {-1, 6}) {
            SCOPED_TRACE(testing::Message()
                         << DTypeName(kv_dtype) << " tree " << static_cast<int>(tree) << " q_len "
                         << q_len << " group " << group << " window " << window);
            AttentionCase spec = Case(kv_dtype);
            spec.head_dim = 64;
            spec.tree = tree;
            spec.num_q_heads = 2 * group;
            spec.window_left = window;
            if (group == 3) spec.window_right = 4;
            spec.softcap = group == 1 ? 3.0f : 0.0f;
            spec.sinks = q_len == 16;
            // Whole steps, steps behind old tokens, and one that begins before the first token.
            spec.kv_lens = {q_len, q_len + 1, q_len + 65, q_len / 2, 200};
            spec.q_lens = {q_len, q_len, q_len, q_len, std::min(q_len, 5)};
            ExpectOracle(spec, true, 5);
          }
        }
      }
    }
  }
}

TEST_F(Sm80Tree, AChainOfTokensIsCausal) {
  AttentionCase spec = Case(DType::kBFloat16);
  spec.kv_lens = {130, 64, 7};
  spec.q_lens = {64, 33, 7};
  const auto causal = Bits(spec, true);
  spec.tree = TreeMask::kAncestors;
  for (const bool flag : {false, true}) {  // which does not count beside a tree
    spec.causal = flag;
    PagedAttention problem(spec);
    const AttentionParams& p = problem.params();
    for (int32_t seq = 0; seq < 3; ++seq) {
      for (int32_t i = 0; i < spec.q_lens[seq]; ++i) {
        problem.memory().tree_mask[(p.cu_seqlens_q[seq] + i) * p.tree_mask_stride] =
            ~uint64_t{0} >> (63 - i);
      }
    }
    Sm80GpuProblem device(problem, true);
    ASSERT_EQ(device.Run(), "");
    EXPECT_EQ(FirstByteApart(problem.AllBits(), causal), "");
  }
}

TEST_F(Sm80Kv8, WrongScalesAndTreesAreRefusedByName) {
  PagedAttention problem(Case(DType::kFloat8E4M3));
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
    EXPECT_EQ(LaunchDecode(decode.decode_setup(), params, {}, decode.decode_launch(),
                           decode.stream().handle()),
              status);
    return status;
  };
  using P = AttentionParams&;
  EXPECT_EQ(launch_with([](P) {}), KernelStatus::kOk);
  EXPECT_EQ(launch_with([](P p) { p.kv_dtype = DType::kInt8; }), KernelStatus::kOk);
  EXPECT_EQ(launch_with([](P p) { p.scales.k = nullptr; }), KernelStatus::kUnsupportedScales);
  EXPECT_EQ(launch_with([](P p) { p.scales.v = nullptr; }), KernelStatus::kUnsupportedScales);
  EXPECT_EQ(launch_with([](P p) { p.scales.v_head_stride = -1; }),
            KernelStatus::kUnsupportedScales);
  EXPECT_EQ(launch_with([](P p) { p.k = static_cast<const char*>(p.k) + 4; }),
            KernelStatus::kMisaligned);
  EXPECT_EQ(launch_with([](P p) { p.v_token_stride += 4; }), KernelStatus::kBadStride);
  EXPECT_EQ(launch_with([](P p) { p.kv_dtype = DType::kBFloat16; }),
            KernelStatus::kUnsupportedDType);
  EXPECT_EQ(launch_with([](P p) { p.q_dtype = DType::kFloat32; }), KernelStatus::kUnsupportedDType);
  AttentionParams params = decode.device_params();
  params.tree_mask = reinterpret_cast<const uint64_t*>(params.scales.k);
  auto launch_tree = [&](int32_t max_q_len) {
    DecodeLaunch launch = decode.decode_launch();
    launch.max_q_len = max_q_len;
    return LaunchDecode(decode.decode_setup(), params, {}, launch, decode.stream().handle());
  };
  EXPECT_EQ(launch_tree(65), KernelStatus::kUnsupportedTreeMask);
  params.tree_mask_stride = -1;
  EXPECT_EQ(launch_tree(1), KernelStatus::kUnsupportedTreeMask);
  EXPECT_EQ(LaunchSm80Prefill(prefill.prefill_setup(), params, prefill.prefill_launch(),
                              prefill.stream().handle()),
            KernelStatus::kUnsupportedTreeMask);
  EXPECT_EQ(prefill.Download(), "");
  EXPECT_EQ(decode.Download(), "");

  PagedAttention wide(Case(DType::kBFloat16));
  Sm80GpuProblem wide_device(wide, true);
  wide_device.Plan();
  wide_device.device_params().scales = decode.device_params().scales;
  EXPECT_EQ(wide_device.Enqueue(), KernelStatus::kUnsupportedScales);
}

}  // namespace
}  // namespace longspan
