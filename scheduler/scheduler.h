// Decides what runs in each step: continuous batching with chunked prefill, priorities with ageing,
// preemption by recompute. Pure policy: sequences and the time go in, SchedulerOutput and events
// come out. It calls no model, reads no clock, logs nothing and has no thread.
//
//   Add/Abort/Stop/Pause/Resume, then   Schedule -> (the engine runs the step) -> Update
//
// Up to max_steps_in_flight steps may be scheduled before the first one's Update (Updates come in
// order); the device executes steps in order. TakeEvents after any of these calls.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/ids.h"
#include "kvcache/kv_cache_manager.h"
#include "scheduler/request.h"
#include "scheduler/scheduler_output.h"
#include "scheduler/sequence.h"
#include "scheduler/waiting_queue.h"

namespace longspan {

struct SchedulerConfig {
  int32_t max_num_seqs = 32;              // slots: sequences that hold blocks at once
  int32_t max_num_batched_tokens = 1024;  // of one step
  // Of one sequence in one step; and of all prefills together in a step that has decodes too. So a
  // decode waits for one chunk at most. Of what all prefills get in a step one takes at most three
  // quarters while another wants some.
  int32_t max_prefill_chunk = 512;
  // While a prefill could run it gets at least so many tokens of each step; decodes share the rest
  // in turns. At most half the budget counts.
  int32_t min_prefill_tokens = 64;
  int32_t max_model_len = 0;  // tokens of one sequence, prompt included
  // One step of priority is worth so much waiting. It orders admission only.
  Duration ageing_period = std::chrono::seconds(10);
  Duration slow_reader_timeout = std::chrono::seconds(30);
  // Equals preempt each other, for want of blocks, at most so often; then the sequence waits until
  // all the blocks it may still need can be reserved.
  int32_t max_preemptions = 3;
  // Steps, 1 or 2, that Schedule may hand out before the Update of the first. Schedule reads it and
  // CHECKs that its caller keeps to it. 1: each step is planned on the results of the one before,
  // as the engine does on the CPU. 2: step N+1 is planned while step N runs on a device; a sequence
  // then feeds a token that the scheduler has not seen yet, and ends may come one step late.
  int32_t max_steps_in_flight = 1;
};

struct SchedulerStats {
  // Sequences. Running: holds a slot and is not paused. Waiting: wants a slot.
  int32_t num_running = 0;
  int32_t num_waiting = 0;
  int32_t num_paused = 0;
  int64_t num_waiting_tokens = 0;  // tokens that waiting sequences have to compute first
  int64_t num_preemptions = 0;
  KvCacheStats kv;  // blocks, and prefix cache counters
};

// The largest prompt + max_tokens of one sequence that the pool can ever hold.
int64_t MaxFittingTokens(int32_t num_blocks, int32_t block_size);

// max_tokens of a request that left it out: the room after the prompt in the context and the pool.
int32_t MaxNewTokens(int32_t num_prompt_tokens, int32_t max_model_len, int32_t num_blocks,
                     int32_t block_size);

// Engine thread only. Owns all sequences; kv_cache is borrowed and outlives it.
class Scheduler {
 public:
  Scheduler(const SchedulerConfig& config, KvCacheManager& kv_cache);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // ids: one new id for each of the n sequences. The request fits (MaxFittingTokens) and is valid.
  void Add(std::span<const SeqId> ids, SequenceParams params, TimePoint now);

  // Ends a sequence: kFinished with this reason. False, and no effect, when there is none.
  bool Abort(SeqId id, FinishReason reason);
  // A stop string was found outside: ends with kStop, and num_tokens_kept generated tokens count.
  bool Stop(SeqId id, int32_t num_tokens_kept);

  // A slow reader: not scheduled until Resume, ended after slow_reader_timeout. Keeps its slot and
  // blocks until somebody is short of them; then it gives them up and recomputes, unless
  // guaranteed.
  bool Pause(SeqId id, TimePoint now);
  bool Resume(SeqId id, TimePoint now);

  // Fills output (cleared first) with the next step; output.empty() when nothing can run now. Then
  // there is no step: no Update follows. Expires deadlines and slow readers either way.
  void Schedule(TimePoint now, SchedulerOutput& output);
  // The step's result. Log-probabilities are moved out of it into events. Expires deadlines too.
  void Update(const SchedulerOutput& output, StepResult& result, TimePoint now);

  // Appends what happened since the last call, in order.
  void TakeEvents(std::vector<SequenceEvent>& events);

  bool idle() const { return groups_.empty(); }  // no sequence is left
  bool slots_are_full() const { return free_slots_.empty(); }
  // When Schedule has to be called although nothing else happens: a deadline or a slow reader.
  std::optional<TimePoint> NextWakeup() const;
  SchedulerStats stats() const;
  // Requests ahead of each of these sequences in the order of admission; -1 for one that does not
  // wait. One walk for all: O(waiting + ids).
  std::vector<int32_t> QueuePositions(std::span<const SeqId> ids) const;
  std::vector<SequenceInfo> List() const;

