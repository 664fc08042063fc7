// The C functions over the attention families: each call is checked and turned into a kernel's
// params, nothing is kept but what the device's kernels need to start.
#include "kernels/attention/dropin/attn_c.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <new>
#include <span>
#include <string>

#include "kernels/attention/decode/decode.h"
#include "kernels/attention/dropin/append_rows.h"
#include "kernels/attention/dropin/attn_choice.h"
#include "kernels/attention/prefill/sm80_prefill.h"
#include "kernels/attention/prefill/sm90_prefill.h"
#include "kernels/kernel_status.h"
#include "kernels/kv_store.h"
#include "kernels/rope.h"
#include "kernels/runtime/device.h"

namespace longspan {
namespace {

static_assert(static_cast<int>(KernelStatus::kOk) == LONGSPAN_ATTN_OK);
static_assert(static_cast<int>(KernelStatus::kUnsupportedDType) == LONGSPAN_ATTN_DTYPE);
static_assert(static_cast<int>(KernelStatus::kUnsupportedHeadDim) == LONGSPAN_ATTN_HEAD_DIM);
static_assert(static_cast<int>(KernelStatus::kUnsupportedHeads) == LONGSPAN_ATTN_HEADS);
static_assert(static_cast<int>(KernelStatus::kUnsupportedBlockSize) == LONGSPAN_ATTN_BLOCK_SIZE);
static_assert(static_cast<int>(KernelStatus::kUnsupportedOption) == LONGSPAN_ATTN_OPTION);
static_assert(static_cast<int>(KernelStatus::kBadShape) == LONGSPAN_ATTN_SHAPE);
static_assert(static_cast<int>(KernelStatus::kBadStride) == LONGSPAN_ATTN_STRIDE);
static_assert(static_cast<int>(KernelStatus::kMisaligned) == LONGSPAN_ATTN_ALIGNMENT);
static_assert(static_cast<int>(KernelStatus::kWorkspaceTooSmall) == LONGSPAN_ATTN_WORKSPACE);
static_assert(static_cast<int>(KernelStatus::kUnsupportedDevice) == LONGSPAN_ATTN_DEVICE);
static_assert(static_cast<int>(KernelStatus::kLaunchFailed) == LONGSPAN_ATTN_LAUNCH);
static_assert(static_cast<int>(KernelStatus::kUnsupportedScales) == LONGSPAN_ATTN_SCALES);
static_assert(static_cast<int>(KernelStatus::kUnsupportedTreeMask) == LONGSPAN_ATTN_TREE);

constexpr int64_t kAlignment = 256;
constexpr int64_t Aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

int Code(KernelStatus status) { return static_cast<int>(status); }

// The kernel of a choice; of the three, the one of its family and line is set.
struct AttnSetup {
  DecodeSetup decode;
  Sm80PrefillSetup sm80;
  Sm90PrefillSetup sm90;
};

}  // namespace
}  // namespace longspan

struct longspan_attn_device {
  longspan::GpuDevice gpu;
  longspan::AttnTuning tuning;
  std::string tuning_text;
  std::mutex mutex;
  // By family, line, dtypes, head_dim: all that setups depend on. Guarded by the mutex.
  std::map<std::array<int32_t, 5>, longspan::AttnSetup> setups;
};

