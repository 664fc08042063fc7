// Fills in the structs of attn_c.h from a problem's params.
#include "tests/support/attn_call.h"

#include <algorithm>

namespace longspan {
namespace {

// What the C functions do not know becomes a number that they refuse.
int32_t CodeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return -1;
    case DType::kFloat16:
      return LONGSPAN_ATTN_FLOAT16;
    case DType::kBFloat16:
      return LONGSPAN_ATTN_BFLOAT16;
    case DType::kFloat8E4M3:
      return LONGSPAN_ATTN_FLOAT8_E4M3;
    case DType::kInt8:
      return LONGSPAN_ATTN_INT8;
  }
  return -1;
}

void SetKeys(PagedAttention& problem, AttentionTableKeys keys, longspan_attn_call* call) {
  const AttentionParams& p = problem.params();
  call->block_size = p.block_size;
  call->k_block_stride = p.k_block_stride;
  call->v_block_stride = p.v_block_stride;
  call->num_blocks = std::max<int64_t>(1, problem.num_blocks());
  if (keys == AttentionTableKeys::kBlocks) {
    call->kv_layout = LONGSPAN_ATTN_PAGED;
    return;
  }
  const bool rows = keys == AttentionTableKeys::kRows;
  call->kv_layout = rows ? LONGSPAN_ATTN_ROWS : LONGSPAN_ATTN_PACKED;
  const int64_t row_blocks = rows ? problem.row_blocks() : call->num_blocks;
  call->num_blocks = rows ? p.num_seqs : 1;
  call->kv_capacity = row_blocks * p.block_size;
  call->k_block_stride = row_blocks * p.k_block_stride;
  call->v_block_stride = row_blocks * p.v_block_stride;
}

}  // namespace

int32_t AttnFamilyOf(AttentionTableFamily family) {
  switch (family) {
    case AttentionTableFamily::kDecode:
      return LONGSPAN_ATTN_DECODE;
    case AttentionTableFamily::kPrefill:
      return LONGSPAN_ATTN_PREFILL;
    case AttentionTableFamily::kByShape:
      break;
  }
  return 0;
}

longspan_attn_call AttnCallOf(PagedAttention& problem, AttentionTableKeys keys) {
  const AttentionParams& p = problem.params();
  longspan_attn_call call = {};
  call.struct_bytes = sizeof(call);
  call.dtype = CodeOf(p.q_dtype);
  call.kv_dtype = CodeOf(p.kv_dtype);
  call.num_seqs = p.num_seqs;
  call.num_q_heads = p.num_q_heads;
  call.num_kv_heads = p.num_kv_heads;
  call.head_dim = p.head_dim;
  for (int32_t i = 0; i < p.num_seqs; ++i) {
    call.max_q_len = std::max(call.max_q_len, p.cu_seqlens_q[i + 1] - p.cu_seqlens_q[i]);
  }
  call.causal = p.causal ? 1 : 0;
  call.window_left = p.window_left;
  call.window_right = p.window_right;
  call.scale = p.scale;
  call.softcap = p.softcap;
  call.total_q = p.cu_seqlens_q[p.num_seqs];
  call.q = p.q;
  call.o = p.o;
  call.lse = p.lse;
  call.k = const_cast<void*>(p.k);
  call.v = const_cast<void*>(p.v);
  call.block_table = p.block_table;
  call.alibi_slopes = p.alibi_slopes;
  call.sinks = p.sinks;
  call.k_scale = p.scales.k;
  call.v_scale = p.scales.v;
  call.k_scale_block_stride = p.scales.k_block_stride;
  call.k_scale_head_stride = p.scales.k_head_stride;
  call.v_scale_block_stride = p.scales.v_block_stride;
  call.v_scale_head_stride = p.scales.v_head_stride;
  call.tree_mask = p.tree_mask;
  call.tree_mask_stride = p.tree_mask_stride;
  call.block_table_stride = p.block_table_stride;
  call.q_token_stride = p.q_token_stride;
  call.q_head_stride = p.q_head_stride;
  call.o_token_stride = p.o_token_stride;
  call.o_head_stride = p.o_head_stride;
  call.k_token_stride = p.k_token_stride;
  call.k_head_stride = p.k_head_stride;
  call.v_token_stride = p.v_token_stride;
  call.v_head_stride = p.v_head_stride;
  SetKeys(problem, keys, &call);
  return call;
}

AttnLengths::AttnLengths(PagedAttention& problem, AttentionTableKeys keys) {
  const AttentionParams& p = problem.params();
  lengths_.struct_bytes = sizeof(lengths_);
  lengths_.cu_seqlens_q = p.cu_seqlens_q;
  lengths_.seq_lens = p.seq_lens;
  if (keys != AttentionTableKeys::kOnePiece) return;
  kv_rows_.assign(static_cast<size_t>(p.num_seqs), 0);
  for (int32_t seq = 0; seq < p.num_seqs; ++seq) {
    // A sequence without tokens has no block: it begins anywhere.
    kv_starts_.push_back(p.seq_lens[seq] == 0 ? 0 : problem.block_table(seq)[0] * p.block_size);
  }
  lengths_.kv_rows = kv_rows_.data();
  lengths_.kv_starts = kv_starts_.data();
}

}  // namespace longspan