  // CHECKs slots, blocks, reservations and queues against each other. O(everything); for tests.
  void CheckInvariants() const;

 private:
  // A step between Schedule and Update.
  struct StepInFlight {
    StepId step;
    std::vector<bool> logprobs;       // per scheduled sequence: whether its samples have them
    std::vector<BlockTable> retired;  // blocks that the step may still touch; given back after it
  };
  // What a candidate for admission may use.
  struct Room {
    TimePoint now;
    bool victims_only = false;       // nothing but what it preempts: somebody ahead is waiting
    std::vector<Sequence*> victims;  // in the order in which they give way
    const SequenceGroup* group = nullptr;
  };

  Sequence* Find(SeqId id) const;

  // scheduler.cc: the step.
  void Expire(TimePoint now);
  bool Plan(TimePoint now);
  void PlanPrefills(int32_t budget);
  void PlanDecodes(int32_t budget, TimePoint now);
  void GrowOrPreempt(Sequence& sequence, TimePoint now);
  void Emit(Sequence& sequence, SchedulerOutput& output, StepInFlight& step);
  void EmitAdmission(Sequence& sequence, SchedulerOutput& output);

  // scheduler_admission.cc: who gets a slot and blocks.
  void Admit(TimePoint now, int32_t prefill_budget);
  void AdmitReservedSiblings(TimePoint now, int32_t prefill_budget);
  bool TryAdmit(Sequence& sequence, bool victims_only, TimePoint now);
  // Each fills the table and sets num_computed; false, and nothing changed, when room is short.
  bool AdmitFork(Sequence& sequence, const BlockTable& source, Room& room);
  bool AdmitReserved(Sequence& sequence, Room& room);
  bool ReserveShare(Sequence& sequence, Room& room);
  void ReleaseSurplus(Sequence& sequence) const;
  bool AdmitFresh(Sequence& sequence, Room& room);
  PrefixMatch FindPrefix(const Sequence& sequence) const;
  void TakeSlot(Sequence& sequence, bool forked, TimePoint now);
  // Preempts until a slot and so many blocks are there; false, and nobody preempted, when that
  // cannot be.
  bool MakeRoom(Room& room, int32_t num_blocks, int32_t headroom);
  bool MustWaitForSibling(const Sequence& sequence) const;
  const BlockTable* ForkSource(const Sequence& sequence) const;
  int32_t RankPriority(const Sequence& sequence, TimePoint now) const;
  static int32_t PrefillShare(int32_t prefill_budget);
  int64_t PrefillDemand(const Sequence& newcomer, int32_t prefill_budget, TimePoint now) const;
  int32_t Headroom(const Sequence& sequence) const;
  int32_t RemainingBlocks(const Sequence& sequence) const;
  int32_t BlocksToReserve(const SequenceGroup& group) const;
  bool DropHeldPrompts(const SequenceGroup* except);
  void Preempt(Sequence& sequence, TimePoint now);
  void ReleaseSlot(Sequence& sequence);

  // scheduler_update.cc: results and endings.
  // False: the sequence ended.
  bool CollectSequence(Sequence& sequence, const ScheduledSequence& entry, bool finite);
  void CollectPromptLogprobs(Sequence& sequence, const ScheduledSequence& entry,
                             std::span<Logprobs> entries);
  void CollectSample(Sequence& sequence, TokenId token, Logprobs* logprobs);
  void Finish(Sequence& sequence, FinishReason reason, TokenId stop_token = kInvalidToken);
  void GiveBackBlocks(Sequence& sequence, FinishReason reason);
  bool InFlight(const Sequence& sequence) const;

  const SchedulerConfig config_;
  KvCacheManager& kv_cache_;

  std::unordered_map<SeqId, Sequence*> sequences_;                    // not finished
  std::unordered_map<SeqId, std::unique_ptr<SequenceGroup>> groups_;  // by their first sequence
  std::set<std::pair<TimePoint, SeqId>> deadlines_;                   // of groups
  std::set<std::pair<TimePoint, SeqId>> slow_readers_;  // paused sequences, by the time they end
  WaitingQueue waiting_;
  std::vector<Sequence*> running_;  // hold a slot, paused ones too; the next decodes first
  std::vector<int32_t> free_slots_;
  std::vector<int32_t> released_slots_;          // to be told with the next step
  std::vector<SequenceGroup*> held_prompts_;     // with prompt_blocks
  std::vector<SequenceGroup*> reserved_groups_;  // with blocks for sequences that wait
  std::deque<StepInFlight> in_flight_;
  std::vector<SequenceEvent> events_;
  std::vector<Sequence*> scratch_;
  int64_t next_step_ = 1;
  int64_t num_plans_ = 0;
  bool made_room_ = false;  // somebody gave blocks up for another
  int64_t next_order_ = 1;
  int64_t num_preemptions_ = 0;
};

}  // namespace longspan