namespace longspan {
namespace {

// A call that was looked at: what serves it, and how.
struct Served {
  AttnChoice choice;
  AttentionParams params;
  AttnSetup setup;
  int32_t min_range_cost;  // of decode plans
};

KernelStatus PrepareSetup(const GpuDevice& gpu, const AttnChoice& choice,
                          const AttentionParams& params, AttnSetup* setup) {
  if (choice.family == AttnFamily::kDecode) {
    const GpuLine line = choice.line == 80 ? GpuLine::kSm80 : GpuLine::kAuto;
    const KernelStatus status = PrepareDecode(params, gpu, &setup->decode, line);
    if (status != KernelStatus::kOk) return status;
    // The choice and the family's own table agree, or the plan would be another kernel's.
    return DecodeNeedsKvMaps(setup->decode) == (choice.line == 90)
               ? KernelStatus::kOk
               : KernelStatus::kUnsupportedDevice;
  }
  return choice.line == 80 ? PrepareSm80Prefill(params, gpu, &setup->sm80)
                           : PrepareSm90Prefill(params, gpu, &setup->sm90);
}

int Serve(longspan_attn_device* device, const longspan_attn_call* call, Served* served) {
  if (device == nullptr || call == nullptr) return LONGSPAN_ATTN_NULL;
  const int status =
      ChooseAttn(*call, device->gpu.compute_capability, &served->choice, device->tuning);
  if (status != LONGSPAN_ATTN_OK) return status;
  const AttnChoice& choice = served->choice;
  served->params = AttnParams(*call, choice);
  served->min_range_cost = device->tuning.For(call->head_dim).min_range_cost;
  const std::array<int32_t, 5> key = {static_cast<int32_t>(choice.family), choice.line, call->dtype,
                                      static_cast<int32_t>(served->params.kv_dtype),
                                      call->head_dim};
  const std::lock_guard lock(device->mutex);
  const auto found = device->setups.find(key);
  if (found != device->setups.end()) {
    served->setup = found->second;
    return LONGSPAN_ATTN_OK;
  }
  const KernelStatus prepared = PrepareSetup(device->gpu, choice, served->params, &served->setup);
  if (prepared == KernelStatus::kOk) device->setups.emplace(key, served->setup);
  return Code(prepared);
}

// Bytes of the kernel's part of a plan, at most; the table stands behind it.
int64_t KernelPlanBytes(const longspan_attn_call& call, const Served& served) {
  if (served.choice.family == AttnFamily::kDecode) {
    return Aligned(GpuDecodePlanBytes(served.setup.decode.num_ctas, call.num_seqs));
  }
  if (served.choice.line == 80) {
    const int32_t group = call.num_q_heads / call.num_kv_heads;
    const int64_t blocks =
        PrefillMaxBlocks(call.total_q, call.num_seqs, group, served.setup.sm80.block_rows);
    return Aligned(blocks * int64_t{sizeof(PrefillBlock)});
  }
  const int64_t pieces = call.total_q / served.setup.sm90.rows_per_tile +
                         std::min<int64_t>(call.num_seqs, call.total_q);
  return Aligned(pieces * int64_t{sizeof(Sm90PrefillPiece)});
}

int64_t TableBytes(const longspan_attn_call& call, const AttnChoice& choice) {
  return int64_t{sizeof(int32_t)} * call.num_seqs * choice.ids_per_seq;
}

int64_t WorkspaceBytes(const Served& served) {
  if (served.choice.family == AttnFamily::kDecode) {
    return DecodeWorkspaceBytes(served.setup.decode);
  }
  return served.choice.line == 80 ? 0 : Sm90PrefillWorkspaceBytes();
}
int64_t ZeroedBytes(const Served& served) {
  return served.choice.family == AttnFamily::kDecode ? DecodeZeroedBytes(served.setup.decode)
                                                     : WorkspaceBytes(served);
}

// Fills the kernel's part. Answers items: what a launch is given of them.
int64_t PlanKernel(const longspan_attn_call& call, const Served& served,
                   const longspan_attn_lengths& lengths, std::span<std::byte> out) {
  const AttentionParams& p = served.params;
  const auto num_seqs = static_cast<size_t>(call.num_seqs);
  const std::span cu_seqlens_q(lengths.cu_seqlens_q, num_seqs + 1);
  const std::span seq_lens(lengths.seq_lens, num_seqs);
  const int32_t group = p.num_q_heads / p.num_kv_heads;
  if (served.choice.family == AttnFamily::kDecode) {
    PlanGpuDecode({cu_seqlens_q, seq_lens, p.num_kv_heads, group, p.window_left,
                   served.setup.decode.num_ctas, served.min_range_cost},
                  out);
    return call.max_q_len;
  }
  if (served.choice.line == 80) {
    const std::span blocks(reinterpret_cast<PrefillBlock*>(out.data()),
                           out.size() / sizeof(PrefillBlock));
    return PlanPrefill({cu_seqlens_q, seq_lens, group, served.setup.sm80.block_rows, p.causal,
                        p.window_left, p.window_right},
                       blocks);
  }
  const int32_t rows = served.setup.sm90.rows_per_tile;
  const int64_t num = NumSm90PrefillPieces(cu_seqlens_q, rows);
  const std::span pieces(reinterpret_cast<Sm90PrefillPiece*>(out.data()), static_cast<size_t>(num));
  PlanSm90Prefill({cu_seqlens_q, seq_lens, {}, rows, p.causal, p.window_left}, pieces);
  if (served.choice.keys == AttnKeys::kOnePiece) {
    for (Sm90PrefillPiece& piece :
         pieces) {  // without blocks table_row names the sequence until here
      piece.key_origin =
          static_cast<int32_t>(AttnOrigin(call, served.choice, lengths, piece.table_row));
      piece.table_row = 0;
    }
  }
  return num;
}

const int32_t* TableOf(const longspan_attn_call& call, const Served& served, const void* plan) {
  if (served.choice.keys == AttnKeys::kBlocks) return call.block_table;
  return reinterpret_cast<const int32_t*>(static_cast<const std::byte*>(plan) +
                                          KernelPlanBytes(call, served));
}

KernelStatus RunDecode(const longspan_attn_call& call, const Served& served, const void* plan,
                       const longspan_attn_plan_info& info, void* workspace,
                       int64_t workspace_bytes, GpuStreamHandle stream) {
  DecodeKvMaps maps;
  if (served.choice.line == 90) {
    const KernelStatus status =
        MakeDecodeKvMaps(served.params, AttnNumBlocks(call, served.choice), &maps);
    if (status != KernelStatus::kOk) return status;
  }
  const DecodeLaunch launch = {plan, static_cast<int32_t>(info.num_items), workspace,
                               workspace_bytes, false};
  return LaunchDecode(served.setup.decode, served.params, maps, launch, stream);
}

KernelStatus RunSm90Prefill(const longspan_attn_call& call, const Served& served, const void* plan,
                            const longspan_attn_plan_info& info, void* workspace,
                            int64_t workspace_bytes, GpuStreamHandle stream) {
  AttentionParams params = served.params;
  if (served.choice.keys == AttnKeys::kOnePiece) params.block_table = nullptr;
  Sm90PrefillKvMaps maps;
  const KernelStatus status =
      MakeSm90PrefillKvMaps(params, AttnNumBlocks(call, served.choice), &maps);
  if (status != KernelStatus::kOk) return status;
  const Sm90PrefillLaunch launch = {static_cast<const Sm90PrefillPiece*>(plan),
                                    info.num_items,
                                    call.total_q,
                                    info.max_keys,
                                    workspace,
                                    workspace_bytes};
  return LaunchSm90Prefill(served.setup.sm90, params, maps, launch, stream);
}

struct Scratch {
  int64_t slots, k_cos_sin, q_cos_sin;  // bytes of each, in this order
};
Scratch ScratchOf(const longspan_attn_call& call, const longspan_attn_append& append) {
  const int64_t num_new = int64_t{call.num_seqs} * append.new_len;
  const int64_t row = append.rotary_cos == nullptr ? 0 : int64_t{sizeof(float)} * append.rotary_dim;
  const int64_t q_rows = append.q == nullptr ? 0 : int64_t{call.num_seqs} * append.q_len;
  return {Aligned(num_new * int64_t{sizeof(int64_t)}), Aligned(num_new * row), q_rows * row};
}

int CheckAppend(const longspan_attn_call& call, const longspan_attn_append& append) {
  if (append.struct_bytes != static_cast<int32_t>(sizeof(longspan_attn_append))) {
    return LONGSPAN_ATTN_STRUCT;
  }
  if (append.new_len < 0 || append.q_len < 0) return LONGSPAN_ATTN_SHAPE;
  if (append.rotary_cos != nullptr &&
      (append.rotary_sin == nullptr || append.rotary_dim < 16 || append.rotary_dim % 16 != 0 ||
       append.rotary_dim > call.head_dim || append.num_positions < 1 || append.rotary_stride < 0)) {
    return append.rotary_sin == nullptr ? LONGSPAN_ATTN_NULL : LONGSPAN_ATTN_SHAPE;
  }
  if (append.q != nullptr && int64_t{call.num_seqs} * append.q_len > call.total_q) {
    return LONGSPAN_ATTN_SHAPE;
  }
  if (append.k_new == nullptr || append.v_new == nullptr || append.cache_seqlens == nullptr ||
      append.scratch == nullptr || call.k == nullptr || call.v == nullptr) {
    return LONGSPAN_ATTN_NULL;
  }
  const Scratch scratch = ScratchOf(call, append);
  return append.scratch_bytes < scratch.slots + scratch.k_cos_sin + scratch.q_cos_sin
             ? LONGSPAN_ATTN_WORKSPACE
             : LONGSPAN_ATTN_OK;
}

KvPoolView PoolOf(const longspan_attn_call& call, const Served& served) {
  const AttentionParams& p = served.params;
  const bool one_piece = served.choice.keys == AttnKeys::kOnePiece;
  KvPoolView pool;
  pool.k = call.k;
  pool.v = call.v;
  pool.k_block_stride = one_piece ? p.k_token_stride : p.k_block_stride;
  pool.k_token_stride = p.k_token_stride;
  pool.k_head_stride = p.k_head_stride;
  pool.v_block_stride = one_piece ? p.v_token_stride : p.v_block_stride;
  pool.v_token_stride = p.v_token_stride;
  pool.v_head_stride = p.v_head_stride;
  pool.num_kv_heads = p.num_kv_heads;
  pool.head_dim = p.head_dim;
  pool.block_size = one_piece ? 1 : p.block_size;
  pool.dtype = p.kv_dtype;
  pool.k_scales = p.scales.k;
  pool.v_scales = p.scales.v;
  pool.k_scale_block_stride = p.scales.k_block_stride;
  pool.k_scale_head_stride = p.scales.k_head_stride;
  pool.v_scale_block_stride = p.scales.v_block_stride;
  pool.v_scale_head_stride = p.scales.v_head_stride;
  return pool;
}

AppendRowsParams RowsOf(const longspan_attn_call& call, const Served& served,
                        const longspan_attn_append& append, const void* plan) {
  const Scratch sizes = ScratchOf(call, append);
  auto* scratch = static_cast<std::byte*>(append.scratch);
  const bool paged = served.choice.keys == AttnKeys::kBlocks;
  AppendRowsParams rows;
  rows.num_seqs = call.num_seqs;
  rows.new_len = append.new_len;
  rows.q_len = append.q == nullptr ? 0 : append.q_len;
  rows.q_fixed = append.q_fixed != 0;
  rows.cache_seqlens = append.cache_seqlens;
  rows.kv_starts = append.kv_starts;
  rows.positions = append.positions == nullptr ? append.cache_seqlens : append.positions;
  rows.table = TableOf(call, served, plan);
  rows.table_stride = paged ? call.block_table_stride : served.choice.ids_per_seq;
  rows.block_size = served.choice.keys == AttnKeys::kOnePiece ? 0 : served.choice.block_size;
  rows.capacity = paged ? call.block_table_stride * call.block_size : call.kv_capacity;
  rows.slots = reinterpret_cast<int64_t*>(scratch);
  rows.cos = append.rotary_cos;
  rows.sin = append.rotary_sin;
  rows.dtype = served.params.q_dtype;
  rows.rotary_stride = append.rotary_stride;
  rows.num_positions = append.num_positions;
  rows.num_pairs = append.rotary_dim / 2;
  if (append.rotary_cos != nullptr) {
    rows.k_cos_sin = reinterpret_cast<float*>(scratch + sizes.slots);
    if (append.q != nullptr) {
      rows.q_cos_sin = reinterpret_cast<float*>(scratch + sizes.slots + sizes.k_cos_sin);
    }
  }
  return rows;
}

KernelStatus RotateQueries(const longspan_attn_call& call, const longspan_attn_append& append,
                           const AppendRowsParams& rows, RopePairs pairs, GpuStreamHandle stream) {
  RopeParams rope;
  rope.x = append.q;
  rope.token_stride = call.q_token_stride;
  rope.head_stride = call.q_head_stride;
  rope.num_tokens = int64_t{call.num_seqs} * append.q_len;
  rope.num_heads = call.num_q_heads;
  rope.head_dim = call.head_dim;
  rope.rotary_dim = append.rotary_dim;
  rope.pairs = pairs;
  rope.cos_sin = rows.q_cos_sin;
  rope.dtype = rows.dtype;
  return RopeGpu(rope, stream);
}

AttnTuningKey TuningKey(const longspan_attn_device& device) {
  return {device.gpu.name, device.gpu.driver};
}

const char* KeysText(AttnKeys keys) {
  switch (keys) {
    case AttnKeys::kBlocks:
      return "blocks";
    case AttnKeys::kRowBlocks:
      return "rows as blocks";
    case AttnKeys::kUnitBlocks:
      return "overlapping blocks";
    case AttnKeys::kOnePiece:
      return "one piece";
  }
  return "";
}

}  // namespace
}  // namespace longspan

