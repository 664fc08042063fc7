/* Longspan's attention behind plain C: liblongspan_attn.so. Compiles as C99; needs no GPU toolkit
 * and knows no framework: pointers and strides in, a stream in. What is computed: attention.md; how
 * to use it: docs/kernels/drop-in.md.
 *
 * Every function answers a LONGSPAN_ATTN_ status; longspan_attn_text says it in words. Nothing is
 * enqueued unless the answer is OK. Nothing here allocates (but longspan_attn_open) or
 * synchronises. Any thread may call; a workspace serves one stream at a time. */
#ifndef LONGSPAN_ATTN_C_H_
#define LONGSPAN_ATTN_C_H_

#include <stdint.h>

#if defined(__GNUC__)
#define LONGSPAN_ATTN_API __attribute__((visibility("default")))
#else
#define LONGSPAN_ATTN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define LONGSPAN_ATTN_ABI 2

enum {
  LONGSPAN_ATTN_OK = 0,
  LONGSPAN_ATTN_DTYPE = 1,
  LONGSPAN_ATTN_HEAD_DIM = 2,
  LONGSPAN_ATTN_HEADS = 3,
  LONGSPAN_ATTN_BLOCK_SIZE = 4,
  LONGSPAN_ATTN_OPTION = 5,
  LONGSPAN_ATTN_SHAPE = 6,
  LONGSPAN_ATTN_STRIDE = 7,
  LONGSPAN_ATTN_ALIGNMENT = 8,
  LONGSPAN_ATTN_WORKSPACE = 9,
  LONGSPAN_ATTN_DEVICE = 10,
  LONGSPAN_ATTN_LAUNCH = 11,
  LONGSPAN_ATTN_SCALES = 12,  /* k_scale, v_scale and their strides */
  LONGSPAN_ATTN_TREE = 13,    /* tree_mask */
  LONGSPAN_ATTN_NULL = 100,   /* a null pointer where one is needed */
  LONGSPAN_ATTN_STRUCT = 101, /* struct_bytes is not of this version */
  LONGSPAN_ATTN_NO_DEVICE = 102
};

enum { LONGSPAN_ATTN_FLOAT16 = 1, LONGSPAN_ATTN_BFLOAT16 = 2 };
/* Of k and v alone; e4m3 as OCP defines it, int8 symmetric. */
enum { LONGSPAN_ATTN_FLOAT8_E4M3 = 3, LONGSPAN_ATTN_INT8 = 4 };

enum { LONGSPAN_ATTN_DECODE = 1, LONGSPAN_ATTN_PREFILL = 2 }; /* families; 0: chosen by the shape */
enum { LONGSPAN_ATTN_SM80 = 80, LONGSPAN_ATTN_SM90 = 90 };    /* lines; 0: the best that serves */

/* Where keys and values lie. PAGED: in blocks, by a table. ROWS: every sequence begins at the first
 * token of a row of a [num_blocks, kv_capacity, heads, d] cache. PACKED: it begins at any token of
 * any row; cu_seqlens_k is PACKED with one row. */
enum { LONGSPAN_ATTN_PAGED = 0, LONGSPAN_ATTN_ROWS = 1, LONGSPAN_ATTN_PACKED = 2 };

/* One call. Strides in elements, multiples of 8; q, k, v 16-byte aligned (8-bit k, v on the sm_80
 * line: 8); the last dimension contiguous. Pointers are device memory; choose, sizes and plan read none of them, but
 * ask whether alibi_slopes, sinks and tree_mask are null. */
