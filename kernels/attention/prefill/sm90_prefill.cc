// Checks, lookup and launch of GPU prefill kernels.
#include "kernels/attention/prefill/sm90_prefill.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <numbers>
#include <numeric>

#include "kernels/attention/prefill/sm90_prefill_instance.h"
#include "kernels/attention/prefill/sm90_prefill_params.h"
#include "kernels/gpu.h"

namespace longspan {
namespace {

constexpr const Sm90PrefillInstance* kInstances[] = {
    &kSm90PrefillBf16D64, &kSm90PrefillBf16D128, &kSm90PrefillBf16D256,
    &kSm90PrefillFp16D64, &kSm90PrefillFp16D128, &kSm90PrefillFp16D256,
};
constexpr int32_t kRowsPerCopy = 64;  // of the output
constexpr int64_t kElementBytes = 2;
// Keys and values of the heads that run side by side should stay in this much of the L2.
constexpr int64_t kSharedKeyBytes = int64_t{32} << 20;

bool IsAligned(const void* pointer, uintptr_t bytes) {
  return std::bit_cast<uintptr_t>(pointer) % bytes == 0;
}

int32_t KeysPerTile(int32_t head_dim) { return head_dim == 256 ? 64 : 128; }
bool HasHeadDim(int32_t head_dim) { return head_dim == 64 || head_dim == 128 || head_dim == 256; }

bool IsBlockSize(int32_t tokens) { return tokens >= 16 && tokens <= 256 && tokens % 16 == 0; }

// What of the contract these kernels implement.
KernelStatus CheckShape(const AttentionParams& p) {
  if (p.tree_mask != nullptr) return KernelStatus::kUnsupportedTreeMask;
  // Scales belong to 8-bit keys and values.
  if (p.scales.k != nullptr || p.scales.v != nullptr) return KernelStatus::kUnsupportedScales;
  if (p.num_kv_heads < 1 || p.num_q_heads < p.num_kv_heads || p.num_q_heads % p.num_kv_heads != 0) {
    return KernelStatus::kUnsupportedHeads;
  }
  const float scale = p.scale * std::numbers::log2e_v<float>;
  const bool window_ok =
      p.window_left >= -1 && (p.window_right == -1 || p.causal) && p.window_right >= -1;
  if (!std::isnormal(scale) || scale < 0.0f || !window_ok || p.softcap != 0.0f ||
      p.sinks != nullptr || p.alibi_slopes != nullptr) {
    return KernelStatus::kUnsupportedOption;
  }
  return KernelStatus::kOk;
}
// A dimension of extent 1 may come with any stride.
bool SetStride(int64_t stride, int64_t extent, int64_t* bytes) {
  constexpr int64_t kMaxBytes = int64_t{1} << 40;
  *bytes = extent == 1 ? 128 : stride * kElementBytes;
  if (stride < 0 || stride >= kMaxBytes / kElementBytes) return false;
  return *bytes > 0 && *bytes % 16 == 0;
}

struct MapStrides {
  int64_t token, head, block;
};
// [block, head, column of 64 elements, token]: a box is box_tokens of one column, or of all.
KernelStatus MakeMap(const void* base, DType dtype, MapStrides strides, int64_t tokens,
                     int64_t heads, int64_t blocks, int32_t head_dim, int32_t box_tokens,
                     bool all_columns, TensorMap* map) {
  TensorMapShape shape;
  shape.base = base;
  shape.dtype = dtype;
  shape.is_reread = true;
  const int32_t columns = head_dim / 64;
  const int64_t extents[] = {64, tokens, columns, heads, blocks};
  std::copy(std::begin(extents), std::end(extents), shape.extents);
  shape.stride_bytes[1] = 128;
  if (!SetStride(strides.token, tokens, &shape.stride_bytes[0]) ||
      !SetStride(strides.head, heads, &shape.stride_bytes[2]) ||
      !SetStride(strides.block, blocks, &shape.stride_bytes[3])) {
    return KernelStatus::kBadStride;
  }
  if (base == nullptr) return KernelStatus::kBadShape;
  if (!IsAligned(base, 16)) return KernelStatus::kMisaligned;
  shape.box[0] = 64;
  shape.box[1] = box_tokens;
  shape.box[2] = all_columns ? columns : 1;
  shape.box[3] = shape.box[4] = 1;
  return EncodeTensorMap(shape, map) ? KernelStatus::kOk : KernelStatus::kUnsupportedDevice;
}

KernelStatus CheckLaunch(const AttentionParams& p, const Sm90PrefillKvMaps& maps,
                         const Sm90PrefillLaunch& launch) {
  if (p.q == nullptr || p.o == nullptr || maps.box_tokens < 1 || launch.pieces == nullptr ||
      launch.workspace == nullptr || launch.num_pieces < 0 || launch.total_q < 1 ||
      launch.max_keys < 0 || launch.total_q > INT32_MAX ||
      launch.num_pieces * p.num_q_heads > INT32_MAX) {
    return KernelStatus::kBadShape;
  }
  if (p.o_token_stride % 2 != 0 || p.o_head_stride % 2 != 0) return KernelStatus::kBadStride;
  if (!IsAligned(p.lse, 4) || !IsAligned(p.block_table, 4) || !IsAligned(launch.pieces, 16) ||
      !IsAligned(launch.workspace, 16)) {
    return KernelStatus::kMisaligned;
  }
  return launch.workspace_bytes < Sm90PrefillWorkspaceBytes() ? KernelStatus::kWorkspaceTooSmall
                                                              : KernelStatus::kOk;
}

// Whole groups, and as many as share the cache; a divisor of all.
int32_t HeadsInTurn(const AttentionParams& p, int64_t max_keys) {
  const int64_t bytes = std::max<int64_t>(1, max_keys) * p.head_dim * 2 * kElementBytes;
  int64_t kv_heads = std::clamp<int64_t>(kSharedKeyBytes / bytes, 1, p.num_kv_heads);
  while (p.num_kv_heads % kv_heads != 0) --kv_heads;
  return static_cast<int32_t>(kv_heads) * (p.num_q_heads / p.num_kv_heads);
}

Sm90PrefillArgs MakeArgs(const AttentionParams& p, const Sm90PrefillKvMaps& maps,
                         const Sm90PrefillLaunch& launch) {
  Sm90PrefillArgs args = {};
  args.pieces = launch.pieces;
  args.turns = static_cast<Sm90PrefillTurns*>(launch.workspace);
  args.o = p.o;
  args.lse = p.lse;
  args.o_token_stride = p.o_token_stride;
  args.o_head_stride = p.o_head_stride;
  args.block_table = p.block_table;
  args.block_table_stride = p.block_table_stride;
  args.num_pieces = static_cast<int32_t>(launch.num_pieces);
  args.num_q_heads = p.num_q_heads;
  args.group = p.num_q_heads / p.num_kv_heads;
  args.heads_in_turn = HeadsInTurn(p, launch.max_keys);
  args.block_size = p.block_size;
  args.box_tokens = maps.box_tokens;
  if (p.block_table != nullptr) {
    args.block_size_inverse = static_cast<uint32_t>(((uint64_t{1} << 32) + p.block_size - 1) /
                                                    static_cast<uint64_t>(p.block_size));
  }
  args.window_left = std::min(p.window_left, kSm90PrefillMaxLength);
  args.causal = p.causal;
  args.scale_log2 = p.scale * std::numbers::log2e_v<float>;
  return args;
}

}  // namespace

KernelStatus PrepareSm90Prefill(const AttentionParams& shape, const GpuDevice& device,
                                Sm90PrefillSetup* setup) {
  const bool dtype_ok = shape.q_dtype == shape.kv_dtype &&
                        (shape.q_dtype == DType::kBFloat16 || shape.q_dtype == DType::kFloat16);
  if (!dtype_ok) return KernelStatus::kUnsupportedDType;
  if (const KernelStatus status = CheckShape(shape); status != KernelStatus::kOk) return status;
  if (!HasHeadDim(shape.head_dim)) return KernelStatus::kUnsupportedHeadDim;
  for (const Sm90PrefillInstance* row : kInstances) {
    if (row->compute_capability != device.compute_capability || row->dtype != shape.q_dtype ||
        row->head_dim != shape.head_dim) {
      continue;
    }
    if (cudaFuncSetAttribute(row->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             row->shared_bytes) != cudaSuccess) {
      (void)cudaGetLastError();
      return KernelStatus::kUnsupportedDevice;
    }
    *setup = {row, device.num_sms, row->rows_per_tile};
    return KernelStatus::kOk;
  }
  return KernelStatus::kUnsupportedDevice;
}

KernelStatus MakeSm90PrefillKvMaps(const AttentionParams& params, int64_t num_blocks,
                                   Sm90PrefillKvMaps* maps) {
  if (DTypeBytes(params.kv_dtype) != kElementBytes) return KernelStatus::kUnsupportedDType;
  if (!HasHeadDim(params.head_dim)) return KernelStatus::kUnsupportedHeadDim;
  if (num_blocks < 1 || num_blocks > INT32_MAX) return KernelStatus::kBadShape;
  const int32_t tile = KeysPerTile(params.head_dim);
  if (IsBlockSize(params.block_size)) {
    // Boxes neither cross a block nor leave gaps in a tile.
    maps->box_tokens = std::gcd(params.block_size, tile);
  } else if (num_blocks == 1 && params.block_size >= 1) {
    maps->box_tokens = tile;
  } else {
    return KernelStatus::kUnsupportedBlockSize;
  }
  const bool all_columns = maps->box_tokens == tile;
  const KernelStatus status = MakeMap(
      params.k, params.kv_dtype,
      {params.k_token_stride, params.k_head_stride, params.k_block_stride}, params.block_size,
      params.num_kv_heads, num_blocks, params.head_dim, maps->box_tokens, all_columns, &maps->k);
  if (status != KernelStatus::kOk) return status;
  return MakeMap(params.v, params.kv_dtype,
                 {params.v_token_stride, params.v_head_stride, params.v_block_stride},
                 params.block_size, params.num_kv_heads, num_blocks, params.head_dim,
                 maps->box_tokens, all_columns, &maps->v);
}

int64_t Sm90PrefillWorkspaceBytes() { return sizeof(Sm90PrefillTurns); }

KernelStatus LaunchSm90Prefill(const Sm90PrefillSetup& setup, const AttentionParams& params,
                               const Sm90PrefillKvMaps& maps, const Sm90PrefillLaunch& launch,
                               GpuStreamHandle stream) {
  const Sm90PrefillInstance* instance = setup.instance;
  if (instance == nullptr || setup.num_ctas < 1) return KernelStatus::kUnsupportedDevice;
  if (params.q_dtype != instance->dtype || params.kv_dtype != instance->dtype) {
    return KernelStatus::kUnsupportedDType;
  }
  if (params.head_dim != instance->head_dim) return KernelStatus::kUnsupportedHeadDim;
  if (const KernelStatus status = CheckShape(params); status != KernelStatus::kOk) return status;
  if (params.block_table != nullptr && !IsBlockSize(params.block_size)) {
    return KernelStatus::kUnsupportedBlockSize;
  }
  if (launch.num_pieces == 0) return KernelStatus::kOk;  // no row to write
  if (const KernelStatus status = CheckLaunch(params, maps, launch); status != KernelStatus::kOk) {
    return status;
  }
  TensorMap q_map, o_map;
  KernelStatus status = MakeMap(
      params.q, params.q_dtype, {params.q_token_stride, params.q_head_stride, 0}, launch.total_q,
      params.num_q_heads, 1, params.head_dim, instance->rows_per_tile, true, &q_map);
  if (status != KernelStatus::kOk) return status;
  status =
      MakeMap(params.o, params.q_dtype, {params.o_token_stride, params.o_head_stride, 0},
              launch.total_q, params.num_q_heads, 1, params.head_dim, kRowsPerCopy, true, &o_map);
  if (status != KernelStatus::kOk) return status;
  Sm90PrefillArgs args = MakeArgs(params, maps, launch);
  Sm90PrefillKvMaps by_value = maps;
  void* arguments[] = {&args, &q_map, &by_value.k, &by_value.v, &o_map};
  const int64_t num_tiles = launch.num_pieces * params.num_q_heads;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(std::min<int64_t>(setup.num_ctas, num_tiles)));
  config.blockDim = dim3(static_cast<unsigned>(instance->num_threads));
  config.dynamicSmemBytes = static_cast<size_t>(instance->shared_bytes);
  config.stream = static_cast<GpuNativeStream>(stream);
  const bool launched = cudaLaunchKernelExC(&config, instance->kernel, arguments) == cudaSuccess;
  return launched ? KernelStatus::kOk : KernelStatus::kLaunchFailed;
}

}  // namespace longspan