using namespace longspan;  // NOLINT: the functions below are C

extern "C" int longspan_attn_choose(const longspan_attn_call* call, int32_t compute_capability,
                                    longspan_attn_choice* choice) {
  if (call == nullptr || choice == nullptr) return LONGSPAN_ATTN_NULL;
  AttnChoice chosen;
  const int status = ChooseAttn(*call, compute_capability, &chosen);
  const bool decode = chosen.family == AttnFamily::kDecode;
  *choice = {decode ? LONGSPAN_ATTN_DECODE : LONGSPAN_ATTN_PREFILL, chosen.line,
             KeysText(chosen.keys), chosen.reason};
  return status;
}

extern "C" int longspan_attn_open(longspan_attn_device** device) {
  if (device == nullptr) return LONGSPAN_ATTN_NULL;
  *device = nullptr;
  auto gpu = FindGpuDevice();
  if (!gpu) return LONGSPAN_ATTN_NO_DEVICE;
  if (gpu->compute_capability < 80) return LONGSPAN_ATTN_DEVICE;
  *device = new (std::nothrow) longspan_attn_device;
  if (*device == nullptr) return LONGSPAN_ATTN_NO_DEVICE;
  (*device)->gpu = std::move(*gpu);
  (*device)->tuning_text =
      LoadAttnTuning(AttnTuningPath((*device)->gpu.name), TuningKey(**device), &(*device)->tuning);
  return LONGSPAN_ATTN_OK;
}