typedef struct longspan_attn_call {
  int32_t struct_bytes; /* sizeof(longspan_attn_call) */
  int32_t dtype;        /* of q, o, and of k and v when kv_dtype is 0 */
  int32_t kv_dtype;     /* 0, the same as dtype, LONGSPAN_ATTN_FLOAT8_E4M3 or LONGSPAN_ATTN_INT8 */
  int32_t num_seqs;
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t head_dim;    /* 16..256, a multiple of 8 */
  int32_t max_q_len;   /* no sequence has more query rows; chooses the family */
  int32_t kv_layout;   /* LONGSPAN_ATTN_PAGED, _ROWS, _PACKED */
  int32_t block_size;  /* PAGED: a multiple of 16 in 16..256 */
  int32_t causal;      /* bottom right: key j is seen by row i when j <= i + Lk - Lq */
  int32_t window_left; /* -1: open; as flash-attn's window_size */
  int32_t window_right;
  int32_t family; /* 0, LONGSPAN_ATTN_DECODE, LONGSPAN_ATTN_PREFILL */
  int32_t line;   /* 0, LONGSPAN_ATTN_SM80: leave the sm_90a line out */
  int32_t unused;
  float scale;
  float softcap;       /* 0: off */
  int64_t total_q;     /* rows of q, o, lse */
  int64_t num_blocks;  /* PAGED: blocks of the pool; else rows of the cache */
  int64_t kv_capacity; /* ROWS, PACKED: tokens of a row */

  const void* q; /* [total_q, num_q_heads, head_dim] */
  void* o;       /* the same */
  float* lse; /* [total_q, num_q_heads], natural logarithm, -inf for a row without keys; or null */
  void* k;    /* [num_blocks, block_size or kv_capacity, num_kv_heads, head_dim] */
  void* v;
  const int32_t* block_table; /* PAGED: [num_seqs, block_table_stride] */
  const float* alibi_slopes;  /* [num_q_heads] or null; score -= slope * |p - j| */
  const float* sinks;         /* [num_q_heads] or null */
  /* Of 8-bit k and v: real = stored * scale, the scale of a block and KV head at [block *
   * block_stride + head * head_stride]; stride 0: the same for all (block: always, but PAGED). */
  const float* k_scale;
  const float* v_scale;
  /* Decode of drafted tokens, at most 64 a sequence; null: none. In place of causal: bit n of the
   * word at [row of q * tree_mask_stride] is set when the row sees its sequence's n-th new token */
  const uint64_t* tree_mask;
  int64_t block_table_stride;
  int64_t q_token_stride, q_head_stride;
  int64_t o_token_stride, o_head_stride;
  int64_t k_block_stride, k_token_stride, k_head_stride;
  int64_t v_block_stride, v_token_stride, v_head_stride;
  int64_t k_scale_block_stride, k_scale_head_stride;
  int64_t v_scale_block_stride, v_scale_head_stride;
  int64_t tree_mask_stride;
} longspan_attn_call;

/* What serves a call. how_keys: "blocks", "rows as blocks", "overlapping blocks", "one piece". */
typedef struct longspan_attn_choice {
  int32_t family;
  int32_t line;
  const char* how_keys;
  const char* reason; /* of a status that is not OK; "" else; static text */
} longspan_attn_choice;

/* Pure: of shape, strides, options and compute capability (90: 9.0) alone. */
LONGSPAN_ATTN_API int longspan_attn_choose(const longspan_attn_call* call,
                                           int32_t compute_capability,
                                           longspan_attn_choice* choice);

/* The device that the calling thread uses: opened once, used by any thread, valid until closed. */
typedef struct longspan_attn_device longspan_attn_device;
LONGSPAN_ATTN_API int longspan_attn_open(longspan_attn_device** device);
LONGSPAN_ATTN_API void longspan_attn_close(longspan_attn_device* device);
LONGSPAN_ATTN_API int32_t longspan_attn_compute_capability(const longspan_attn_device* device);

/* Where two kernels could serve, a device goes by the table that longspan-tune left in the cache
 * folder when it was opened, else by built-in numbers; by which, the second function says in words
 * that live as long as the device. The first sets the text of a table instead, before any other
 * call with the device: OPTION, and no change, when it is no table of this device and driver. */
LONGSPAN_ATTN_API int longspan_attn_tune(longspan_attn_device* device, const char* table);
LONGSPAN_ATTN_API const char* longspan_attn_tuning(const longspan_attn_device* device);

typedef struct longspan_attn_sizes {
  int64_t plan_bytes; /* at most, for any lengths of this call's shape */
  /* Device memory, 256-byte aligned. Its first zeroed_bytes are zero before the first launch, and
   * again after every launch. Launches on one stream may share it. */
  int64_t workspace_bytes;
  int64_t zeroed_bytes;
} longspan_attn_sizes;
LONGSPAN_ATTN_API int longspan_attn_measure(longspan_attn_device* device,
                                            const longspan_attn_call* call,
                                            longspan_attn_sizes* sizes);

