// Checks, lookup and launch of the sm_80 prefill kernels.
#include "kernels/attention/prefill/sm80_prefill.h"

#include <bit>
#include <cmath>
#include <numbers>

#include "kernels/attention/prefill/sm80_prefill_instance.h"
#include "kernels/attention/sm80_kv_checks.h"
#include "kernels/gpu.h"

namespace longspan {
namespace {

// Ascending head_dim: the first with enough columns is taken.
constexpr const Sm80PrefillInstance* kInstances[] = {
    &kSm80PrefillBf16D64,  &kSm80PrefillBf16D128, &kSm80PrefillBf16D256, &kSm80PrefillFp16D64,
    &kSm80PrefillFp16D128, &kSm80PrefillFp16D256, &kSm80Prefill8BitD128, &kSm80Prefill8BitD256,
};
constexpr int32_t kMinHeadDim = 16, kMaxHeadDim = 256;

bool IsAligned(const void* pointer, uintptr_t bytes) {
  return std::bit_cast<uintptr_t>(pointer) % bytes == 0;
}

// The element types. CheckSm80Types was kOk.
bool Serves(const Sm80PrefillInstance& row, const AttentionParams& p) {
  const bool is_8bit = DTypeBytes(p.kv_dtype) == 1;
  return row.has_8bit_kv == is_8bit && (is_8bit || row.dtype == p.q_dtype);
}

KernelStatus CheckShape(const AttentionParams& p) {
  if (const KernelStatus status = CheckSm80Types(p); status != KernelStatus::kOk) return status;
  if (p.tree_mask != nullptr) return KernelStatus::kUnsupportedTreeMask;
  if (p.num_kv_heads < 1 || p.num_q_heads < p.num_kv_heads || p.num_q_heads % p.num_kv_heads != 0) {
    return KernelStatus::kUnsupportedHeads;
  }
  if (p.block_size < 16 || p.block_size > 256 || p.block_size % 16 != 0) {
    return KernelStatus::kUnsupportedBlockSize;
  }
  if (p.head_dim < kMinHeadDim || p.head_dim > kMaxHeadDim || p.head_dim % 8 != 0) {
    return KernelStatus::kUnsupportedHeadDim;
  }
  const bool scale_ok = std::isfinite(p.scale * std::numbers::log2e_v<float>);
  const bool softcap_ok = p.softcap >= 0.0f && std::isfinite(p.softcap);
  if (!scale_ok || !softcap_ok || p.window_left < -1 || p.window_right < -1) {
    return KernelStatus::kUnsupportedOption;
  }
  return KernelStatus::kOk;
}

KernelStatus CheckPointers(const AttentionParams& p, const Sm80PrefillLaunch& launch) {
  if (p.q == nullptr || p.o == nullptr || p.block_table == nullptr || launch.blocks == nullptr) {
    return KernelStatus::kBadShape;
  }
  // What is copied comes 16 bytes at a time; the output is written in pairs.
  if (p.q_token_stride % 8 != 0 || p.q_head_stride % 8 != 0) return KernelStatus::kBadStride;
  if (p.o_token_stride % 2 != 0 || p.o_head_stride % 2 != 0) return KernelStatus::kBadStride;
  if (const KernelStatus status = CheckSm80Scales(p); status != KernelStatus::kOk) return status;
  if (const KernelStatus status = CheckSm80Kv(p); status != KernelStatus::kOk) return status;
  const bool aligned = IsAligned(p.q, 16) && IsAligned(p.o, 4) && IsAligned(p.lse, 4) &&
                       IsAligned(p.sinks, 4) && IsAligned(p.alibi_slopes, 4) &&
                       IsAligned(p.block_table, 4) && IsAligned(launch.blocks, 16);
  return aligned ? KernelStatus::kOk : KernelStatus::kMisaligned;
}

Sm80PrefillArgs MakeArgs(const AttentionParams& p, const Sm80PrefillLaunch& launch) {
  constexpr float kLog2E = std::numbers::log2e_v<float>;
  Sm80PrefillArgs args = {};
  args.q = p.q;
  args.o = p.o;
  args.lse = p.lse;
  args.q_token_stride = p.q_token_stride;
  args.q_head_stride = p.q_head_stride;
  args.o_token_stride = p.o_token_stride;
  args.o_head_stride = p.o_head_stride;
  args.k = p.k;
  args.v = p.v;
  args.k_block_stride = p.k_block_stride;
  args.k_token_stride = p.k_token_stride;
  args.k_head_stride = p.k_head_stride;
  args.v_block_stride = p.v_block_stride;
  args.v_token_stride = p.v_token_stride;
  args.v_head_stride = p.v_head_stride;
  args.block_table = p.block_table;
  args.block_table_stride = p.block_table_stride;
  args.blocks = launch.blocks;
  args.num_q_heads = p.num_q_heads;
  args.num_kv_heads = p.num_kv_heads;
  args.group = p.num_q_heads / p.num_kv_heads;
  args.head_dim = p.head_dim;
  args.block_size = p.block_size;
  args.window_left = PrefillWindow(p.window_left);
  args.window_right = PrefillWindow(p.window_right);
  args.causal = p.causal;
  args.scale_log2 = p.scale * kLog2E;
  args.cap_in = p.softcap > 0.0f ? 2.0f * kLog2E * (p.scale / p.softcap) : 0.0f;
  args.cap_out = p.softcap * kLog2E;
  args.sinks = p.sinks;
  args.alibi_slopes = p.alibi_slopes;
  args.has_wide_kv = HasWideKv(p);
  args.scales = p.scales;
  args.is_int8 = p.kv_dtype == DType::kInt8;
  args.is_bfloat16 = p.q_dtype == DType::kBFloat16;
  return args;
}

}  // namespace

KernelStatus PrepareSm80Prefill(const AttentionParams& shape, const GpuDevice& device,
                                Sm80PrefillSetup* setup) {
  if (const KernelStatus status = CheckShape(shape); status != KernelStatus::kOk) return status;
  if (device.compute_capability < 80) return KernelStatus::kUnsupportedDevice;
  for (const Sm80PrefillInstance* row : kInstances) {
    if (!Serves(*row, shape) || row->head_dim < shape.head_dim) continue;
    if (cudaFuncSetAttribute(row->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             row->shared_bytes) != cudaSuccess) {
      (void)cudaGetLastError();
      return KernelStatus::kUnsupportedDevice;
    }
    *setup = {row, row->block_rows};
    return KernelStatus::kOk;
  }
  return KernelStatus::kUnsupportedHeadDim;
}

KernelStatus LaunchSm80Prefill(const Sm80PrefillSetup& setup, const AttentionParams& params,
                               const Sm80PrefillLaunch& launch, GpuStreamHandle stream) {
  const Sm80PrefillInstance* instance = setup.instance;
  if (instance == nullptr) return KernelStatus::kUnsupportedDevice;
  if (const KernelStatus status = CheckShape(params); status != KernelStatus::kOk) return status;
  if (!Serves(*instance, params)) return KernelStatus::kUnsupportedDType;
  if (params.head_dim > instance->head_dim) return KernelStatus::kUnsupportedHeadDim;
  if (launch.num_blocks == 0) return KernelStatus::kOk;  // no row to write
  if (launch.num_blocks < 0 || launch.num_blocks > INT32_MAX / params.num_kv_heads) {
    return KernelStatus::kBadShape;
  }
  if (const KernelStatus status = CheckPointers(params, launch); status != KernelStatus::kOk) {
    return status;
  }
  Sm80PrefillArgs args = MakeArgs(params, launch);
  void* arguments[] = {&args};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(launch.num_blocks * params.num_kv_heads));
  config.blockDim = dim3(static_cast<unsigned>(instance->num_threads));
  config.dynamicSmemBytes = static_cast<size_t>(instance->shared_bytes);
  config.stream = static_cast<GpuNativeStream>(stream);
  const bool launched = cudaLaunchKernelExC(&config, instance->kernel, arguments) == cudaSuccess;
  return launched ? KernelStatus::kOk : KernelStatus::kLaunchFailed;
}

}  // namespace longspan
