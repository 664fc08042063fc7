// The attention kernels behind C functions, for bench/ours.py. Benchmarks only: it keeps what it
// makes until the process ends.
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention/decode/decode.h"
#include "kernels/attention/prefill/sm90_prefill.h"
#include "kernels/runtime/buffer.h"

namespace longspan {
namespace {

// A batch of one length list, planned; q, o [B, 1, Hq, D], pages [n, block_size, Hkv, D], bfloat16,
// or pages of e4m3 with a scale of 1.
struct PlannedDecode {
  AttentionParams params;
  DecodeSetup setup;
  DeviceBuffer plan, workspace, scale;
};

// The same length of queries and of keys in every sequence: q, o [B, Lq, Hq, D]; keys in pages as
// above, or as one block [B * Lk, Hkv, D].
struct PlannedPrefill {
  AttentionParams params;
  Sm90PrefillSetup setup;
  Sm90PrefillLaunch launch;
  DeviceBuffer plan, workspace;
};

AttentionParams Shape(int32_t num_seqs, int32_t num_q_heads, int32_t num_kv_heads, int32_t head_dim,
                      int32_t block_size, float scale) {
  AttentionParams p;
  p.num_seqs = num_seqs;
  p.num_q_heads = num_q_heads;
  p.num_kv_heads = num_kv_heads;
  p.head_dim = head_dim;
  p.block_size = block_size;
  p.scale = scale;
  p.q_dtype = p.kv_dtype = DType::kBFloat16;
  p.q_head_stride = p.o_head_stride = p.k_head_stride = p.v_head_stride = head_dim;
  p.q_token_stride = p.o_token_stride = int64_t{num_q_heads} * head_dim;
  p.k_token_stride = p.v_token_stride = int64_t{num_kv_heads} * head_dim;
  p.k_block_stride = p.v_block_stride = block_size * p.k_token_stride;
  return p;
}

}  // namespace
}  // namespace longspan

// Null when the shape is not supported or memory is short.
extern "C" void* longspan_bench_plan_decode(const int32_t* lengths, int32_t num_seqs,
                                            int32_t num_q_heads, int32_t num_kv_heads,
                                            int32_t head_dim, int32_t block_size, int is_e4m3,
                                            float scale) {
  using namespace longspan;
  AttentionParams params = Shape(num_seqs, num_q_heads, num_kv_heads, head_dim, block_size, scale);
  if (is_e4m3 != 0) params.kv_dtype = DType::kFloat8E4M3;
  const auto device = FindGpuDevice();
  DecodeSetup setup;
  if (!device || PrepareDecode(params, *device, &setup) != KernelStatus::kOk) return nullptr;
  std::vector<int32_t> cu(num_seqs + 1);
  for (int32_t i = 0; i <= num_seqs; ++i) cu[i] = i;
  std::vector<std::byte> host(GpuDecodePlanBytes(setup.num_ctas, num_seqs));
  const int64_t bytes = PlanGpuDecode({cu,
                                       {lengths, static_cast<size_t>(num_seqs)},
                                       num_kv_heads,
                                       num_q_heads / num_kv_heads,
                                       -1,
                                       setup.num_ctas},
                                      host);
  auto plan = DeviceBuffer::Allocate(bytes);
  auto workspace = DeviceBuffer::Allocate(DecodeWorkspaceBytes(setup));
  if (!plan || !workspace || !workspace->Fill(0, nullptr).ok() ||
      !plan->CopyFrom(std::span(host).first(bytes), nullptr).ok()) {
    return nullptr;
  }
  const float one = 1.0f;
  auto one_scale = DeviceBuffer::Allocate(sizeof(one));
  if (!one_scale || !one_scale->CopyFrom(std::as_bytes(std::span(&one, 1)), nullptr).ok()) {
    return nullptr;
  }
  if (is_e4m3 != 0) params.scales.k = params.scales.v = one_scale->as<float>();
  return new PlannedDecode{params, setup, std::move(*plan), std::move(*workspace),
                           std::move(*one_scale)};
}