/* Lengths of the batch, host memory. */
typedef struct longspan_attn_lengths {
  int32_t struct_bytes;
  int32_t unused;
  const int32_t* cu_seqlens_q; /* [num_seqs + 1] rows of q */
  const int32_t* seq_lens;     /* [num_seqs] keys, those that this call appends included */
  const int32_t* kv_rows;      /* ROWS, PACKED: [num_seqs] row of the cache; null: 0, 1, 2, ... */
  const int32_t* kv_starts;    /* PACKED: [num_seqs] token of the row that is the first key */
} longspan_attn_lengths;

/* What a launch needs besides the plan's bytes. Of query lengths alone, but max_keys, a hint. */
typedef struct longspan_attn_plan_info {
  int64_t num_items;
  int64_t max_keys;
  int64_t bytes; /* to copy to the device */
} longspan_attn_plan_info;

/* Writes the plan to host memory (best: pinned), 16-byte aligned, of measure's plan_bytes. The
 * caller copies info.bytes of it to the device. */
LONGSPAN_ATTN_API int longspan_attn_plan(longspan_attn_device* device,
                                         const longspan_attn_call* call,
                                         const longspan_attn_lengths* lengths, void* plan,
                                         int64_t plan_bytes, longspan_attn_plan_info* info);

/* New keys and values into the cache (an 8-bit one: divided by its scales), before
 * longspan_attn_run in the same stream. */
typedef struct longspan_attn_append {
  int32_t struct_bytes;
  int32_t new_len;   /* tokens of every sequence */
  const void* k_new; /* [num_seqs, new_len, num_kv_heads, head_dim] */
  const void* v_new; /* token t of sequence b is row b * new_len + t */
  int64_t k_token_stride, k_head_stride;
  int64_t v_token_stride, v_head_stride;
  const int32_t*
      cache_seqlens;        /* device, [num_seqs]: slots filled before, in the row's own count */
  const int32_t* kv_starts; /* device, PACKED: [num_seqs] as in lengths; or null: 0 */
  /* Rotary embedding; null cos: none. Of the call's dtype. Row i turns position i. Keys of sequence
   * b stand at positions[b] + t, so do query rows, or all at positions[b] when q_fixed. */
  const void* rotary_cos; /* [num_positions, rotary_dim / 2], the last dimension contiguous */
  const void* rotary_sin;
  const int32_t* positions; /* device, [num_seqs]; null: cache_seqlens */
  int64_t rotary_stride;
  int64_t num_positions; /* later ones are turned as the last */
  int32_t rotary_dim;    /* a multiple of 16 */
  int32_t interleaved;   /* pairs (0, 1), (2, 3), ...; else (0, rotary_dim / 2), ... */
  int32_t q_fixed;
  int32_t q_len; /* query rows of every sequence */
  void* q;       /* rotated in place: the caller's copy of [num_seqs * q_len, heads, head_dim] with
                    the call's q strides; null: queries are not rotated */
  void* scratch; /* longspan_attn_append_bytes of device memory, 16-byte aligned */
  int64_t scratch_bytes;
} longspan_attn_append;

LONGSPAN_ATTN_API int64_t longspan_attn_append_bytes(const longspan_attn_call* call,
                                                     const longspan_attn_append* append);

/* Tokens whose slot lies past the row or the table are dropped. plan: device memory. Enqueues on
 * stream, a cudaStream_t. */
LONGSPAN_ATTN_API int longspan_attn_append_run(longspan_attn_device* device,
                                               const longspan_attn_call* call,
                                               const longspan_attn_append* append, const void* plan,
                                               void* stream);

/* Enqueues; computes o, and lse when given. Can be captured in a graph, which then serves every
 * plan of the same query lengths that is copied to the same memory. */
LONGSPAN_ATTN_API int longspan_attn_run(longspan_attn_device* device,
                                        const longspan_attn_call* call, const void* plan,
                                        const longspan_attn_plan_info* info, void* workspace,
                                        int64_t workspace_bytes, void* stream);

LONGSPAN_ATTN_API const char* longspan_attn_text(int status);
LONGSPAN_ATTN_API int longspan_attn_abi(void);

#ifdef __cplusplus
}
#endif

#endif /* LONGSPAN_ATTN_C_H_ */
