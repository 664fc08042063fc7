// Attention on the CPU, host side: checks, workspace, plan, and who computes which span. The
// arithmetic is in attention_loop.h, compiled once per instruction set.
#include "kernels/attention/attention_cpu.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/checked_math.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/attention/attention_tiling.h"
#include "kernels/cpu/thread_pool.h"

namespace longspan {
namespace {

constexpr int64_t kAlignment = 64;

int64_t Aligned(int64_t bytes) { return CeilDiv(bytes, kAlignment) * kAlignment; }

AttentionPlanParams PlanParams(const AttentionParams& params, const CpuAttentionOptions& options,
                               int num_threads) {
  AttentionPlanParams plan;
  plan.num_kv_heads = params.num_kv_heads;
  plan.group = params.num_q_heads / params.num_kv_heads;
  plan.causal = params.causal;
  plan.window_left = params.window_left;
  plan.window_right = params.window_right;
  plan.max_rows = AttentionMaxRows(params.head_dim);
  plan.part_tokens = kAttentionPartTokens;
  plan.tile_tokens = kAttentionTileTokens;
  plan.num_workers = num_threads;
  plan.num_splits = options.num_splits;
  return plan;
}

// How the workspace is cut. [items | cuts | partials | one scratch per thread]
struct Layout {
  int64_t items, cuts, partials, scratch;  // bytes of each region, aligned
  int64_t total(int num_threads) const { return items + cuts + partials + scratch * num_threads; }
};
Layout MakeLayout(const AttentionPlanBounds& bounds, int head_dim) {
  return {Aligned(bounds.max_items * int64_t{sizeof(AttentionSpan)}),
          Aligned(bounds.max_cuts * int64_t{sizeof(AttentionSpan)}),
          Aligned(bounds.max_partials * PartialFloats(head_dim) * int64_t{sizeof(float)}),
          AttentionScratchBytes(head_dim)};
}

const AttentionIsa* FindIsa(const CpuAttentionOptions& options, DType kv_dtype) {
  const CpuAttentionIsa isa = options.isa;
  if (!CpuAttentionIsaSupported(isa)) return nullptr;
#if defined(__x86_64__)
  if (options.precision == CpuAttentionPrecision::kBFloat16 && CpuAttentionHasBFloat16() &&
      kv_dtype != DType::kFloat32 &&
      (isa == CpuAttentionIsa::kBest || isa == CpuAttentionIsa::kAvx512)) {
    return &kAttentionAvx512BFloat16;
  }
#else
  (void)kv_dtype;
#endif
  switch (isa) {
    case CpuAttentionIsa::kGeneric:
      return &kAttentionGeneric;
#if defined(__x86_64__)
    case CpuAttentionIsa::kAvx2:
      return &kAttentionAvx2;
    case CpuAttentionIsa::kAvx512:
      return &kAttentionAvx512;
    case CpuAttentionIsa::kBest:
      if (CpuAttentionIsaSupported(CpuAttentionIsa::kAvx512)) return &kAttentionAvx512;
      if (CpuAttentionIsaSupported(CpuAttentionIsa::kAvx2)) return &kAttentionAvx2;
      return &kAttentionGeneric;
#endif
    default:
      return &kAttentionGeneric;
  }
}

KernelStatus CheckLengths(const AttentionParams& params) {
  if (params.num_seqs < 0) return KernelStatus::kBadShape;
  if (params.num_seqs > 0 && (params.cu_seqlens_q == nullptr || params.seq_lens == nullptr)) {
    return KernelStatus::kBadShape;
  }
  for (int32_t seq = 0; seq < params.num_seqs; ++seq) {
    if (params.seq_lens[seq] < 0) return KernelStatus::kBadShape;
    if (params.cu_seqlens_q[seq + 1] < params.cu_seqlens_q[seq]) return KernelStatus::kBadShape;
    const int64_t blocks = CeilDiv<int64_t>(params.seq_lens[seq], params.block_size);
    if (blocks > params.block_table_stride && params.num_seqs > 1) return KernelStatus::kBadShape;
  }
  return KernelStatus::kOk;
}

}  // namespace

bool CpuAttentionIsaSupported(CpuAttentionIsa isa) {
  switch (isa) {
    case CpuAttentionIsa::kBest:
    case CpuAttentionIsa::kGeneric:
      return true;
#if defined(__x86_64__)
    case CpuAttentionIsa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case CpuAttentionIsa::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    default:
      return false;
  }
}

bool CpuAttentionHasBFloat16() {
#if defined(__x86_64__)
  return CpuAttentionIsaSupported(CpuAttentionIsa::kAvx512) &&
         __builtin_cpu_supports("avx512bf16") &&
         __builtin_cpu_supports("avx512vbmi");  // its file is built with both
#else
  return false;
#endif
}

int64_t AttentionScratchBytes(int head_dim) {
  const int64_t padded = PaddedHeadDim(head_dim);
  const int64_t rows = AttentionMaxRows(head_dim);
  const int64_t floats =
      rows * (2 * padded + PartialFloats(head_dim) + kAttentionTileTokens + kAttentionLanes + 2) +
      2 * padded * kAttentionTileTokens;
  return Aligned(floats * int64_t{sizeof(float)}) +
         Aligned(4 * kAttentionTileTokens * int64_t{sizeof(void*)});
}

AttentionScratch CarveAttentionScratch(std::byte* memory, int head_dim) {
  const int64_t padded = PaddedHeadDim(head_dim);
  const int64_t rows = AttentionMaxRows(head_dim);
  float* next = reinterpret_cast<float*>(memory);
  auto take = [&](int64_t floats) {
    float* taken = next;
    next += floats;
    return taken;
  };
  AttentionScratch scratch;
  scratch.q = take(rows * padded);
  scratch.o = take(rows * padded);
  scratch.o_total = take(rows * PartialFloats(head_dim));
  scratch.s = take(rows * kAttentionTileTokens);
  scratch.l = take(rows * kAttentionLanes);
  scratch.m = take(rows);
  scratch.alpha = take(rows);
  scratch.k = take(padded * kAttentionTileTokens);
  scratch.v = take(padded * kAttentionTileTokens);
  scratch.rows = reinterpret_cast<const void**>(next);
  return scratch;
}

KernelStatus CheckCpuAttention(const AttentionParams& params) {
  const bool kv_ok = params.kv_dtype == DType::kFloat32 || params.kv_dtype == DType::kFloat16 ||
                     params.kv_dtype == DType::kBFloat16;
  const bool q_ok = params.q_dtype == DType::kFloat32 || params.q_dtype == params.kv_dtype;
  if (!kv_ok || !q_ok) return KernelStatus::kUnsupportedDType;
  if (params.head_dim < 16 || params.head_dim > kAttentionMaxHeadDim || params.head_dim % 8 != 0) {
    return KernelStatus::kUnsupportedHeadDim;
  }
  if (params.num_kv_heads < 1 || params.num_q_heads < params.num_kv_heads ||
      params.num_q_heads % params.num_kv_heads != 0) {
    return KernelStatus::kUnsupportedHeads;
  }
  if (params.block_size < 1 || params.block_size > 256) return KernelStatus::kUnsupportedBlockSize;
  if (!std::isfinite(params.scale) || !std::isfinite(params.softcap) || params.softcap < 0.0f ||
      params.window_left < -1 || params.window_right < -1) {
    return KernelStatus::kUnsupportedOption;
  }
  return params.tree_mask == nullptr ? KernelStatus::kOk : KernelStatus::kUnsupportedTreeMask;
}

int64_t CpuAttentionWorkspaceBytes(const AttentionParams& shape, int64_t max_num_seqs,
                                   int64_t max_total_q, int64_t max_seq_len, int num_threads,
                                   const CpuAttentionOptions& options) {
  if (CheckCpuAttention(shape) != KernelStatus::kOk) return 0;
  const AttentionPlanBounds bounds = BoundAttentionPlan(PlanParams(shape, options, num_threads),
                                                        max_num_seqs, max_total_q, max_seq_len);
  return MakeLayout(bounds, shape.head_dim).total(num_threads);
}

KernelStatus AttentionCpu(ThreadPool& pool, const AttentionParams& params,
                          const CpuAttentionOptions& options, std::span<std::byte> workspace,
                          int32_t* num_splits) {
  if (const KernelStatus status = CheckCpuAttention(params); status != KernelStatus::kOk) {
    return status;
  }
  if (const KernelStatus status = CheckLengths(params); status != KernelStatus::kOk) return status;
  const AttentionIsa* isa = FindIsa(options, params.kv_dtype);
  if (isa == nullptr) return KernelStatus::kUnsupportedDevice;
  if (params.num_seqs == 0) return KernelStatus::kOk;
  if (reinterpret_cast<uintptr_t>(workspace.data()) % kAlignment != 0) {
    return KernelStatus::kMisaligned;
  }

  // The bounds of this very batch: the caller's workspace was made for at least these.
  const int num_threads = pool.num_threads();
  AttentionPlanParams plan_params = PlanParams(params, options, num_threads);
  plan_params.cu_seqlens_q = {params.cu_seqlens_q, static_cast<size_t>(params.num_seqs) + 1};
  plan_params.seq_lens = {params.seq_lens, static_cast<size_t>(params.num_seqs)};
  const int32_t max_len = *std::max_element(params.seq_lens, params.seq_lens + params.num_seqs);
  const int64_t total_q = params.cu_seqlens_q[params.num_seqs] - params.cu_seqlens_q[0];
  const AttentionPlanBounds bounds =
      BoundAttentionPlan(plan_params, params.num_seqs, total_q, max_len);
  const Layout layout = MakeLayout(bounds, params.head_dim);
  if (static_cast<int64_t>(workspace.size()) < layout.total(num_threads)) {
    return KernelStatus::kWorkspaceTooSmall;
  }
  std::byte* base = workspace.data();
  auto* items = reinterpret_cast<AttentionSpan*>(base);
  auto* cuts = reinterpret_cast<AttentionSpan*>(base + layout.items);
  auto* partials = reinterpret_cast<float*>(base + layout.items + layout.cuts);
  std::byte* scratch = base + layout.items + layout.cuts + layout.partials;
  const AttentionPlan plan =
      PlanAttention(plan_params, {items, static_cast<size_t>(bounds.max_items)},
                    {cuts, static_cast<size_t>(bounds.max_cuts)});
  if (num_splits != nullptr) *num_splits = plan.max_splits;

  const int64_t partial_floats = PartialFloats(params.head_dim);
  const int64_t num_items = static_cast<int64_t>(plan.items.size());
  auto attend = [&](int thread, int64_t index) {
    const AttentionSpan& item = plan.items[index];
    isa->attend({&params, item, VisibleKeys(plan_params, item.seq, item.row_begin, item.row_end),
                 item.partial < 0 ? nullptr : partials + item.partial * partial_floats,
                 CarveAttentionScratch(scratch + thread * layout.scratch, params.head_dim)});
  };
  // Rows of cuts are dealt to threads in turn; each is merged by one thread, in part order.
  auto combine = [&](int thread) {
    float* total =
        CarveAttentionScratch(scratch + thread * layout.scratch, params.head_dim).o_total;
    int64_t turn = 0;
    for (const AttentionSpan& cut : plan.cuts) {
      const int64_t rows = cut.row_end - cut.row_begin;
      const int64_t heads = cut.head_end - cut.head_begin;
      const int32_t group = plan_params.group;
      for (int64_t i = 0; i < heads * rows; ++i) {
        if (turn++ % num_threads != thread) continue;
        const int64_t row = cut.row_begin + i % rows;
        isa->combine(params, partials + (cut.partial + i) * partial_floats,
                     heads * rows * partial_floats, cut.part_end - cut.part_begin, total,
                     params.cu_seqlens_q[cut.seq] + row / group,
                     static_cast<int32_t>((cut.head_begin + i / rows) * group + row % group));
      }
    }
  };
  if (num_threads == 1 || num_items <= 1) {  // a single item is never a piece of a cut
    for (int64_t i = 0; i < num_items; ++i) attend(0, i);
    combine(0);
    return KernelStatus::kOk;
  }
  pool.ResetTasks();
  pool.Run([&](int thread) {
    for (int64_t i = pool.NextTask(); i < num_items; i = pool.NextTask()) attend(thread, i);
    if (plan.cuts.empty()) return;
    pool.Barrier();
    combine(thread);
  });
  return KernelStatus::kOk;
}

}  // namespace longspan
