// GPU prefill attention against the double oracle, with poison wherever it must not look and guard
// words wherever it must not write. Skips, saying why, on machines without a fitting device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/attention/prefill/sm90_prefill.h"
#include "tests/kernels/attention/gpu_attention_memory.h"
#include "tests/support/attention_oracle.h"

namespace longspan {
namespace {

struct Options {
  int32_t num_ctas = 0;         // 0: one per SM
  bool without_blocks = false;  // the pool is one block
};

// A problem on the device: planned, launched, brought back.
class PrefillProblem {
 public:
  explicit PrefillProblem(PagedAttention& problem, Options options = {})
      : problem_(problem), memory_(problem) {
    GpuDevice device = FindGpuDevice().value();
    if (options.num_ctas > 0) device.num_sms = options.num_ctas;
    params_ = memory_.device_params();
    if (options.without_blocks) params_.block_table = nullptr;
    status_ = PrepareSm90Prefill(params_, device, &setup_);
    if (status_ != KernelStatus::kOk) return;
    status_ = MakeSm90PrefillKvMaps(params_, std::max<int64_t>(1, problem.num_blocks()), &maps_);
    if (status_ != KernelStatus::kOk) return;
    Plan(options.without_blocks);
    workspace_ = DeviceBuffer::Allocate(Sm90PrefillWorkspaceBytes());
    EXPECT_TRUE(workspace_->Fill(0, memory_.stream().handle()).ok());
    launch_.workspace = workspace_->data();
    launch_.workspace_bytes = workspace_->size_bytes();
  }

  KernelStatus status() const { return status_; }
  AttentionParams& params() { return params_; }
  Sm90PrefillLaunch& launch() { return launch_; }
  KernelStatus Enqueue() {
    return LaunchSm90Prefill(setup_, params_, maps_, launch_, memory_.stream().handle());
  }
  bool Run() {
    if (status_ == KernelStatus::kOk) status_ = Enqueue();
    if (status_ != KernelStatus::kOk) {
      ADD_FAILURE() << KernelStatusText(status_);
      return false;
    }
    if (!memory_.Download()) return false;
    int32_t turns[2] = {1, 1};
    EXPECT_TRUE(workspace_->CopyTo(std::as_writable_bytes(std::span(turns)), nullptr).ok());
    EXPECT_TRUE(memory_.stream().Synchronize().ok());
    return turns[0] == 0 && turns[1] == 0;
  }

 private:
  void Plan(bool without_blocks) {
    const AttentionParams& host = problem_.params();
    const auto num_seqs = static_cast<size_t>(host.num_seqs);
    std::vector<int32_t> cu_seqlens_k;
    if (without_blocks) {
      cu_seqlens_k.push_back(0);
      for (size_t i = 0; i < num_seqs; ++i) {
        cu_seqlens_k.push_back(cu_seqlens_k.back() + host.seq_lens[i]);
      }
    }
    const std::span cu(host.cu_seqlens_q, num_seqs + 1);
    std::vector<Sm90PrefillPiece> pieces(NumSm90PrefillPieces(cu, setup_.rows_per_tile));
    PlanSm90Prefill({cu,
                     {host.seq_lens, num_seqs},
                     cu_seqlens_k,
                     setup_.rows_per_tile,
                     host.causal,
                     host.window_left},
                    pieces);
    plan_ = DeviceBuffer::Allocate(static_cast<int64_t>(pieces.size() * sizeof(pieces[0])) + 16);
    EXPECT_TRUE(plan_->CopyFrom(std::as_bytes(std::span(pieces)), memory_.stream().handle()).ok());
    EXPECT_TRUE(memory_.stream().Synchronize().ok());
    launch_.pieces = plan_->as<Sm90PrefillPiece>();
    launch_.num_pieces = static_cast<int64_t>(pieces.size());
    launch_.total_q = cu.back();
    launch_.max_keys =
        num_seqs == 0 ? 0 : *std::max_element(host.seq_lens, host.seq_lens + num_seqs);
  }

