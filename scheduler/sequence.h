// The scheduler's own record of a request and its sequences. Plain state: the rules that change it
// are in scheduler*.cc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/clock.h"
#include "core/ids.h"
#include "kvcache/block_table.h"
#include "kvcache/kv_cache_manager.h"
#include "kvcache/token_view.h"
#include "scheduler/request.h"

namespace longspan {

struct SequenceGroup;

// Token positions of a sequence:
//   [0, num_collected) results are in | [.., num_computed) in flight | [.., num_known) to schedule
// num_known counts the samples in flight too: their place is known, their value is not yet.
struct Sequence {
  Sequence(SequenceGroup& its_group, SeqId its_id, BlockTable its_table)
      : group(&its_group), id(its_id), table(std::move(its_table)) {}

  SequenceGroup* group;  // owns this
  SeqId id;
  int32_t index = 0;  // i of n
  int64_t order = 0;  // of arrival; siblings follow each other
  std::vector<TokenId> generated;
  int32_t num_pending_samples = 0;
  int32_t num_computed = 0;
  int32_t num_collected = 0;

  BlockTable table;              // room for all known tokens while running, else empty
  BlockReservation reservation;  // guaranteed only
  int32_t slot = -1;             // -1: not running
  bool admission_told = false;   // to the runner, since it got its slot
  int32_t num_blocks_told = 0;
  int32_t planned_tokens = 0;             // of the step being scheduled
  StepId last_step{};                     // that it was scheduled in
  int64_t preempted_in = 0;               // counted in plans
  std::optional<PartialBlockCopy> copy;   // a fork's, until its first step
  std::optional<BlockTable> copy_source;  // keeps the copy's source until then

  bool queued = false;
  TimePoint queued_since;
  Duration waited{};          // before that
  int32_t queued_tokens = 0;  // what it counts for in the queue
  int32_t rank_priority = 0;  // while running: its priority, or what ageing made of it
  bool paused = false;
  TimePoint paused_until;  // ends then

  bool finished = false;
  bool admitted_before = false;
  bool started = false;  // its kStarted event is out
  int32_t num_cached_tokens = 0;
  int32_t num_prompt_logprobs_told = 0;  // positions whose log-probabilities are delivered
  int32_t num_preemptions = 0;
  int64_t num_kv_tokens_read = 0;
  int32_t last_blocks_needed = 0;  // at its last lookup in the prefix cache
  int64_t last_lookup = 0;         // counted in plans

  bool running() const { return slot >= 0; }
  int32_t num_prompt_tokens() const;
  TokenView tokens() const;
  int32_t num_known() const {
    return num_prompt_tokens() + static_cast<int32_t>(generated.size()) + num_pending_samples;
  }
  // Tokens whose K/V will ever be needed: all but the last one that is sampled.
  int32_t max_kv_tokens() const;
  bool has_prompt_collected() const { return running() && num_collected >= num_prompt_tokens(); }
  // Of index 0 only, until all are told.
  bool wants_prompt_logprobs() const;
  int32_t num_to_compute() const {
    return running() && !paused ? std::min(num_known(), max_kv_tokens()) - num_computed : 0;
  }
};

struct SequenceGroup {
  SequenceParams params;
  int32_t max_total_tokens = 0;  // of one sequence: prompt + max_tokens, cut to context and pool
  PrefixChain root;
  std::vector<Sequence> sequences;  // never resized after Add: others point into it
  int32_t num_alive = 0;
  // Guaranteed: of sequences that were not admitted yet. Made when the first one is.
  BlockReservation reservation;
  bool reserved = false;
  // The prompt's blocks when the sequence that computed them ended before its siblings forked.
  std::optional<BlockTable> prompt_blocks;
};

inline int32_t Sequence::num_prompt_tokens() const {
  return static_cast<int32_t>(group->params.prompt.size());
}
inline TokenView Sequence::tokens() const { return {group->params.prompt, generated}; }
inline int32_t Sequence::max_kv_tokens() const {
  return std::max(num_prompt_tokens(), group->max_total_tokens - 1);
}

// Who gets tokens and blocks first: the higher rank priority, then the older one.
inline bool RanksHigher(const Sequence* a, const Sequence* b) {
  return a->rank_priority != b->rank_priority ? a->rank_priority > b->rank_priority
                                              : a->order < b->order;
}
// Who gives blocks up first: paused ones, then the lowest, then the newest.
inline bool YieldsBefore(const Sequence* a, const Sequence* b) {
  return a->paused != b->paused ? a->paused : RanksHigher(b, a);
}

inline bool Sequence::wants_prompt_logprobs() const {
  return index == 0 && group->params.sampling.num_prompt_logprobs >= 0 &&
         num_prompt_logprobs_told < num_prompt_tokens();
}

}  // namespace longspan
