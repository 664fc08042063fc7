// Checks, lookup and launch of GPU decode kernels.
#include "kernels/attention/decode/decode.h"

#include <cuda.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>

#include "kernels/attention/decode/decode_instance.h"
#include "kernels/attention/decode/decode_params.h"
#include "kernels/attention/decode/sm90_decode_layout.h"
#include "kernels/attention/sm80_kv_checks.h"
#include "kernels/gpu.h"

namespace longspan {
namespace {

constexpr const DecodeInstance* kInstances[] = {
    &kSm90DecodeBf16D64,
    &kSm90DecodeBf16D128,
    &kSm90DecodeBf16D192,
    &kSm90DecodeFp16D64,
    &kSm90DecodeFp16D128,
    &kSm90DecodeFp16D192,
    &kSm90DecodeKvE4M3D64,
    &kSm90DecodeKvE4M3D128,
    &kSm90DecodeKvE4M3D192,
    &kSm90DecodeKvE4M3D256,
    &kSm90DecodeKvInt8D64,
    &kSm90DecodeKvInt8D128,
    &kSm90DecodeKvInt8D192,
    &kSm90DecodeKvInt8D256,
    // Of those that fit, the first with enough columns is taken.
    &kSm80DecodeBf16D64,
    &kSm80DecodeBf16D128,
    &kSm80DecodeBf16D256,
    &kSm80DecodeFp16D64,
    &kSm80DecodeFp16D128,
    &kSm80DecodeFp16D256,
    &kSm80Decode8BitD128,
    &kSm80Decode8BitD256,
};
constexpr int64_t kAlignment = 256;
constexpr int32_t kMinHeadDim = 16, kMaxHeadDim = 256;  // of the sm_80 line

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
bool IsAligned(const void* pointer, uintptr_t bytes) {
  return std::bit_cast<uintptr_t>(pointer) % bytes == 0;
}

bool IsOfSm80Line(const DecodeInstance& row) { return row.compute_capability == 80; }

// What every kernel of the family needs.
KernelStatus CheckShape(const AttentionParams& p) {
  if (p.num_kv_heads < 1 || p.num_q_heads < p.num_kv_heads || p.num_q_heads % p.num_kv_heads != 0) {
    return KernelStatus::kUnsupportedHeads;
  }
  if (p.block_size < 16 || p.block_size > 256 || p.block_size % 16 != 0) {
    return KernelStatus::kUnsupportedBlockSize;
  }
  const bool scale_ok = std::isfinite(p.scale * std::numbers::log2e_v<float>);
  const bool softcap_ok = p.softcap >= 0.0f && std::isfinite(p.softcap);
  if (!scale_ok || !softcap_ok || p.window_left < -1 || p.window_right < -1) {
    return KernelStatus::kUnsupportedOption;
  }
  return KernelStatus::kOk;
}

// Whether a kernel computes the shape. CheckShape was kOk.
KernelStatus CheckInstance(const DecodeInstance& row, const AttentionParams& p) {
  const bool is_8bit = DTypeBytes(p.kv_dtype) == 1;
  if (row.has_8bit_kv != is_8bit || (!is_8bit && p.q_dtype != row.dtype)) {
    return KernelStatus::kUnsupportedDType;
  }
  if (IsOfSm80Line(row)) {
    const bool fits =
        p.head_dim >= kMinHeadDim && p.head_dim <= row.head_dim && p.head_dim % 8 == 0;
    return fits ? KernelStatus::kOk : KernelStatus::kUnsupportedHeadDim;
  }
  if (is_8bit && p.kv_dtype != row.dtype) return KernelStatus::kUnsupportedDType;
  const int32_t bytes = DTypeBytes(p.kv_dtype);
  if (!Sm90DecodeHasHeadDim(bytes, p.head_dim) ||
      Sm90DecodeKernelHeadDim(bytes, p.head_dim) != row.head_dim) {
    return KernelStatus::kUnsupportedHeadDim;
  }
  if (p.tree_mask != nullptr) return KernelStatus::kUnsupportedTreeMask;
  const bool has_option = p.softcap != 0.0f || p.sinks != nullptr || p.alibi_slopes != nullptr ||
                          (p.window_right != -1 && !p.causal);
  return has_option ? KernelStatus::kUnsupportedOption : KernelStatus::kOk;
}

bool RunsOn(const DecodeInstance& row, const GpuDevice& device, GpuLine line) {
  if (IsOfSm80Line(row)) return device.compute_capability >= 80;
  return line == GpuLine::kAuto && row.compute_capability == device.compute_capability;
}

KernelStatus CheckPointers(const AttentionParams& p, const DecodeLaunch& launch) {
  if (p.q == nullptr || p.o == nullptr || p.block_table == nullptr || launch.plan == nullptr ||
      launch.workspace == nullptr || launch.max_q_len < 1 ||
      int64_t{launch.max_q_len} * p.num_q_heads > kGpuDecodeMaxLength) {
    return KernelStatus::kBadShape;
  }
  if (p.tree_mask != nullptr &&
      (launch.max_q_len > kMaxTreeTokens || p.tree_mask_stride < 0 || !IsAligned(p.tree_mask, 8))) {
    return KernelStatus::kUnsupportedTreeMask;
  }
  // Queries are read in pairs, the output is written in fours.
  if (p.q_token_stride % 2 != 0 || p.q_head_stride % 2 != 0 || p.o_token_stride % 4 != 0 ||
      p.o_head_stride % 4 != 0) {
    return KernelStatus::kBadStride;
  }
  if (!IsAligned(p.q, 4) || !IsAligned(p.o, 8) || !IsAligned(p.lse, 4) ||
      !IsAligned(p.block_table, 4) || !IsAligned(launch.plan, 16) ||
      !IsAligned(launch.workspace, kAlignment)) {
    return KernelStatus::kMisaligned;
  }
  return KernelStatus::kOk;
}

struct Workspace {
  int64_t arrivals, partial_sums, partial_o;  // bytes of each, in this order
};
Workspace WorkspaceOf(const DecodeSetup& setup) {
  const int64_t rows = int64_t{2} * setup.num_ctas * kGpuDecodeRows;
  return {Aligned(setup.num_ctas * int64_t{sizeof(int32_t)}),
          Aligned(rows * int64_t{sizeof(DecodePartialSum)}),
          Aligned(rows * setup.instance->head_dim * int64_t{sizeof(float)})};
}

// Tokens of a box: boxes neither cross a block nor leave gaps in a tile.
int32_t BoxTokens(int32_t block_size) { return std::gcd(block_size, kGpuDecodeTileTokens); }

// A dimension of extent 1 may come with any stride.
bool SetStride(int64_t stride, int64_t extent, int64_t element_bytes, int64_t* bytes) {
  constexpr int64_t kMaxBytes = int64_t{1} << 40;
  *bytes = extent == 1 ? 128 : stride * element_bytes;
  const bool in_range = stride >= 0 && stride < kMaxBytes / element_bytes;
  return in_range && *bytes > 0 && *bytes % 16 == 0;
}

KernelStatus MakeMap(const AttentionParams& p, bool values, int64_t num_blocks, TensorMap* map) {
  TensorMapShape shape;
  shape.base = values ? p.v : p.k;
  shape.dtype = p.kv_dtype;
  const int32_t box_tokens = BoxTokens(p.block_size);
  const int32_t bytes = DTypeBytes(p.kv_dtype);
  const int32_t padded = Sm90DecodeKernelHeadDim(bytes, p.head_dim);
  const int32_t row_bytes = Sm90DecodeRowBytes(bytes, padded);
  const int32_t columns = padded * bytes / row_bytes;
  // A padded head is one column: what is behind head_dim lies outside of the tensor, so it is 0.
  const int64_t column = padded == p.head_dim ? row_bytes / bytes : p.head_dim;
  const int64_t extents[] = {column, p.block_size, columns, p.num_kv_heads, num_blocks};
  std::copy(std::begin(extents), std::end(extents), shape.extents);
  shape.stride_bytes[1] = row_bytes;
  if (!SetStride(values ? p.v_token_stride : p.k_token_stride, p.block_size, bytes,
                 &shape.stride_bytes[0]) ||
      !SetStride(values ? p.v_head_stride : p.k_head_stride, p.num_kv_heads, bytes,
                 &shape.stride_bytes[2]) ||
      !SetStride(values ? p.v_block_stride : p.k_block_stride, num_blocks, bytes,
                 &shape.stride_bytes[3])) {
    return KernelStatus::kBadStride;
  }
  if (shape.base == nullptr) return KernelStatus::kBadShape;
  if (!IsAligned(shape.base, 16)) return KernelStatus::kMisaligned;
  shape.box[0] = row_bytes / bytes;
  shape.box[1] = box_tokens;
  // As the kernels' traits say (kBoxesOfAllColumns).
  shape.box[2] = bytes == 2 || box_tokens == kGpuDecodeTileTokens ? columns : 1;
  shape.box[3] = shape.box[4] = 1;
  return EncodeTensorMap(shape, map) ? KernelStatus::kOk : KernelStatus::kUnsupportedDevice;
}

DecodeArgs MakeArgs(const DecodeSetup& setup, const AttentionParams& p,
                    const DecodeLaunch& launch) {
  const Workspace sizes = WorkspaceOf(setup);
  auto* workspace = static_cast<std::byte*>(launch.workspace);
  const auto* works = static_cast<const GpuDecodeWork*>(launch.plan);
  DecodeArgs args = {};
  args.q = p.q;
  args.o = p.o;
  args.lse = p.lse;
  args.q_token_stride = p.q_token_stride;
  args.q_head_stride = p.q_head_stride;
  args.o_token_stride = p.o_token_stride;
  args.o_head_stride = p.o_head_stride;
  args.block_table = p.block_table;
  args.block_table_stride = p.block_table_stride;
  args.works = works;
  args.sequences = reinterpret_cast<const GpuDecodeSequence*>(works + setup.num_ctas);
  args.arrivals = reinterpret_cast<int32_t*>(workspace);
  args.partial_sum = reinterpret_cast<DecodePartialSum*>(workspace + sizes.arrivals);
  args.partial_o = reinterpret_cast<float*>(workspace + sizes.arrivals + sizes.partial_sums);
  args.num_q_heads = p.num_q_heads;
  args.num_kv_heads = p.num_kv_heads;
  args.group = p.num_q_heads / p.num_kv_heads;
  args.block_size = p.block_size;
  args.box_tokens = BoxTokens(p.block_size);
  args.window_left = GpuDecodeWindow(p.window_left);
  args.causal = p.causal && p.tree_mask == nullptr;
  constexpr float kLog2E = std::numbers::log2e_v<float>;
  args.scale_log2 = p.scale * kLog2E;
  args.sinks = p.sinks;
  args.head_dim = p.head_dim;
  args.k = p.k;
  args.v = p.v;
  args.k_block_stride = p.k_block_stride;
  args.k_token_stride = p.k_token_stride;
  args.k_head_stride = p.k_head_stride;
  args.v_block_stride = p.v_block_stride;
  args.v_token_stride = p.v_token_stride;
  args.v_head_stride = p.v_head_stride;
  args.window_right = GpuDecodeWindow(p.window_right);
  args.cap_in = p.softcap > 0.0f ? 2.0f * kLog2E * (p.scale / p.softcap) : 0.0f;
  args.cap_out = p.softcap * kLog2E;
  args.alibi_slopes = p.alibi_slopes;
  args.tree_mask = p.tree_mask;
  args.tree_mask_stride = p.tree_mask_stride;
  args.has_wide_kv = HasWideKv(p);
  args.scales = p.scales;
  args.is_int8 = p.kv_dtype == DType::kInt8;
  args.is_bfloat16 = p.q_dtype == DType::kBFloat16;
  return args;
}

}  // namespace

KernelStatus PrepareDecode(const AttentionParams& shape, const GpuDevice& device,
                           DecodeSetup* setup, GpuLine line) {
  if (const KernelStatus status = CheckSm80Types(shape); status != KernelStatus::kOk) return status;
  if (const KernelStatus status = CheckShape(shape); status != KernelStatus::kOk) return status;
  if (shape.head_dim < kMinHeadDim || shape.head_dim > kMaxHeadDim || shape.head_dim % 8 != 0) {
    return KernelStatus::kUnsupportedHeadDim;
  }
  for (const DecodeInstance* row : kInstances) {
    if (!RunsOn(*row, device, line) || CheckInstance(*row, shape) != KernelStatus::kOk) continue;
    for (const void* kernel : {row->few_rows, row->many_rows}) {
      if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               row->shared_bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return KernelStatus::kUnsupportedDevice;
      }
    }
    *setup = {row, device.num_sms};
    return KernelStatus::kOk;
  }
  return KernelStatus::kUnsupportedDevice;
}

