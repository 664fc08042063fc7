// The split plan of attention: which thread-sized pieces of work a batch falls into. A pure host
// function of lengths and worker count; it decides who computes what, never how, so it cannot
// change a bit of the result: pieces begin and end at absolute multiples of part_tokens, and parts
// are merged in index order.
#pragma once

#include <cstdint>
#include <span>

namespace longspan {

// Query rows of one KV head of one sequence are packed: row = query index * group + head of the
// group.
struct AttentionPlanParams {
  std::span<const int32_t> cu_seqlens_q;  // [B + 1]
  std::span<const int32_t> seq_lens;      // [B]
  int32_t num_kv_heads = 0;
  int32_t group = 0;  // query heads per KV head
  bool causal = true;
  int32_t window_left = -1;
  int32_t window_right = -1;
  int32_t max_rows =
      0;  // packed rows (of all KV heads of an item together) that a worker holds at once
  int32_t part_tokens = 0;  // the constant token stride at which partial results are merged
  int32_t tile_tokens = 0;  // tokens worked on at a time; divides part_tokens; the unit of cost
  int32_t num_workers = 1;
  int32_t num_splits = 0;  // > 0: pieces that every (sequence, rows, heads) is cut into; 0: by load
};

// Rows x KV heads of one sequence that are computed together over the parts [part_begin, part_end).
struct AttentionSpan {
  int32_t seq;
  int32_t head_begin, head_end;  // KV heads
  int32_t row_begin, row_end;    // packed rows of each of these heads
  int32_t part_begin,
      part_end;     // tokens [part_begin, part_end) * part_tokens, cut to what rows may see
  int64_t partial;  // first partial; -1: one worker does all parts and writes the output
};

// Partial of (part, head, row) of a cut span: partial + ((part - part_begin) * heads + head) * rows
// + row, all relative to the cut's beginning. The pieces of a cut are items whose partial points at
// their own first part.
struct AttentionPlan {
  std::span<AttentionSpan> items;  // costly ones first
  std::span<AttentionSpan> cuts;   // what is merged once all items are done
  int64_t num_partials = 0;
  int32_t max_splits = 1;  // pieces of the span that is cut most; 1: none is cut
};

// No plan has more partials: they would grow with workers x context without bound. A span that
// would take more is not cut; one worker then does all of its parts, to the same bits.
inline constexpr int64_t kMaxPartials = int64_t{1} << 18;

// Room that a plan of at most these extents can need. max_total_q counts query rows of all
// sequences.
struct AttentionPlanBounds {
  int64_t max_items;
  int64_t max_cuts;
  int64_t max_partials;
};
AttentionPlanBounds BoundAttentionPlan(const AttentionPlanParams& params, int64_t max_num_seqs,
                                       int64_t max_total_q, int64_t max_seq_len);

// Keys [begin, end) that any of the packed rows [row_begin, row_end) of a sequence may see.
struct KeyRange {
  int64_t begin, end;
};
KeyRange VisibleKeys(const AttentionPlanParams& params, int32_t seq, int32_t row_begin,
                     int32_t row_end);

// Fills the two buffers and returns views of them. O(B + items); no allocation.
AttentionPlan PlanAttention(const AttentionPlanParams& params, std::span<AttentionSpan> item_buffer,
                            std::span<AttentionSpan> cut_buffer);

}  // namespace longspan