// A KernelStatus: 0 when enqueued.
extern "C" int longspan_bench_decode(void* planned, const void* q, const void* k, const void* v,
                                     void* o, const int32_t* block_table, int64_t table_stride,
                                     int64_t num_blocks, int overlap, void* stream) {
  using namespace longspan;
  const auto* decode = static_cast<const PlannedDecode*>(planned);
  AttentionParams params = decode->params;
  params.q = q;
  params.o = o;
  params.k = k;
  params.v = v;
  params.block_table = block_table;
  params.block_table_stride = table_stride;
  DecodeKvMaps maps;
  const KernelStatus status = MakeDecodeKvMaps(params, num_blocks, &maps);
  if (status != KernelStatus::kOk) return static_cast<int>(status);
  const DecodeLaunch launch = {decode->plan.data(), 1, decode->workspace.data(),
                               decode->workspace.size_bytes(), overlap != 0};
  return static_cast<int>(LaunchDecode(decode->setup, params, maps, launch, stream));
}

// block_size 0: keys in one piece. Null when the shape is not supported or memory is short.
extern "C" void* longspan_bench_plan_prefill(int32_t q_len, int32_t kv_len, int32_t num_seqs,
                                             int32_t num_q_heads, int32_t num_kv_heads,
                                             int32_t head_dim, int32_t block_size, int causal,
                                             float scale) {
  using namespace longspan;
  AttentionParams params = Shape(num_seqs, num_q_heads, num_kv_heads, head_dim,
                                 block_size > 0 ? block_size : num_seqs * kv_len, scale);
  params.causal = causal != 0;
  const auto device = FindGpuDevice();
  Sm90PrefillSetup setup;
  if (!device || PrepareSm90Prefill(params, *device, &setup) != KernelStatus::kOk) return nullptr;
  std::vector<int32_t> cu_q(num_seqs + 1), cu_k, lengths(num_seqs, kv_len);
  for (int32_t i = 0; i <= num_seqs; ++i) cu_q[i] = i * q_len;
  if (block_size == 0) {
    for (int32_t i = 0; i <= num_seqs; ++i) cu_k.push_back(i * kv_len);
  }
  std::vector<Sm90PrefillPiece> pieces(NumSm90PrefillPieces(cu_q, setup.rows_per_tile));
  PlanSm90Prefill({cu_q, lengths, cu_k, setup.rows_per_tile, params.causal, -1}, pieces);
  const auto bytes = std::as_bytes(std::span(pieces));
  auto plan = DeviceBuffer::Allocate(static_cast<int64_t>(bytes.size()));
  auto workspace = DeviceBuffer::Allocate(Sm90PrefillWorkspaceBytes());
  if (!plan || !workspace || !workspace->Fill(0, nullptr).ok() ||
      !plan->CopyFrom(bytes, nullptr).ok()) {
    return nullptr;
  }
  const Sm90PrefillLaunch launch = {plan->as<Sm90PrefillPiece>(),
                                    static_cast<int64_t>(pieces.size()),
                                    int64_t{num_seqs} * q_len,
                                    kv_len,
                                    workspace->data(),
                                    workspace->size_bytes()};
  return new PlannedPrefill{params, setup, launch, std::move(*plan), std::move(*workspace)};
}

// A KernelStatus: 0 when enqueued. block_table null: keys in one piece.
extern "C" int longspan_bench_prefill(void* planned, const void* q, const void* k, const void* v,
                                      void* o, const int32_t* block_table, int64_t table_stride,
                                      int64_t num_blocks, void* stream) {
  using namespace longspan;
  const auto* prefill = static_cast<const PlannedPrefill*>(planned);
  AttentionParams params = prefill->params;
  params.q = q;
  params.o = o;
  params.k = k;
  params.v = v;
  params.block_table = block_table;
  params.block_table_stride = table_stride;
  Sm90PrefillKvMaps maps;
  const KernelStatus status = MakeSm90PrefillKvMaps(params, num_blocks, &maps);
  if (status != KernelStatus::kOk) return static_cast<int>(status);
  return static_cast<int>(LaunchSm90Prefill(prefill->setup, params, maps, prefill->launch, stream));
}
