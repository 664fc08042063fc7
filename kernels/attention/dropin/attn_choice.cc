// Selection and key views of the drop-in: see attn_choice.h.
#include "kernels/attention/dropin/attn_choice.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/attention/decode/sm90_decode_layout.h"

namespace longspan {
namespace {

constexpr int32_t kBlockSizes[] = {256, 128, 64, 32, 16};

bool Has8BitKv(const longspan_attn_call& call) {
  return call.kv_dtype == LONGSPAN_ATTN_FLOAT8_E4M3 || call.kv_dtype == LONGSPAN_ATTN_INT8;
}

struct Masks {
  bool causal;
  int32_t left, right;
};
// A right window of 0 is causal, and beyond causal a right window says nothing; a tree takes the
// place of causal alone.
Masks NormalMasks(const longspan_attn_call& call) {
  if (call.tree_mask != nullptr) return {false, call.window_left, call.window_right};
  const bool causal = call.causal != 0 || call.window_right == 0;
  return {causal, call.window_left, causal ? -1 : call.window_right};
}

// Steps of a layout that both k and v can be counted in.
struct Steps {
  int64_t k_unit, v_unit;
  int64_t row, token;  // in units; of k and of v alike
  bool same;
};
Steps StepsOf(const longspan_attn_call& call) {
  Steps steps;
  steps.k_unit = std::gcd(call.k_block_stride, call.k_token_stride);
  steps.v_unit = std::gcd(call.v_block_stride, call.v_token_stride);
  if (steps.k_unit == 0 || steps.v_unit == 0) return {0, 0, 0, 0, false};
  steps.row = call.k_block_stride / steps.k_unit;
  steps.token = call.k_token_stride / steps.k_unit;
  steps.same = steps.row == call.v_block_stride / steps.v_unit &&
               steps.token == call.v_token_stride / steps.v_unit;
  return steps;
}

// The largest block that rows consist of whole; 0: none.
int32_t RowBlockSize(const longspan_attn_call& call) {
  if (call.kv_layout != LONGSPAN_ATTN_ROWS || call.k_token_stride == 0) return 0;
  const Steps steps = StepsOf(call);
  if (!steps.same) return 0;
  for (const int32_t size : kBlockSizes) {
    if (call.kv_capacity % size == 0 && steps.row % (size * steps.token) == 0) return size;
  }
  return 0;
}

// Whether every row begins a whole number of tokens after the first.
bool IsOnePiece(const longspan_attn_call& call) {
  const Steps steps = StepsOf(call);
  if (!steps.same || steps.token < 1 || steps.row % steps.token != 0) return false;
  const int64_t last = steps.row / steps.token * std::max<int64_t>(0, call.num_blocks - 1);
  return last + call.kv_capacity <= INT32_MAX;
}

int Refuse(AttnChoice* choice, int status, const char* reason) {
  choice->reason = reason;
  return status;
}

int CheckStrides(const longspan_attn_call& call, AttnChoice* choice) {
  for (const int64_t stride :
       {call.q_token_stride, call.q_head_stride, call.o_token_stride, call.o_head_stride,
        call.k_block_stride, call.k_token_stride, call.k_head_stride, call.v_block_stride,
        call.v_token_stride, call.v_head_stride}) {
    if (stride < 0 || stride % 8 != 0) {
      return Refuse(choice, LONGSPAN_ATTN_STRIDE,
                    "strides are multiples of 8 elements, not negative");
    }
  }
  return LONGSPAN_ATTN_OK;
}

int CheckShape(const longspan_attn_call& call, AttnChoice* choice) {
  if (call.dtype != LONGSPAN_ATTN_FLOAT16 && call.dtype != LONGSPAN_ATTN_BFLOAT16) {
    return Refuse(choice, LONGSPAN_ATTN_DTYPE, "dtype is neither float16 nor bfloat16");
  }
  if (!Has8BitKv(call) && call.kv_dtype != 0 && call.kv_dtype != call.dtype) {
    return Refuse(choice, LONGSPAN_ATTN_DTYPE, "kv_dtype is neither dtype nor of 8 bits");
  }
  if (call.num_kv_heads < 1 || call.num_q_heads < 1 || call.num_q_heads % call.num_kv_heads != 0) {
    return Refuse(choice, LONGSPAN_ATTN_HEADS, "query heads are not a multiple of KV heads");
  }
  if (call.head_dim < 16 || call.head_dim > 256 || call.head_dim % 8 != 0) {
    return Refuse(choice, LONGSPAN_ATTN_HEAD_DIM, "head_dim is not a multiple of 8 in 16..256");
  }
  if (call.num_seqs < 0 || call.max_q_len < 0 || call.total_q < 0 || call.total_q > INT32_MAX ||
      call.num_blocks < 1 || call.num_blocks > INT32_MAX) {
    return Refuse(choice, LONGSPAN_ATTN_SHAPE, "an extent is negative, or the cache is empty");
  }
  const int64_t rows = int64_t{call.max_q_len} * call.num_q_heads;
  if (rows >= (1 << 30)) return Refuse(choice, LONGSPAN_ATTN_SHAPE, "max_q_len * heads >= 2^30");
  switch (call.kv_layout) {
    case LONGSPAN_ATTN_PAGED:
      if (call.block_size < 16 || call.block_size > 256 || call.block_size % 16 != 0) {
        return Refuse(choice, LONGSPAN_ATTN_BLOCK_SIZE,
                      "block_size is not a multiple of 16 in 16..256");
      }
      break;
    case LONGSPAN_ATTN_ROWS:
    case LONGSPAN_ATTN_PACKED:
      if (call.kv_capacity < 1 || call.kv_capacity > (1 << 30)) {
        return Refuse(choice, LONGSPAN_ATTN_SHAPE, "kv_capacity is not in 1..2^30");
      }
      break;
    default:
      return Refuse(choice, LONGSPAN_ATTN_OPTION, "unknown kv_layout");
  }
  return LONGSPAN_ATTN_OK;
}

int CheckOptions(const longspan_attn_call& call, AttnChoice* choice) {
  if (!std::isfinite(call.scale * std::numbers::log2e_v<float>)) {
    return Refuse(choice, LONGSPAN_ATTN_OPTION, "scale is not finite");
  }
  if (!std::isfinite(call.softcap) || call.softcap < 0.0f) {
    return Refuse(choice, LONGSPAN_ATTN_OPTION, "softcap is negative or not finite");
  }
  if (call.window_left < -1 || call.window_right < -1) {
    return Refuse(choice, LONGSPAN_ATTN_OPTION, "a window is below -1");
  }
  const bool known = call.family >= 0 && call.family <= LONGSPAN_ATTN_PREFILL &&
                     (call.line == 0 || call.line == LONGSPAN_ATTN_SM80);
  return known ? LONGSPAN_ATTN_OK : Refuse(choice, LONGSPAN_ATTN_OPTION, "unknown family or line");
}

int CheckScalesAndTree(const longspan_attn_call& call, AttnChoice* choice) {
  for (const int64_t stride : {call.k_scale_block_stride, call.k_scale_head_stride,
                               call.v_scale_block_stride, call.v_scale_head_stride}) {
    if (stride < 0) return Refuse(choice, LONGSPAN_ATTN_SCALES, "a stride of scales is negative");
  }
  if (call.kv_layout != LONGSPAN_ATTN_PAGED &&
      (call.k_scale_block_stride != 0 || call.v_scale_block_stride != 0)) {
    return Refuse(choice, LONGSPAN_ATTN_SCALES, "scales of blocks, but keys do not lie in blocks");
  }
  if (call.tree_mask == nullptr) return LONGSPAN_ATTN_OK;
  if (call.max_q_len > kMaxTreeTokens || call.tree_mask_stride < 0) {
    return Refuse(choice, LONGSPAN_ATTN_TREE,
                  "tree_mask with more than 64 rows a sequence or a negative stride");
  }
  return call.family == LONGSPAN_ATTN_PREFILL
             ? Refuse(choice, LONGSPAN_ATTN_TREE, "tree_mask is of the decode family alone")
             : LONGSPAN_ATTN_OK;
}

// What the sm_90a kernels lack, whatever the family.
bool HasSlowOption(const longspan_attn_call& call) {
  return call.tree_mask != nullptr || call.softcap != 0.0f || call.alibi_slopes != nullptr ||
         call.sinks != nullptr || NormalMasks(call).right != -1;
}

// The copy engine's strides are multiples of 16 bytes; those of calls are multiples of 8 elements.
bool HasMappedStrides(const longspan_attn_call& call) {
  if (!Has8BitKv(call)) return true;
  for (const int64_t stride : {call.k_block_stride, call.k_token_stride, call.k_head_stride,
                               call.v_block_stride, call.v_token_stride, call.v_head_stride}) {
    if (stride % 16 != 0) return false;
  }
  return true;
}

bool ServedBySm90(const longspan_attn_call& call, int32_t compute_capability, AttnFamily family,
                  AttnKeys* keys, int32_t* block_size) {
  if (compute_capability != 90 || call.line == LONGSPAN_ATTN_SM80 || HasSlowOption(call)) {
    return false;
  }
  const bool paged = call.kv_layout == LONGSPAN_ATTN_PAGED;
  *keys = AttnKeys::kBlocks;
  *block_size = call.block_size;
  const int32_t d = call.head_dim;
  if (family == AttnFamily::kDecode) {
    if (!Sm90DecodeHasHeadDim(Has8BitKv(call) ? 1 : 2, d) || !HasMappedStrides(call)) return false;
    if (paged) return true;
    *keys = AttnKeys::kRowBlocks;
    *block_size = RowBlockSize(call);
    return *block_size != 0;
  }
  if (Has8BitKv(call) || (d != 64 && d != 128 && d != 256)) return false;
  if (!std::isnormal(call.scale * std::numbers::log2e_v<float>) || call.scale < 0.0f) return false;
  if (paged) return true;
  *keys = AttnKeys::kOnePiece;
  const bool served = IsOnePiece(call);
  if (served) {
    const Steps steps = StepsOf(call);
    *block_size =
        static_cast<int32_t>(steps.row / steps.token * (call.num_blocks - 1) + call.kv_capacity);
  }
  return served;
}

// Family, line and view of a call that was checked.
int Choose(const longspan_attn_call& call, int32_t compute_capability, const AttnTuningRow& tuning,
           AttnChoice* choice) {
  *choice = {};
  const int32_t group = call.num_q_heads / call.num_kv_heads;
  const int64_t rows = int64_t{call.max_q_len} * group;
  choice->family = call.family == LONGSPAN_ATTN_DECODE || call.tree_mask != nullptr ||
                           (call.family == 0 && rows <= tuning.decode_rows)
                       ? AttnFamily::kDecode
                       : AttnFamily::kPrefill;
  const bool short_queries = choice->family == AttnFamily::kPrefill && group >= kAttnTunedGroup &&
                             tuning.sm80_q_len > 0 && call.max_q_len <= tuning.sm80_q_len;
  if (!short_queries &&
      ServedBySm90(call, compute_capability, choice->family, &choice->keys, &choice->block_size)) {
    choice->line = 90;
  } else {
    choice->line = 80;
    const bool paged = call.kv_layout == LONGSPAN_ATTN_PAGED;
    choice->keys = paged ? AttnKeys::kBlocks : AttnKeys::kUnitBlocks;
    choice->block_size = paged ? call.block_size : kAttnUnitBlockSize;
  }
  if (choice->keys == AttnKeys::kUnitBlocks) {
    const Steps steps = StepsOf(call);
    if (!steps.same) {
      return Refuse(choice, LONGSPAN_ATTN_STRIDE,
                    "rows and tokens of k and v are not in the same proportion");
    }
    const int64_t last = steps.row * (call.num_blocks - 1) + steps.token * call.kv_capacity;
    if (last > INT32_MAX) {
      return Refuse(choice, LONGSPAN_ATTN_SHAPE, "the cache has too many steps for 32-bit ids");
    }
  }
  if (choice->keys == AttnKeys::kRowBlocks || choice->keys == AttnKeys::kUnitBlocks) {
    choice->ids_per_seq =
        static_cast<int32_t>((call.kv_capacity + choice->block_size - 1) / choice->block_size);
  } else if (choice->keys == AttnKeys::kOnePiece) {
    choice->ids_per_seq = 1;  // the sequence's first token, for appending
  }
  return LONGSPAN_ATTN_OK;
}

}  // namespace

int ChooseAttn(const longspan_attn_call& call, int32_t compute_capability, AttnChoice* choice,
               const AttnTuning& tuning) {
  *choice = {};
  if (call.struct_bytes != static_cast<int32_t>(sizeof(longspan_attn_call))) {
    return Refuse(choice, LONGSPAN_ATTN_STRUCT, "struct_bytes of another version");
  }
  for (const auto check : {&CheckShape, &CheckOptions, &CheckStrides, &CheckScalesAndTree}) {
    if (const int status = check(call, choice); status != LONGSPAN_ATTN_OK) return status;
  }
  if (compute_capability < 80) {
    return Refuse(choice, LONGSPAN_ATTN_DEVICE, "the card is older than compute capability 8.0");
  }
  const AttnTuningRow& row = tuning.For(call.head_dim);
  const int status = Choose(call, compute_capability, row, choice);
  if (status == LONGSPAN_ATTN_OK || row == AttnTuningRow()) return status;
  // The faster kernel may not see these keys.
  return Choose(call, compute_capability, AttnTuningRow(), choice);
}

AttentionParams AttnParams(const longspan_attn_call& call, const AttnChoice& choice) {
  const Masks masks = NormalMasks(call);
  AttentionParams p;
  p.q = call.q;
  p.o = call.o;
  p.lse = call.lse;
  p.q_token_stride = call.q_token_stride;
  p.q_head_stride = call.q_head_stride;
  p.o_token_stride = call.o_token_stride;
  p.o_head_stride = call.o_head_stride;
  p.k = call.k;
  p.v = call.v;
  p.k_block_stride = call.k_block_stride;
  p.k_token_stride = call.k_token_stride;
  p.k_head_stride = call.k_head_stride;
  p.v_block_stride = call.v_block_stride;
  p.v_token_stride = call.v_token_stride;
  p.v_head_stride = call.v_head_stride;
  if (choice.keys == AttnKeys::kUnitBlocks) {
    const Steps steps = StepsOf(call);
    p.k_block_stride = steps.k_unit;
    p.v_block_stride = steps.v_unit;
  } else if (choice.keys == AttnKeys::kRowBlocks) {
    p.k_block_stride = choice.block_size * call.k_token_stride;
    p.v_block_stride = choice.block_size * call.v_token_stride;
  } else if (choice.keys == AttnKeys::kBlocks) {
    p.block_table = call.block_table;
    p.block_table_stride = call.block_table_stride;
  }
  if (choice.ids_per_seq > 0) p.block_table_stride = choice.ids_per_seq;
  p.num_seqs = call.num_seqs;
  p.num_q_heads = call.num_q_heads;
  p.num_kv_heads = call.num_kv_heads;
  p.head_dim = call.head_dim;
  p.block_size = choice.block_size;
  p.q_dtype = call.dtype == LONGSPAN_ATTN_FLOAT16 ? DType::kFloat16 : DType::kBFloat16;
  p.kv_dtype = !Has8BitKv(call)                             ? p.q_dtype
               : call.kv_dtype == LONGSPAN_ATTN_FLOAT8_E4M3 ? DType::kFloat8E4M3
                                                            : DType::kInt8;
  if (Has8BitKv(call)) {
    p.scales = {call.k_scale,
                call.v_scale,
                call.k_scale_block_stride,
                call.k_scale_head_stride,
                call.v_scale_block_stride,
                call.v_scale_head_stride};
  }
  p.tree_mask = call.tree_mask;
  p.tree_mask_stride = call.tree_mask_stride;
  p.scale = call.scale;
  p.softcap = call.softcap;
  p.causal = masks.causal;
  p.window_left = masks.left;
  p.window_right = masks.right;
  p.sinks = call.sinks;
  p.alibi_slopes = call.alibi_slopes;
  return p;
}

int64_t AttnNumBlocks(const longspan_attn_call& call, const AttnChoice& choice) {
  switch (choice.keys) {
    case AttnKeys::kBlocks:
      return call.num_blocks;
    case AttnKeys::kOnePiece:
      return 1;
    case AttnKeys::kRowBlocks:
    case AttnKeys::kUnitBlocks:
      break;
  }
  const Steps steps = StepsOf(call);
  const int64_t step = choice.keys == AttnKeys::kUnitBlocks ? 1 : choice.block_size * steps.token;
  return steps.row / step * (call.num_blocks - 1) + steps.token * call.kv_capacity / step;
}

int CheckAttnLengths(const longspan_attn_call& call, const longspan_attn_lengths& lengths) {
  if (lengths.struct_bytes != static_cast<int32_t>(sizeof(longspan_attn_lengths))) {
    return LONGSPAN_ATTN_STRUCT;
  }
  const bool paged = call.kv_layout == LONGSPAN_ATTN_PAGED;
  if (lengths.cu_seqlens_q == nullptr || (call.num_seqs > 0 && lengths.seq_lens == nullptr)) {
    return LONGSPAN_ATTN_NULL;
  }
  if (call.kv_layout == LONGSPAN_ATTN_PACKED && lengths.kv_starts == nullptr) {
    return LONGSPAN_ATTN_NULL;
  }
  const int64_t capacity =
      paged ? std::min<int64_t>(1 << 30, call.block_table_stride * call.block_size)
            : call.kv_capacity;
  if (lengths.cu_seqlens_q[0] < 0) return LONGSPAN_ATTN_SHAPE;
  for (int32_t seq = 0; seq < call.num_seqs; ++seq) {
    const int64_t q_len = int64_t{lengths.cu_seqlens_q[seq + 1]} - lengths.cu_seqlens_q[seq];
    if (q_len < 0 || q_len > call.max_q_len || lengths.seq_lens[seq] < 0) {
      return LONGSPAN_ATTN_SHAPE;
    }
    int64_t start = 0, row = seq;
    if (!paged) {
      if (call.kv_layout == LONGSPAN_ATTN_PACKED) start = lengths.kv_starts[seq];
      if (lengths.kv_rows != nullptr) row = lengths.kv_rows[seq];
      if (row < 0 || row >= call.num_blocks || start < 0) return LONGSPAN_ATTN_SHAPE;
    }
    if (start + lengths.seq_lens[seq] > capacity) return LONGSPAN_ATTN_SHAPE;
  }
  return lengths.cu_seqlens_q[call.num_seqs] <= call.total_q ? LONGSPAN_ATTN_OK
                                                             : LONGSPAN_ATTN_SHAPE;
}

int64_t AttnOrigin(const longspan_attn_call& call, const AttnChoice& choice,
                   const longspan_attn_lengths& lengths, int32_t seq) {
  const Steps steps = StepsOf(call);
  const int64_t row = lengths.kv_rows == nullptr ? seq : lengths.kv_rows[seq];
  const int64_t start = call.kv_layout == LONGSPAN_ATTN_PACKED ? lengths.kv_starts[seq] : 0;
  switch (choice.keys) {
    case AttnKeys::kUnitBlocks:
      return row * steps.row + start * steps.token;
    case AttnKeys::kRowBlocks:
      return row * (steps.row / (choice.block_size * steps.token));
    case AttnKeys::kOnePiece:
      return row * (steps.row / steps.token) + start;
    case AttnKeys::kBlocks:
      break;
  }
  return 0;
}

void FillAttnTable(const longspan_attn_call& call, const AttnChoice& choice,
                   const longspan_attn_lengths& lengths, std::span<int32_t> table) {
  const Steps steps = StepsOf(call);
  const int64_t step = choice.keys == AttnKeys::kUnitBlocks ? choice.block_size * steps.token : 1;
  for (int32_t seq = 0; seq < call.num_seqs; ++seq) {
    const int64_t origin = AttnOrigin(call, choice, lengths, seq);
    const int64_t start = call.kv_layout == LONGSPAN_ATTN_PACKED ? lengths.kv_starts[seq] : 0;
    int32_t* ids = table.data() + int64_t{seq} * choice.ids_per_seq;
    for (int32_t i = 0; i < choice.ids_per_seq; ++i) {
      const bool inside = start + int64_t{i} * choice.block_size < call.kv_capacity;
      ids[i] = inside ? static_cast<int32_t>(origin + i * step) : 0;
    }
  }
}

}  // namespace longspan
