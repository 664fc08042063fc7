// An attention problem of tests/support as the drop-in's C functions take it: the call and its
// lengths. Host pointers, until a test puts device pointers in their place.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention/dropin/attn_c.h"
#include "tests/support/attention_table.h"
#include "tests/support/paged_attention.h"

namespace longspan {

// 0 by shape, else LONGSPAN_ATTN_DECODE or LONGSPAN_ATTN_PREFILL.
int32_t AttnFamilyOf(AttentionTableFamily family);

// Types that the C functions do not know become numbers that they refuse. Keys in one piece or in
// rows: the problem's blocks lie so.
longspan_attn_call AttnCallOf(PagedAttention& problem,
                              AttentionTableKeys keys = AttentionTableKeys::kBlocks);

// Of the problem as its params are now; points into itself and into the problem.
class AttnLengths {
 public:
  AttnLengths(PagedAttention& problem, AttentionTableKeys keys);
  AttnLengths(const AttnLengths&) = delete;
  const longspan_attn_lengths& lengths() const { return lengths_; }

 private:
  std::vector<int32_t> kv_rows_, kv_starts_;
  longspan_attn_lengths lengths_ = {};
};

}  // namespace longspan
