// Slots of new tokens and their rows of cosines and sines: see append_rows.h. One block of threads
// per row, the new tokens first, then the query rows; its threads take the pairs. Bound by the
// launch.
#include "kernels/attention/dropin/append_rows.h"
#include "kernels/element_io.cuh"
#include "kernels/gpu_launch.cuh"

namespace longspan {
namespace {

constexpr int kThreads = 128;

__device__ __forceinline__ int64_t SlotOf(const AppendRowsParams& p, int32_t seq, int32_t token) {
  const int64_t at = int64_t{p.cache_seqlens[seq]} + token;
  const int64_t index = at - (p.kv_starts == nullptr ? 0 : p.kv_starts[seq]);
  if (index < 0 || at >= p.capacity) return -1;
  const int32_t* ids = p.table + seq * p.table_stride;
  if (p.block_size == 0) return ids[0] + index;
  const int64_t entry = index / p.block_size;
  if (entry >= p.table_stride) return -1;
  return int64_t{ids[entry]} * p.block_size + (index - entry * p.block_size);
}

__device__ __forceinline__ void CopyRow(const AppendRowsParams& p, int64_t position, float* out) {
  position = position < 0 ? 0 : position < p.num_positions ? position : p.num_positions - 1;
  for (int i = static_cast<int>(threadIdx.x); i < p.num_pairs; i += kThreads) {
    float cosine[1], sine[1];
    LoadElements(p.cos, p.dtype, position * p.rotary_stride + i, cosine);
    LoadElements(p.sin, p.dtype, position * p.rotary_stride + i, sine);
    out[i] = cosine[0];
    out[p.num_pairs + i] = sine[0];
  }
}

__global__ void __launch_bounds__(kThreads) AppendRowsKernel(const AppendRowsParams p) {
  const int64_t num_new = int64_t{p.num_seqs} * p.new_len;
  const int64_t row = blockIdx.x;
  if (row < num_new) {
    const auto seq = static_cast<int32_t>(row / p.new_len);
    const auto token = static_cast<int32_t>(row - int64_t{seq} * p.new_len);
    if (threadIdx.x == 0) p.slots[row] = SlotOf(p, seq, token);
    if (p.cos == nullptr) return;
    CopyRow(p, int64_t{p.positions[seq]} + token, p.k_cos_sin + row * 2 * p.num_pairs);
    return;
  }
  const int64_t q_row = row - num_new;
  const auto seq = static_cast<int32_t>(q_row / p.q_len);
  const int64_t ahead = p.q_fixed ? 0 : q_row - int64_t{seq} * p.q_len;
  CopyRow(p, p.positions[seq] + ahead, p.q_cos_sin + q_row * 2 * p.num_pairs);
}

}  // namespace

KernelStatus AppendRowsGpu(const AppendRowsParams& params, GpuStreamHandle stream) {
  const AppendRowsParams& p = params;
  if (p.num_seqs < 0 || p.new_len < 0 || p.q_len < 0 || p.block_size < 0 || p.table_stride < 0 ||
      p.num_pairs < 0) {
    return KernelStatus::kBadShape;
  }
  const bool turns = p.cos != nullptr;
  const int64_t q_rows = turns && p.q_cos_sin != nullptr ? int64_t{p.num_seqs} * p.q_len : 0;
  const int64_t rows = int64_t{p.num_seqs} * p.new_len + q_rows;
  if (rows == 0) return KernelStatus::kOk;
  if (p.cache_seqlens == nullptr || p.table == nullptr || p.slots == nullptr ||
      (turns && (p.sin == nullptr || p.positions == nullptr || p.k_cos_sin == nullptr ||
                 p.num_positions < 1))) {
    return KernelStatus::kBadShape;
  }
  return LaunchKernel(&AppendRowsKernel, rows, kThreads, stream, params);
}

}  // namespace longspan