  PagedAttention& problem_;
  GpuAttentionMemory memory_;
  AttentionParams params_;
  Sm90PrefillSetup setup_;
  Sm90PrefillKvMaps maps_;
  Sm90PrefillLaunch launch_;
  std::optional<DeviceBuffer> plan_, workspace_;
  KernelStatus status_ = KernelStatus::kOk;
};

class Sm90Prefill : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = NoHopperDevice(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

AttentionCase Case(std::vector<int32_t> q_lens, std::vector<int32_t> kv_lens,
                   DType dtype = DType::kBFloat16) {
  AttentionCase spec;
  spec.q_dtype = spec.kv_dtype = dtype;
  spec.head_dim = 128;
  spec.block_size = 64;
  spec.num_q_heads = 4;
  spec.num_kv_heads = 2;
  spec.scale = 0.1f;
  spec.q_lens = std::move(q_lens);
  spec.kv_lens = std::move(kv_lens);
  return spec;
}

// Weights and output are rounded to 16 bits.
double Tolerance(const AttentionParams& params) {
  return 4.0 * (params.q_dtype == DType::kBFloat16 ? 0x1p-9 : 0x1p-12);
}

void ExpectOracle(const AttentionCase& spec, Options options = {}) {
  PagedAttention problem(spec);
  PrefillProblem device(problem, options);
  ASSERT_TRUE(device.Run());
  EXPECT_EQ(CompareWithOracle(problem.params(), AttentionOracle(problem.params()),
                              Tolerance(problem.params()), 3e-5),
            "");
}

std::vector<std::byte> Bits(const AttentionCase& spec, Options options = {}) {
  PagedAttention problem(spec);
  PrefillProblem device(problem, options);
  EXPECT_TRUE(device.Run());
  return problem.AllBits();
}

TEST_F(Sm90Prefill, EveryInstanceMatchesTheOracleAtTileAndBlockBorders) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int32_t head_dim : {64, 128, 256}) {
      for (const int32_t block_size : {16, 48, 64, 112, 128, 256}) {
        SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " head_dim " << head_dim
                                        << " block_size " << block_size);
        AttentionCase spec =
            Case({1, 0, 63, 64, 65, 127, 129, 7}, {1, 5, 63, 64, 65, 127, 129, 300}, dtype);
        spec.head_dim = head_dim;
        spec.block_size = block_size;
        ExpectOracle(spec);
      }
    }
  }
}

TEST_F(Sm90Prefill, Trap_19_ChunksBehindAHistoryStandAtTheEnd) {
  for (const int32_t head_dim : {64, 128, 256}) {
    for (const int32_t q_len : {1, 64, 130, 193, 257}) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " q_len " << q_len);
      AttentionCase spec = Case({q_len, q_len, q_len}, {257, 384, 1009});
      spec.head_dim = head_dim;
      ExpectOracle(spec);
    }
  }
}

TEST_F(Sm90Prefill, RowsBeforeTheFirstKeySeeNothing) {
  ExpectOracle(Case({200, 3, 140}, {70, 0, 139}));  // more queries than keys: O = 0, lse = -inf
}

TEST_F(Sm90Prefill, WithoutTheCausalMaskEveryRowSeesAllKeys) {
  for (const int32_t head_dim : {64, 128, 256}) {
    SCOPED_TRACE(head_dim);
    AttentionCase spec = Case({1, 65, 128, 200, 0, 10}, {1, 500, 256, 127, 20, 0});
    spec.head_dim = head_dim;
    spec.causal = false;
    ExpectOracle(spec);
  }
}

TEST_F(Sm90Prefill, Trap_18_WindowsOfEverySizeAroundATile) {
  for (const int32_t head_dim : {64, 128, 256}) {
    for (const int32_t window : {0, 1, 63, 64, 65, 127, 128, 129, 300, 100000}) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " window " << window);
      AttentionCase spec = Case({300, 1, 129}, {300, 513, 700});
      spec.head_dim = head_dim;
      spec.window_left = window;
      ExpectOracle(spec);
    }
  }
}

TEST_F(Sm90Prefill, Trap_20_EveryGroupFindsItsKeys) {
  for (const int32_t group : {1, 2, 3, 5, 7, 8, 16}) {
    SCOPED_TRACE(group);
    AttentionCase spec = Case({70, 130}, {100, 130});
    spec.num_kv_heads = 2;
    spec.num_q_heads = 2 * group;
    ExpectOracle(spec);
  }
}

TEST_F(Sm90Prefill, Trap_06_EmptySequencesLeaveTheirNeighboursAlone) {
  for (const int32_t num_ctas : {1, 2, 3, 7, 0}) {
    SCOPED_TRACE(num_ctas);
    ExpectOracle(Case({0, 130, 0, 64, 5, 0, 1, 0}, {9, 130, 0, 200, 0, 0, 77, 0}),
                 {.num_ctas = num_ctas});
  }
}

TEST_F(Sm90Prefill, Trap_01_WhatNobodyOwnsIsNotSeen) {
  for (const int32_t head_dim : {64, 128, 256}) {
    for (const int32_t window : {-1, 100}) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " window " << window);
      AttentionCase spec = Case({1, 65, 100}, {127, 129, 333});
      spec.head_dim = head_dim;
      spec.block_size = 48;
      spec.window_left = window;
      spec.fill = KvFill::kZeros;
      const std::vector<std::byte> expected = Bits(spec);
      spec.fill = KvFill::kNan;
      EXPECT_EQ(Bits(spec), expected);
      spec.fill = KvFill::kInf;
      EXPECT_EQ(Bits(spec), expected);
    }
  }
}