extern "C" int longspan_attn_tune(longspan_attn_device* device, const char* table) {
  if (device == nullptr || table == nullptr) return LONGSPAN_ATTN_NULL;
  if (!ParseAttnTuning(table, TuningKey(*device), &device->tuning).empty()) {
    return LONGSPAN_ATTN_OPTION;
  }
  device->tuning_text = "a table of the caller";
  return LONGSPAN_ATTN_OK;
}

extern "C" const char* longspan_attn_tuning(const longspan_attn_device* device) {
  return device == nullptr ? "" : device->tuning_text.c_str();
}

extern "C" void longspan_attn_close(longspan_attn_device* device) { delete device; }

extern "C" int32_t longspan_attn_compute_capability(const longspan_attn_device* device) {
  return device == nullptr ? 0 : device->gpu.compute_capability;
}

extern "C" int longspan_attn_measure(longspan_attn_device* device, const longspan_attn_call* call,
                                     longspan_attn_sizes* sizes) {
  if (sizes == nullptr) return LONGSPAN_ATTN_NULL;
  Served served;
  if (const int status = Serve(device, call, &served); status != LONGSPAN_ATTN_OK) return status;
  *sizes = {KernelPlanBytes(*call, served) + TableBytes(*call, served.choice),
            WorkspaceBytes(served), ZeroedBytes(served)};
  return LONGSPAN_ATTN_OK;
}