bool DecodeNeedsKvMaps(const DecodeSetup& setup) { return !IsOfSm80Line(*setup.instance); }

KernelStatus MakeDecodeKvMaps(const AttentionParams& params, int64_t num_blocks,
                              DecodeKvMaps* maps) {
  if (const KernelStatus status = CheckShape(params); status != KernelStatus::kOk) return status;
  if (DTypeBytes(params.kv_dtype) > 2) return KernelStatus::kUnsupportedDType;
  if (!Sm90DecodeHasHeadDim(DTypeBytes(params.kv_dtype), params.head_dim)) {
    return KernelStatus::kUnsupportedHeadDim;
  }
  if (num_blocks < 1 || num_blocks > INT32_MAX) return KernelStatus::kBadShape;
  const KernelStatus status = MakeMap(params, false, num_blocks, &maps->k);
  return status == KernelStatus::kOk ? MakeMap(params, true, num_blocks, &maps->v) : status;
}

int64_t DecodeWorkspaceBytes(const DecodeSetup& setup) {
  const Workspace sizes = WorkspaceOf(setup);
  return sizes.arrivals + sizes.partial_sums + sizes.partial_o;
}

int64_t DecodeZeroedBytes(const DecodeSetup& setup) { return WorkspaceOf(setup).arrivals; }

