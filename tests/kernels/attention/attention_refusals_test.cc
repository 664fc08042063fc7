// What the launchers of GPU attention refuse, each with its status, before anything is asked of a
// device: these run without one. (That nothing was written is in the lines' own tests.)
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/attention/decode/decode.h"
#include "kernels/attention/decode/decode_instance.h"
#include "kernels/attention/prefill/sm80_prefill.h"
#include "kernels/attention/prefill/sm80_prefill_instance.h"
#include "kernels/attention/prefill/sm90_prefill.h"
#include "kernels/attention/prefill/sm90_prefill_instance.h"

namespace longspan {
namespace {

alignas(256) std::array<std::byte, 4096> memory;  // stands for device memory; never read

constexpr int32_t kHeads = 8, kKvHeads = 2, kHeadDim = 128, kBlockSize = 16;
constexpr int64_t kTotalQ = 64;  // of one row any stride would do

AttentionParams GoodParams() {
  AttentionParams p;
  p.q = p.k = p.v = memory.data();
  p.o = memory.data();
  p.lse = reinterpret_cast<float*>(memory.data());
  p.block_table = reinterpret_cast<const int32_t*>(memory.data());
  p.block_table_stride = 4;
  p.num_seqs = 1;
  p.num_q_heads = kHeads;
  p.num_kv_heads = kKvHeads;
  p.head_dim = kHeadDim;
  p.block_size = kBlockSize;
  p.q_head_stride = p.o_head_stride = p.k_head_stride = p.v_head_stride = kHeadDim;
  p.q_token_stride = p.o_token_stride = kHeads * kHeadDim;
  p.k_token_stride = p.v_token_stride = kKvHeads * kHeadDim;
  p.k_block_stride = p.v_block_stride = kBlockSize * kKvHeads * kHeadDim;
  p.q_dtype = p.kv_dtype = DType::kBFloat16;
  p.scale = 0.1f;
  return p;
}

// What a launch gets besides params, in the words of all of them.
struct Launch {
  int32_t num_items = 1;  // query rows of a sequence, blocks, pieces
  const std::byte* plan = memory.data();
  std::byte* workspace = memory.data();
  int64_t workspace_bytes = int64_t{1} << 40;
  bool has_setup = true;
};

KernelStatus LaunchDecodeOf(const DecodeInstance& instance, const AttentionParams& params,
                            const Launch& launch) {
  const DecodeSetup setup = {launch.has_setup ? &instance : nullptr, 132};
  return LaunchDecode(
      setup, params, {},
      {launch.plan, launch.num_items, launch.workspace, launch.workspace_bytes, false}, nullptr);
}

KernelStatus LaunchDecodeSm90(const AttentionParams& params, const Launch& launch) {
  return LaunchDecodeOf(kSm90DecodeBf16D128, params, launch);
}
KernelStatus LaunchDecodeSm80(const AttentionParams& params, const Launch& launch) {
  return LaunchDecodeOf(kSm80DecodeBf16D128, params, launch);
}

KernelStatus LaunchPrefillSm90(const AttentionParams& params, const Launch& launch) {
  const Sm90PrefillInstance& instance = kSm90PrefillBf16D128;
  const Sm90PrefillSetup setup = {launch.has_setup ? &instance : nullptr, 132,
                                  instance.rows_per_tile};
  Sm90PrefillKvMaps maps;
  maps.box_tokens = kBlockSize;
  const Sm90PrefillLaunch args = {reinterpret_cast<const Sm90PrefillPiece*>(launch.plan),
                                  launch.num_items,
                                  kTotalQ,
                                  1,
                                  launch.workspace,
                                  launch.workspace_bytes};
  return LaunchSm90Prefill(setup, params, maps, args, nullptr);
}

KernelStatus LaunchPrefillSm80(const AttentionParams& params, const Launch& launch) {
  const Sm80PrefillInstance& instance = kSm80PrefillBf16D128;
  const Sm80PrefillSetup setup = {launch.has_setup ? &instance : nullptr, instance.block_rows};
  return LaunchSm80Prefill(setup, params,
                           {reinterpret_cast<const PrefillBlock*>(launch.plan), launch.num_items},
                           nullptr);
}

struct Launcher {
  const char* name;
  KernelStatus (*launch)(const AttentionParams&, const Launch&);
  bool is_sm90, has_workspace;
};
constexpr Launcher kLaunchers[] = {{"decode_sm90", LaunchDecodeSm90, true, true},
                                   {"prefill_sm90", LaunchPrefillSm90, true, true},
                                   {"decode_sm80", LaunchDecodeSm80, false, true},
                                   {"prefill_sm80", LaunchPrefillSm80, false, false}};

template <typename T>
T* BytesOn(T* pointer, int bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(pointer) + static_cast<uintptr_t>(bytes));
}
const void* BytesOn(const void* pointer, int bytes) {
  return static_cast<const std::byte*>(pointer) + bytes;
}

using P = AttentionParams&;
using L = Launch&;
struct Change {
  const char* what;
  KernelStatus expected;
  std::function<void(P, L)> apply;
};

class AttentionRefusals : public testing::TestWithParam<Launcher> {
 protected:
  static void ExpectAll(const std::vector<Change>& changes) {
    for (const Change& change : changes) {
      AttentionParams params = GoodParams();
      Launch launch;
      change.apply(params, launch);
      EXPECT_EQ(KernelStatusText(GetParam().launch(params, launch)),
                KernelStatusText(change.expected))
          << change.what;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Every, AttentionRefusals, testing::ValuesIn(kLaunchers),
                         [](const testing::TestParamInfo<Launcher>& launcher) {
                           return std::string(launcher.param.name);
                         });

// The other tests would be empty if a good launch were refused for its arguments too.
TEST_P(AttentionRefusals, AGoodLaunchFailsForWantOfADeviceAlone) {
  if (FindGpuDevice()) GTEST_SKIP() << "there is a device: it would run";
  const KernelStatus status = GetParam().launch(GoodParams(), {});
  EXPECT_TRUE(status == KernelStatus::kLaunchFailed || status == KernelStatus::kUnsupportedDevice)
      << KernelStatusText(status);
}

TEST_P(AttentionRefusals, UnsupportedShapes) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ExpectAll({
      {"float32", KernelStatus::kUnsupportedDType,
       [](P p, L) { p.q_dtype = p.kv_dtype = DType::kFloat32; }},
      {"mixed types", KernelStatus::kUnsupportedDType,
       [](P p, L) { p.kv_dtype = DType::kFloat16; }},
      {"another kernel's type", KernelStatus::kUnsupportedDType,
       [](P p, L) { p.q_dtype = p.kv_dtype = DType::kFloat16; }},
      {"head_dim 0", KernelStatus::kUnsupportedHeadDim, [](P p, L) { p.head_dim = 0; }},
      {"head_dim 100", KernelStatus::kUnsupportedHeadDim, [](P p, L) { p.head_dim = 100; }},
      {"another kernel's head_dim", KernelStatus::kUnsupportedHeadDim,
       [](P p, L) { p.head_dim = 136; }},
      {"head_dim 264", KernelStatus::kUnsupportedHeadDim, [](P p, L) { p.head_dim = 264; }},
      {"9 heads on 2", KernelStatus::kUnsupportedHeads, [](P p, L) { p.num_q_heads = 9; }},
      {"1 head on 2", KernelStatus::kUnsupportedHeads, [](P p, L) { p.num_q_heads = 1; }},
      {"no KV head", KernelStatus::kUnsupportedHeads, [](P p, L) { p.num_kv_heads = 0; }},
      {"blocks of 0", KernelStatus::kUnsupportedBlockSize, [](P p, L) { p.block_size = 0; }},
      {"blocks of 8", KernelStatus::kUnsupportedBlockSize, [](P p, L) { p.block_size = 8; }},
      {"blocks of 24", KernelStatus::kUnsupportedBlockSize, [](P p, L) { p.block_size = 24; }},
      {"blocks of 512", KernelStatus::kUnsupportedBlockSize, [](P p, L) { p.block_size = 512; }},
      {"infinite scale", KernelStatus::kUnsupportedOption, [=](P p, L) { p.scale = infinity; }},
      {"scale NaN", KernelStatus::kUnsupportedOption, [=](P p, L) { p.scale = nan; }},
      {"scale beyond range", KernelStatus::kUnsupportedOption, [](P p, L) { p.scale = 3e38f; }},
      {"softcap -1", KernelStatus::kUnsupportedOption, [](P p, L) { p.softcap = -1.0f; }},
      {"softcap NaN", KernelStatus::kUnsupportedOption, [=](P p, L) { p.softcap = nan; }},
      {"window_left -2", KernelStatus::kUnsupportedOption, [](P p, L) { p.window_left = -2; }},
      {"window_right -2", KernelStatus::kUnsupportedOption, [](P p, L) { p.window_right = -2; }},
  });
}

TEST_P(AttentionRefusals, OptionsThatSm90DoesNotCompute) {
  if (!GetParam().is_sm90) GTEST_SKIP() << "the sm_80 line computes them";
  const float* floats = reinterpret_cast<const float*>(memory.data());
  ExpectAll({
      {"softcap", KernelStatus::kUnsupportedOption, [](P p, L) { p.softcap = 30.0f; }},
      {"sinks", KernelStatus::kUnsupportedOption, [=](P p, L) { p.sinks = floats; }},
      {"ALiBi", KernelStatus::kUnsupportedOption, [=](P p, L) { p.alibi_slopes = floats; }},
      {"a right window", KernelStatus::kUnsupportedOption,
       [](P p, L) { p.causal = false, p.window_right = 3; }},
  });
}

// Never computed as if they were not there.
TEST_P(AttentionRefusals, ScalesWithout8BitKeysAndTreesThatItDoesNotKnow) {
  const float* floats = reinterpret_cast<const float*>(memory.data());
  ExpectAll({
      {"e4m3 keys", KernelStatus::kUnsupportedDType,
       [](P p, L) { p.kv_dtype = DType::kFloat8E4M3; }},
      {"int8 keys", KernelStatus::kUnsupportedDType, [](P p, L) { p.kv_dtype = DType::kInt8; }},
      {"scales of k", KernelStatus::kUnsupportedScales, [=](P p, L) { p.scales.k = floats; }},
      {"scales of v", KernelStatus::kUnsupportedScales, [=](P p, L) { p.scales.v = floats; }},
  });
  const uint64_t* words = reinterpret_cast<const uint64_t*>(memory.data());
  if (GetParam().launch != LaunchDecodeSm80) {
    ExpectAll(
        {{"a tree", KernelStatus::kUnsupportedTreeMask, [=](P p, L) { p.tree_mask = words; }}});
    return;
  }
  ExpectAll({
      {"a tree of 65", KernelStatus::kUnsupportedTreeMask,
       [=](P p, L l) { p.tree_mask = words, l.num_items = 65; }},
      {"its stride", KernelStatus::kUnsupportedTreeMask,
       [=](P p, L) { p.tree_mask = words, p.tree_mask_stride = -1; }},
      {"its place", KernelStatus::kUnsupportedTreeMask,
       [=](P p, L) { p.tree_mask = BytesOn(words, 4); }},
  });
}

TEST_P(AttentionRefusals, WrongStrides) {
  ExpectAll({
      {"q token", KernelStatus::kBadStride, [](P p, L) { p.q_token_stride += 1; }},
      {"q head", KernelStatus::kBadStride, [](P p, L) { p.q_head_stride += 1; }},
      {"o token", KernelStatus::kBadStride, [](P p, L) { p.o_token_stride += 1; }},
      {"o head", KernelStatus::kBadStride, [](P p, L) { p.o_head_stride += 1; }},
  });
}

TEST_P(AttentionRefusals, MisalignedPointers) {
  ExpectAll({
      {"q", KernelStatus::kMisaligned, [](P p, L) { p.q = BytesOn(p.q, 2); }},
      {"lse", KernelStatus::kMisaligned, [](P p, L) { p.lse = BytesOn(p.lse, 2); }},
      {"table", KernelStatus::kMisaligned,
       [](P p, L) { p.block_table = BytesOn(p.block_table, 2); }},
      {"plan", KernelStatus::kMisaligned, [](P, L l) { l.plan = l.plan + 8; }},
  });
  if (!GetParam().has_workspace) return;
  ExpectAll({{"workspace", KernelStatus::kMisaligned, [](P, L l) { l.workspace += 8; }}});
}

TEST_P(AttentionRefusals, MissingPointersAndSmallWorkspaces) {
  ExpectAll({
      {"q", KernelStatus::kBadShape, [](P p, L) { p.q = nullptr; }},
      {"o", KernelStatus::kBadShape, [](P p, L) { p.o = nullptr; }},
      {"plan", KernelStatus::kBadShape, [](P, L l) { l.plan = nullptr; }},
      {"negative extent", KernelStatus::kBadShape, [](P, L l) { l.num_items = -1; }},
      {"no setup", KernelStatus::kUnsupportedDevice, [](P, L l) { l.has_setup = false; }},
  });
  if (!GetParam().has_workspace) return;
  ExpectAll({
      {"workspace", KernelStatus::kBadShape, [](P, L l) { l.workspace = nullptr; }},
      {"its size", KernelStatus::kWorkspaceTooSmall, [](P, L l) { l.workspace_bytes = 3; }},
  });
}

TEST_P(AttentionRefusals, NothingToDoIsNotRefused) {
  AttentionParams params = GoodParams();
  params.q = nullptr;
  params.o = nullptr;
  Launch launch;
  launch.num_items = 0;
  EXPECT_EQ(GetParam().launch(params, launch), KernelStatus::kOk);
}

TEST(AttentionRefusalsOf8BitKv, ScalesThatAreMissingOrWrong) {
  const float* floats = reinterpret_cast<const float*>(memory.data());
  const Change changes[] = {
      {"k missing", KernelStatus::kUnsupportedScales, [](P p, L) { p.scales.k = nullptr; }},
      {"v missing", KernelStatus::kUnsupportedScales, [](P p, L) { p.scales.v = nullptr; }},
      {"k stride", KernelStatus::kUnsupportedScales, [](P p, L) { p.scales.k_block_stride = -1; }},
      {"v stride", KernelStatus::kUnsupportedScales, [](P p, L) { p.scales.v_head_stride = -8; }},
      {"k misaligned", KernelStatus::kMisaligned,
       [](P p, L) { p.scales.k = BytesOn(p.scales.k, 2); }},
      {"float32 queries", KernelStatus::kUnsupportedDType,
       [](P p, L) { p.q_dtype = DType::kFloat32; }},
  };
  for (const Change& change : changes) {
    AttentionParams params = GoodParams();
    params.kv_dtype = DType::kFloat8E4M3;
    params.scales.k = params.scales.v = floats;
    Launch launch;
    change.apply(params, launch);
    const std::string_view expected = KernelStatusText(change.expected);
    EXPECT_EQ(KernelStatusText(LaunchDecodeOf(kSm80Decode8BitD128, params, launch)), expected)
        << change.what;
    EXPECT_EQ(KernelStatusText(LaunchDecodeOf(kSm90DecodeKvE4M3D128, params, launch)), expected)
        << change.what;
    const Sm80PrefillInstance& instance = kSm80Prefill8BitD128;
    const Sm80PrefillSetup setup = {&instance, instance.block_rows};
    const Sm80PrefillLaunch args = {reinterpret_cast<const PrefillBlock*>(launch.plan), 1};
    EXPECT_EQ(KernelStatusText(LaunchSm80Prefill(setup, params, args, nullptr)), expected)
        << change.what;
  }
}

// The sm_80 line gets keys and values with each launch, sm_90a by maps that are made before.
TEST_P(AttentionRefusals, KeysAndValuesThatCannotBeCopied) {
  const std::vector<Change> changes = {
      {"k missing", KernelStatus::kBadShape, [](P p, L) { p.k = nullptr; }},
      {"v missing", KernelStatus::kBadShape, [](P p, L) { p.v = nullptr; }},
      {"k misaligned", KernelStatus::kMisaligned, [](P p, L) { p.k = BytesOn(p.k, 8); }},
      {"v misaligned", KernelStatus::kMisaligned, [](P p, L) { p.v = BytesOn(p.v, 8); }},
      {"k token", KernelStatus::kBadStride, [](P p, L) { p.k_token_stride += 4; }},
      {"k head", KernelStatus::kBadStride, [](P p, L) { p.k_head_stride += 4; }},
      {"k block", KernelStatus::kBadStride, [](P p, L) { p.k_block_stride += 2; }},
      {"v token", KernelStatus::kBadStride, [](P p, L) { p.v_token_stride += 4; }},
      {"v head", KernelStatus::kBadStride, [](P p, L) { p.v_head_stride += 1; }},
      {"v block", KernelStatus::kBadStride, [](P p, L) { p.v_block_stride += 4; }},
  };
  if (!GetParam().is_sm90) {
    ExpectAll(changes);
    return;
  }
  DecodeKvMaps decode;
  Sm90PrefillKvMaps prefill;
  // Maps of v are made after those of k, with the driver's help.
  const bool has_driver = MakeDecodeKvMaps(GoodParams(), 4, &decode) == KernelStatus::kOk;
  for (const Change& change : changes) {
    if (change.what[0] == 'v' && !has_driver) continue;
    AttentionParams params = GoodParams();
    Launch launch;
    change.apply(params, launch);
    EXPECT_EQ(MakeDecodeKvMaps(params, 4, &decode), change.expected) << change.what;
    EXPECT_EQ(MakeSm90PrefillKvMaps(params, 4, &prefill), change.expected) << change.what;
  }
}

TEST(AttentionPools, ExtentsThatNoPoolHasAreRefused) {
  DecodeKvMaps decode;
  Sm90PrefillKvMaps prefill;
  for (const int64_t num_blocks : {int64_t{0}, int64_t{-1}, int64_t{1} << 31}) {
    EXPECT_EQ(MakeDecodeKvMaps(GoodParams(), num_blocks, &decode), KernelStatus::kBadShape);
    EXPECT_EQ(MakeSm90PrefillKvMaps(GoodParams(), num_blocks, &prefill), KernelStatus::kBadShape);
  }
}

TEST(AttentionDevices, TooOldACardIsRefusedByEveryFamily) {
  for (const int32_t capability : {0, 61, 70, 75}) {
    const GpuDevice old = {.name = "old", .compute_capability = capability, .num_sms = 40};
    DecodeSetup decode;
    Sm80PrefillSetup sm80;
    Sm90PrefillSetup sm90;
    EXPECT_EQ(PrepareDecode(GoodParams(), old, &decode), KernelStatus::kUnsupportedDevice);
    EXPECT_EQ(PrepareSm80Prefill(GoodParams(), old, &sm80), KernelStatus::kUnsupportedDevice);
    EXPECT_EQ(PrepareSm90Prefill(GoodParams(), old, &sm90), KernelStatus::kUnsupportedDevice);
    EXPECT_EQ(decode.instance, nullptr);
  }
  for (const int32_t capability : {80, 89, 100, 120}) {  // not the card that sm_90a is made for
    const GpuDevice other = {.name = "other", .compute_capability = capability, .num_sms = 100};
    Sm90PrefillSetup sm90;
    EXPECT_EQ(PrepareSm90Prefill(GoodParams(), other, &sm90), KernelStatus::kUnsupportedDevice);
  }
}

}  // namespace
}  // namespace longspan