extern "C" int longspan_attn_plan(longspan_attn_device* device, const longspan_attn_call* call,
                                  const longspan_attn_lengths* lengths, void* plan,
                                  int64_t plan_bytes, longspan_attn_plan_info* info) {
  if (lengths == nullptr || plan == nullptr || info == nullptr) return LONGSPAN_ATTN_NULL;
  Served served;
  if (const int status = Serve(device, call, &served); status != LONGSPAN_ATTN_OK) return status;
  if (const int status = CheckAttnLengths(*call, *lengths); status != LONGSPAN_ATTN_OK) {
    return status;
  }
  const int64_t kernel_bytes = KernelPlanBytes(*call, served);
  const int64_t bytes = kernel_bytes + TableBytes(*call, served.choice);
  if (plan_bytes < bytes) return LONGSPAN_ATTN_WORKSPACE;
  auto* out = static_cast<std::byte*>(plan);
  info->num_items = PlanKernel(*call, served, *lengths, {out, static_cast<size_t>(kernel_bytes)});
  if (served.choice.ids_per_seq > 0) {
    FillAttnTable(*call, served.choice, *lengths,
                  {reinterpret_cast<int32_t*>(out + kernel_bytes),
                   static_cast<size_t>(call->num_seqs) * served.choice.ids_per_seq});
  }
  info->max_keys = 0;
  for (int32_t seq = 0; seq < call->num_seqs; ++seq) {
    info->max_keys = std::max<int64_t>(info->max_keys, lengths->seq_lens[seq]);
  }
  info->bytes = bytes;
  return LONGSPAN_ATTN_OK;
}