KernelStatus LaunchDecode(const DecodeSetup& setup, const AttentionParams& params,
                          const DecodeKvMaps& maps, const DecodeLaunch& launch,
                          GpuStreamHandle stream) {
  const DecodeInstance* instance = setup.instance;
  if (instance == nullptr || setup.num_ctas < 1) return KernelStatus::kUnsupportedDevice;
  if (const KernelStatus status = CheckShape(params); status != KernelStatus::kOk) return status;
  if (const KernelStatus status = CheckInstance(*instance, params); status != KernelStatus::kOk) {
    return status;
  }
  if (const KernelStatus status = CheckSm80Types(params); status != KernelStatus::kOk) {
    return status;
  }
  if (launch.max_q_len == 0) return KernelStatus::kOk;  // no row to write
  if (const KernelStatus status = CheckSm80Scales(params); status != KernelStatus::kOk) {
    return status;
  }
  if (const KernelStatus status = CheckPointers(params, launch); status != KernelStatus::kOk) {
    return status;
  }
  if (IsOfSm80Line(*instance)) {
    if (const KernelStatus status = CheckSm80Kv(params); status != KernelStatus::kOk) return status;
  }
  if (launch.workspace_bytes < DecodeWorkspaceBytes(setup)) {
    return KernelStatus::kWorkspaceTooSmall;
  }
  DecodeArgs args = MakeArgs(setup, params, launch);
  DecodeKvMaps by_value = maps;
  void* arguments[] = {&args, &by_value.k, &by_value.v};  // the sm_80 line takes the first alone
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(setup.num_ctas));
  config.blockDim = dim3(static_cast<unsigned>(instance->num_threads));
  config.dynamicSmemBytes = static_cast<size_t>(instance->shared_bytes);
  config.stream = static_cast<GpuNativeStream>(stream);
  config.attrs = &overlap;
  config.numAttrs = launch.overlap_previous && !IsOfSm80Line(*instance) ? 1 : 0;
  const int64_t rows = int64_t{launch.max_q_len} * args.group;
  const void* kernel = rows <= kDecodeFewRows ? instance->few_rows : instance->many_rows;
  const bool launched = cudaLaunchKernelExC(&config, kernel, arguments) == cudaSuccess;
  return launched ? KernelStatus::kOk : KernelStatus::kLaunchFailed;
}

}  // namespace longspan
