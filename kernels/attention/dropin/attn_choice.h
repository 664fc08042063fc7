// Which family, which line and which view of the keys serve a call of the drop-in: pure functions
// of shape, strides and options, tested without a GPU. Launching is attn_c.cc's.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>

#include "kernels/attention/attention_params.h"
#include "kernels/attention/dropin/attn_c.h"
#include "kernels/attention/dropin/attn_tuning.h"

namespace longspan {

enum class AttnFamily : uint8_t { kDecode, kPrefill };

// How kernels that know blocks see keys of a call.
enum class AttnKeys : uint8_t {
  kBlocks,      // as they are
  kRowBlocks,   // a row is cut into whole blocks: what the copy engine needs
  kUnitBlocks,  // blocks begin at any token: ids count steps of a common divisor of the strides
  kOnePiece,    // one block that holds all tokens (sm_90a prefill)
};

struct AttnChoice {
  AttnFamily family = AttnFamily::kDecode;
  int32_t line = 0;  // 80, 90
  AttnKeys keys = AttnKeys::kBlocks;
  int32_t block_size = 0;   // that the kernel sees
  int32_t ids_per_seq = 0;  // of the table that the plan carries; 0: none, the caller's serves
  const char* reason = "";
};

inline constexpr int32_t kAttnUnitBlockSize = 256;

// A LONGSPAN_ATTN_ status; choice->reason says why it is not OK. What the
// defaults serve is served whatever the tuning.
int ChooseAttn(const longspan_attn_call& call, int32_t compute_capability, AttnChoice* choice,
               const AttnTuning& tuning = {});

// The call as kernels take it: masks brought to one form (a right window of 0 is causal), keys as
// the choice sees them. block_table is the caller's, or null where the plan carries one.
AttentionParams AttnParams(const longspan_attn_call& call, const AttnChoice& choice);

// Extents of the view: blocks of the pool that the copy engine sees. 1 for kOnePiece.
int64_t AttnNumBlocks(const longspan_attn_call& call, const AttnChoice& choice);

// Of lengths: kOk, or what does not fit the call (null pointers, descending sums, keys past a row).
int CheckAttnLengths(const longspan_attn_call& call, const longspan_attn_lengths& lengths);

// Token 0 of a sequence as the view counts: a block id (kRowBlocks, kUnitBlocks) or a token
// (kOnePiece).
int64_t AttnOrigin(const longspan_attn_call& call, const AttnChoice& choice,
                   const longspan_attn_lengths& lengths, int32_t seq);

// Writes [num_seqs, ids_per_seq] ids (kOnePiece: AttnOrigin); those past a row's capacity are 0 and
// never used.
void FillAttnTable(const longspan_attn_call& call, const AttnChoice& choice,
                   const longspan_attn_lengths& lengths, std::span<int32_t> table);

}  // namespace longspan