extern "C" int64_t longspan_attn_append_bytes(const longspan_attn_call* call,
                                              const longspan_attn_append* append) {
  if (call == nullptr || append == nullptr) return 0;
  const Scratch scratch = ScratchOf(*call, *append);
  return scratch.slots + scratch.k_cos_sin + scratch.q_cos_sin;
}

extern "C" int longspan_attn_append_run(longspan_attn_device* device,
                                        const longspan_attn_call* call,
                                        const longspan_attn_append* append, const void* plan,
                                        void* stream) {
  if (append == nullptr) return LONGSPAN_ATTN_NULL;
  Served served;
  if (const int status = Serve(device, call, &served); status != LONGSPAN_ATTN_OK) return status;
  if (const int status = CheckAppend(*call, *append); status != LONGSPAN_ATTN_OK) return status;
  if (served.choice.keys != AttnKeys::kBlocks && plan == nullptr) return LONGSPAN_ATTN_NULL;
  if (DTypeBytes(served.params.kv_dtype) == 1 &&
      (call->k_scale == nullptr || call->v_scale == nullptr)) {
    return LONGSPAN_ATTN_SCALES;
  }
  const AppendRowsParams rows = RowsOf(*call, served, *append, plan);
  KvStoreParams store;
  store.k = append->k_new;
  store.v = append->v_new;
  store.k_token_stride = append->k_token_stride;
  store.k_head_stride = append->k_head_stride;
  store.v_token_stride = append->v_token_stride;
  store.v_head_stride = append->v_head_stride;
  store.slot_mapping = rows.slots;
  store.num_tokens = int64_t{call->num_seqs} * append->new_len;
  store.dtype = rows.dtype;
  store.cos_sin = rows.k_cos_sin;
  store.rotary_dim = rows.k_cos_sin == nullptr ? 0 : append->rotary_dim;
  store.pairs = append->interleaved != 0 ? RopePairs::kInterleaved : RopePairs::kHalfSplit;
  KernelStatus status = AppendRowsGpu(rows, stream);
  if (status == KernelStatus::kOk) status = KvStoreGpu(PoolOf(*call, served), store, stream);
  if (status == KernelStatus::kOk && rows.q_cos_sin != nullptr) {
    status = RotateQueries(*call, *append, rows, store.pairs, stream);
  }
  return Code(status);
}

extern "C" int longspan_attn_run(longspan_attn_device* device, const longspan_attn_call* call,
                                 const void* plan, const longspan_attn_plan_info* info,
                                 void* workspace, int64_t workspace_bytes, void* stream) {
  if (plan == nullptr || info == nullptr) return LONGSPAN_ATTN_NULL;
  Served served;
  if (const int status = Serve(device, call, &served); status != LONGSPAN_ATTN_OK) return status;
  if (call->num_seqs == 0 || call->total_q == 0 || info->num_items == 0) return LONGSPAN_ATTN_OK;
  served.params.block_table = TableOf(*call, served, plan);
  if (served.choice.family == AttnFamily::kDecode) {
    return Code(RunDecode(*call, served, plan, *info, workspace, workspace_bytes, stream));
  }
  if (served.choice.line == 90) {
    return Code(RunSm90Prefill(*call, served, plan, *info, workspace, workspace_bytes, stream));
  }
  const Sm80PrefillLaunch launch = {static_cast<const PrefillBlock*>(plan), info->num_items};
  return Code(LaunchSm80Prefill(served.setup.sm80, served.params, launch, stream));
}

extern "C" const char* longspan_attn_text(int status) {
  switch (status) {
    case LONGSPAN_ATTN_NULL:
      return "a null pointer where one is needed";
    case LONGSPAN_ATTN_STRUCT:
      return "struct_bytes of another version of the header";
    case LONGSPAN_ATTN_NO_DEVICE:
      return "no CUDA device, or no driver";
    default:
      break;
  }
  if (status < 0 || status > LONGSPAN_ATTN_TREE) return "unknown";
  return KernelStatusText(static_cast<KernelStatus>(status)).data();  // literals: end with a zero
}

extern "C" int longspan_attn_abi(void) { return LONGSPAN_ATTN_ABI; }
