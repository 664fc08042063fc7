// Attention on the CPU, prefill and decode alike: the reference for every GPU kernel and the fast
// path of CPU serving. Always batch-invariant: the bits of a row depend on its own query, keys and
// lengths only (and on the instruction set).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention/attention_params.h"
#include "kernels/kernel_status.h"

namespace longspan {

class ThreadPool;

// The best one is chosen at start; tests force the others.
enum class CpuAttentionIsa : uint8_t { kBest, kGeneric, kAvx2, kAvx512 };
bool CpuAttentionIsaSupported(CpuAttentionIsa isa);

// kBFloat16: weights and values are rounded to bfloat16 before they are multiplied; scores, sums,
// softmax and merging stay in float. Used where the processor multiplies bfloat16 natively;
// elsewhere (and for float32 KV) it means float throughout.
enum class CpuAttentionPrecision : uint8_t { kFloat32, kBFloat16 };
bool CpuAttentionHasBFloat16();

struct CpuAttentionOptions {
  int num_splits = 0;  // work items per sequence and KV head; 0: by load. Never changes bits.
  CpuAttentionIsa isa = CpuAttentionIsa::kBest;
  CpuAttentionPrecision precision = CpuAttentionPrecision::kFloat32;
};

// Which shapes and types the kernels take; the start-up check. Reads no pointer.
KernelStatus CheckCpuAttention(const AttentionParams& params);

// Bytes AttentionCpu needs for a batch of at most max_total_q query rows over at most max_seq_len
// tokens, run with these options.
int64_t CpuAttentionWorkspaceBytes(const AttentionParams& shape, int64_t max_num_seqs,
                                   int64_t max_total_q, int64_t max_seq_len, int num_threads,
                                   const CpuAttentionOptions& options = {});

// Computes o (and lse). Mixed batches (decodes beside prefill chunks) are one call.
// workspace: 64-byte aligned, exclusive to the call; its contents before do not matter.
// num_splits: when given, set to the most work items that a sequence and KV head fell into.
KernelStatus AttentionCpu(ThreadPool& pool, const AttentionParams& params,
                          const CpuAttentionOptions& options, std::span<std::byte> workspace,
                          int32_t* num_splits = nullptr);

}  // namespace longspan