TEST_F(Sm90Prefill, BlocksOrderAndStridesEnterNowhere) {
  AttentionCase spec = Case({130, 257}, {400, 300});
  const std::vector<std::byte> expected = Bits(spec);
  for (const int32_t block_size : {16, 64, 96, 256}) {
    for (const bool heads_first : {false, true}) {
      spec.block_size = block_size;
      spec.heads_first = heads_first;
      spec.block_order_seed = static_cast<uint32_t>(block_size);
      EXPECT_EQ(Bits(spec), expected) << block_size << heads_first;
    }
  }
}

TEST_F(Sm90Prefill, Trap_13_ARowsBitsAreThoseOfItsSequenceAloneInAnyChunks) {
  // The last 64-row border of a chunk moves with it; keys are cut at absolute multiples.
  const std::vector<std::byte> whole = Bits(Case({500}, {500}));
  for (const int32_t chunk : {1, 60, 128, 200}) {
    PagedAttention problem(Case({chunk}, {500}));
    PrefillProblem device(problem);
    ASSERT_TRUE(device.Run());
    PagedAttention reference(Case({500}, {500}));
    PrefillProblem reference_device(reference);
    ASSERT_TRUE(reference_device.Run());
    EXPECT_EQ(problem.RowBits(0, 0, chunk), reference.RowBits(0, 500 - chunk, 500)) << chunk;
  }
  EXPECT_FALSE(whole.empty());
}

TEST_F(Sm90Prefill, Trap_21_TheSameBitsTwentyTimes) {
  for (const int32_t head_dim : {64, 128, 256}) {
    AttentionCase spec = Case({700, 300}, {700, 1500});
    spec.head_dim = head_dim;
    spec.num_q_heads = 16;
    spec.num_kv_heads = 4;
    const std::vector<std::byte> expected = Bits(spec);
    for (int run = 0; run < 20; ++run) ASSERT_EQ(Bits(spec), expected) << head_dim;
  }
}

TEST_F(Sm90Prefill, KeysInOnePieceNeedNoTable) {
  for (const int32_t head_dim : {64, 128, 256}) {
    for (const int32_t length : {1, 37, 128, 1009}) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " length " << length);
      AttentionCase spec = Case({std::min(length, 200)}, {length});
      spec.head_dim = head_dim;
      spec.block_size = length;
      spec.spare_blocks = 0;
      spec.block_order_seed = 0;
      ExpectOracle(spec, {.without_blocks = true});
    }
  }
}

TEST_F(Sm90Prefill, LongHistoriesMatchToo) {
  AttentionCase spec = Case({33}, {16411});
  spec.num_q_heads = spec.num_kv_heads = 1;
  ExpectOracle(spec);
}

TEST_F(Sm90Prefill, LaunchesNothingThatItCannotDo) {
  PagedAttention problem(Case({64}, {64}));
  PrefillProblem device(problem);
  ASSERT_EQ(device.status(), KernelStatus::kOk);
  auto status_with = [&](auto&& change) {
    const AttentionParams params = device.params();
    const Sm90PrefillLaunch launch = device.launch();
    change(device.params(), device.launch());
    const KernelStatus status = device.Enqueue();
    device.params() = params;
    device.launch() = launch;
    return status;
  };
  using P = AttentionParams;
  using L = Sm90PrefillLaunch;
  EXPECT_EQ(status_with([](P& p, L&) { p.softcap = 30.0f; }), KernelStatus::kUnsupportedOption);
  EXPECT_EQ(status_with([](P& p, L&) { p.scale = -1.0f; }), KernelStatus::kUnsupportedOption);
  EXPECT_EQ(status_with([](P& p, L&) { p.head_dim = 64; }), KernelStatus::kUnsupportedHeadDim);
  EXPECT_EQ(status_with([](P& p, L&) { p.num_q_heads = 5; }), KernelStatus::kUnsupportedHeads);
  EXPECT_EQ(status_with([](P& p, L&) { p.block_size = 24; }), KernelStatus::kUnsupportedBlockSize);
  EXPECT_EQ(status_with([](P& p, L&) { p.q_token_stride += 1; }), KernelStatus::kBadStride);
  EXPECT_EQ(status_with([](P& p, L&) { p.o_head_stride += 2; }), KernelStatus::kBadStride);
  EXPECT_EQ(status_with([](P& p, L&) { p.q = static_cast<const std::byte*>(p.q) + 2; }),
            KernelStatus::kMisaligned);
  EXPECT_EQ(status_with([](P& p, L&) { p.o = nullptr; }), KernelStatus::kBadShape);
  EXPECT_EQ(status_with([](P&, L& l) { l.workspace_bytes = 4; }), KernelStatus::kWorkspaceTooSmall);
  EXPECT_EQ(status_with([](P&, L& l) { l.num_pieces = 0; }), KernelStatus::kOk);
  GpuDevice old = FindGpuDevice().value();
  old.compute_capability = 75;
  Sm90PrefillSetup setup;
  EXPECT_EQ(PrepareSm90Prefill(device.params(), old, &setup), KernelStatus::kUnsupportedDevice);
}

}  // namespace
}  // namespace longspan
