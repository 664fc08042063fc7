// What the prefill kernels take: the launch's arguments as the device sees them.
#pragma once

#include <cstdint>

#include "kernels/attention/prefill/sm90_prefill_plan.h"

namespace longspan {

// Handed out to CTAs in turn; both are 0 between launches.
struct Sm90PrefillTurns {
  int32_t next_tile;
  int32_t num_ctas_done;
};

// A *tile* is one query head of one piece. Pointers are device memory, strides count elements.
struct Sm90PrefillArgs {
  const Sm90PrefillPiece* pieces;
  Sm90PrefillTurns* turns;
  void* o;     // [total_q, num_q_heads, head_dim]
  float* lse;  // [total_q, num_q_heads] or null
  int64_t o_token_stride, o_head_stride;
  const int32_t* block_table;  // [B, block_table_stride]; null: one block, number 0
  int64_t block_table_stride;
  int32_t num_pieces, num_q_heads;
  int32_t group;          // query heads per KV head
  int32_t heads_in_turn;  // query heads that go through all pieces before the next ones begin
  int32_t block_size;     // tokens
  int32_t box_tokens;     // a box: the tokens that one copy brings
  uint32_t block_size_inverse;  // 2^32 / block_size, rounded up; 0 without a block table
  int32_t window_left;    // -1: open
  bool causal;
  float scale_log2;  // score scale times log2(e), > 0
};

}  // namespace longspan
